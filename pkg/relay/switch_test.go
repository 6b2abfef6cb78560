package relay

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
)

// The relay agent of a switch (ToR), and what link selection says of its link.
var (
	torGiaddr = [4]byte{198, 51, 100, 1}
	torLink   = "\x05\x04\xc6\x33\x64\x01"
)

// tor trusts the switch's agent.
func tor(c *Config) { c.TrustedRelays = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }

// raw is a request with these options as they stand, END included.
func raw(kind dhcp.Type, options string) dhcp.Message {
	m := message(dhcp.OpRequest, byte(kind))
	return append(m[:len(m)-1], options...)
}

// fromTor has the switch's agent send a request to the relay.
func (b *bench) fromTor(m dhcp.Message, port uint16) (dhcp.Message, Drop) {
	m[3]++
	m.SetGiaddr(torGiaddr)
	a := arrival{listener: unicast, source: peer{wide(torGiaddr), port}, local: wide([4]byte{192, 0, 2, 2})}
	return b.worker.request4(m, &a, b.targets, b.now())
}

// optionsOf are the options of a message up to END, without padding behind it.
func optionsOf(m dhcp.Message) string {
	options := string(m[240:])
	return strings.TrimRight(options, "\x00")
}

// TestRouterKeepsItsLink: where giaddr becomes the relay's, the server learns the other agent's by link selection,
// inside of the option 82 that is there, by default. The agent gets back what it sent.
func TestRouterKeepsItsLink(t *testing.T) {
	const circuit = "\x01\x04\x00\x14\x00\x05\x02\x02\xab\xcd"
	tests := map[string]struct {
		options  string // behind the type
		up, back string
		kept     bool // giaddr stays, and the server answers the agent
	}{
		"no option 82": {options: "\xff", up: "\x52\x06" + torLink + "\xff", back: "\xff"},
		"the agent's option 82": {
			options: "\x52\x0a" + circuit + "\xff", up: "\x52\x10" + circuit + torLink + "\xff", back: "\x52\x0a" + circuit + "\xff",
		},
		"an agent nearer to the machine has named its link": {
			options: "\x52\x0c\x01\x04\x00\x14\x00\x05\x05\x04\xc6\x33\x64\x41\xff",
			up:      "\x52\x0c\x01\x04\x00\x14\x00\x05\x05\x04\xc6\x33\x64\x41\xff",
			back:    "\x52\x0c\x01\x04\x00\x14\x00\x05\x05\x04\xc6\x33\x64\x41\xff",
		},
		"a link of three bytes": {options: "\x52\x05\x05\x03\xc6\x33\x64\xff", up: "\x52\x06" + torLink + "\xff", back: "\xff"},
		"the link 0.0.0.0":      {options: "\x52\x06\x05\x04\x00\x00\x00\x00\xff", up: "\x52\x06" + torLink + "\xff", back: "\xff"},
		"two links, of no host": {
			options: "\x52\x0b\x05\x03\x00\x00\x00\x05\x04\x00\x00\x00\x00\xff", up: "\x52\x06" + torLink + "\xff", back: "\xff",
		},
		"padding completes the option": {
			options: "\x52\x36\x01\x34", up: "\x52\x3c\x01\x34" + strings.Repeat("\x00", 52) + torLink + "\xff",
			back: "\x52\x36\x01\x34" + strings.Repeat("\x00", 52) + "\xff",
		},
		"option 82 is not the last": {
			options: "\x00\x00\x52\x06\x01\x04\x00\x14\x00\x05\x00\x37\x02\x01\x03\xff\xff\xff\xff",
			up:      "\x00\x00\x52\x0c\x01\x04\x00\x14\x00\x05" + torLink + "\x00\x37\x02\x01\x03\xff",
			back:    "\x00\x00\x52\x06\x01\x04\x00\x14\x00\x05\x00\x37\x02\x01\x03\xff",
		},
		"no END": {options: "\x37\x02\x01\x03", up: "\x37\x02\x01\x03\x52\x06" + torLink + "\xff", back: "\x37\x02\x01\x03\xff"},
		"no END, padded": {
			options: "\x37\x02\x01\x03" + strings.Repeat("\x00", 53), up: "\x37\x02\x01\x03" + "\x52\x06" + torLink + "\xff",
			back: "\x37\x02\x01\x03\xff",
		},
		"two options 82": {
			options: "\x52\x04\x01\x02\x00\x01\x52\x04\x02\x02\x00\x02\xff",
			up:      "\x52\x0e\x01\x02\x00\x01\x02\x02\x00\x02" + torLink + "\xff",
			back:    "\x52\x08\x01\x02\x00\x01\x02\x02\x00\x02\xff",
		},
		"no room in the option": {
			options: "\x52\xfa\x01\xf8" + strings.Repeat("c", 248) + "\xff", up: "\x52\xfa\x01\xf8" + strings.Repeat("c", 248) + "\xff", kept: true,
		},
		"the option is cut":   {options: "\x52\xff\x01\x04", up: "\x52\xff\x01\x04", kept: true},
		"a sub-option is cut": {options: "\x52\x04\x01\x09\x00\x14\xff", up: "\x52\x04\x01\x09\x00\x14\xff", kept: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tor)
			got, drop := b.fromTor(raw(dhcp.Discover, test.options), serverPort)
			want := ourGiaddr
			if test.kept {
				want = torGiaddr
			}
			if drop != None || got.Giaddr() != want || got.Hops() != 2 {
				t.Fatalf("got %v, giaddr %v, hops %d", drop, got.Giaddr(), got.Hops())
			}
			if diff := cmp.Diff("\x35\x01\x01"+test.up, optionsOf(got)); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			if test.kept {
				return
			}
			reply, o, drop := b.answer(got)
			if drop != None || reply.Giaddr() != torGiaddr || o.from != (peer{wide(torGiaddr), serverPort}) {
				t.Fatalf("got %v, giaddr %v, to %v", drop, reply.Giaddr(), o.from)
			}
			if diff := cmp.Diff("\x35\x01\x01"+test.back, optionsOf(reply)); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLinkThatDoesNotFit: no longer than the way to the server is; without the link giaddr is not replaced, unless that
// would have the server answer somebody who is not trusted.
func TestLinkThatDoesNotFit(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, func(c *Config) { tor(c); c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	m := raw(dhcp.Discover, "\x52\x03\x01\x01x\xff")
	m = append(m, make([]byte, 1470-len(m))...)
	b.targets.MTU = 1470 + ipAndUDP
	m[1469] = 0xff // the pads in front of it are options
	copy(m[248:], bytes.Repeat([]byte{0}, 1469-248))
	got, drop := b.fromTor(m, serverPort)
	if drop != None || got.Giaddr() != torGiaddr || len(got) != 1470 {
		t.Errorf("got %v, giaddr %v, %d bytes", drop, got.Giaddr(), len(got))
	}
	if !strings.Contains(log.String(), "no room for a relay agent's address") {
		t.Errorf("the log says %q", log.String())
	}
	m = raw(dhcp.Discover, "\x52\xff\x01\x04")
	m.SetGiaddr([4]byte{192, 0, 2, 200})
	a := arrival{listener: unicast, source: peer{wide(torGiaddr), serverPort}}
	if _, drop := b.worker.request4(m, &a, b.targets, b.now()); drop != UntrustedRelay {
		t.Errorf("a giaddr that is not trusted: got %v", drop)
	}
}

// TestForgedOption82 is a machine's that shows a relay agent's source, or leaves it to the relay's padding to complete
// the option.
func TestForgedOption82(t *testing.T) {
	for options, source := range map[string][4]byte{
		"\x52\x06\x01\x04evil\xff":                     torGiaddr,
		"\x52\x06\x01\x04evil\x00":                     {},
		"\x52\x14\x01\x04evil\x05\x04\xc6\x33\x64\x01": {},
	} {
		b := newBench(t, tor)
		a := b.heard
		a.source.ip = wide(source)
		if got, drop := b.worker.request4(raw(dhcp.Discover, options), &a, b.targets, b.now()); drop != UntrustedAgent {
			t.Errorf("%q: got %v, %q", options, drop, optionsOf(got))
		}
	}
}

// TestLinkWithoutOptions: a message with another cookie gets no option 82; nothing of it changes.
func TestLinkWithoutOptions(t *testing.T) {
	for name, vend := range map[string]string{
		"none": "", "zeroes": "\x00\x00\x00\x00", "CMU": "CMU\x00", "damaged": "\x53\x63\x35\x01\x35\x01\x0a\xff", "ones": "\xff\xff\xff\xff",
	} {
		for _, viaTor := range []bool{false, true} {
			b := newBench(t, func(c *Config) { tor(c); c.AgentOptions = []SubOption{CircuitID} })
			m := message(dhcp.OpRequest, 1)[:236] // the buffer's end has room for padding
			m = append(m, vend...)
			before := bytes.Clone(m)
			hear := b.hear
			if viaTor {
				hear = func(m dhcp.Message) (dhcp.Message, Drop) { return b.fromTor(m, serverPort) }
			}
			sent, drop := hear(m)
			want := slices.Concat(before[236:], make([]byte, 300-len(before)))
			if drop != None || !bytes.Equal(sent[236:], want) || len(sent) != 300 {
				t.Errorf("%s: got %v, vendor area %x", name, drop, sent[236:])
			}
			if viaTor && sent.Giaddr() != torGiaddr {
				t.Errorf("%s: giaddr %v, and no link", name, sent.Giaddr())
			}
			if !viaTor {
				if reply, _, drop := b.answer(sent); drop != None || !bytes.Equal(reply[236:], want) {
					t.Errorf("%s: the answer: got %v", name, drop)
				}
			}
		}
	}
}

// renewBench has options that renewals need, and a listener that is open.
func renewBench(t *testing.T, change func(*Config)) *bench {
	b := newBench(t, func(c *Config) {
		c.TrustedRelays = nil
		c.SourceAddress = netip.MustParseAddr("192.0.2.2")
		c.Listeners = []Listener{{Name: "macvlan0", LinkAddress: netip.MustParseAddr("192.0.2.1")}}
		c.AgentOptions = []SubOption{LinkSelection, CircuitID, RemoteID}
		if change != nil {
			change(c)
		}
	})
	for i, v := range b.vlans {
		mac := frame.MAC{2, 0, 0, 0, 0, byte(i + 1)}
		v.SetOpened(&listener.Opened[link]{Info: link{options: b.config.agentOf(b.config.Listeners[i], mac, [4]byte{})}})
	}
	b.heard.link = &b.vlans[0].Opened().Info
	return b
}

// renew has a client extend its lease by a unicast.
func (b *bench) renew(options string, ciaddr [4]byte) (dhcp.Message, Drop) {
	m := raw(dhcp.Request, options)
	copy(m[12:], ciaddr[:])
	a := arrival{listener: unicast, source: peer{wide(ciaddr), clientPort}, local: wide(ourGiaddr), trusted: b.v4.trustsSwitches}
	return b.worker.request4(m, &a, b.targets, b.now())
}

// TestRenewalHasItsLink: a client's unicast has the link of its address, and no circuit.
func TestRenewalHasItsLink(t *testing.T) {
	const discover = "\x01\x08macvlan0\x02\x06\x02\x00\x00\x00\x00\x01\x05\x04\xc0\x00\x02\x01"
	b := renewBench(t, nil)
	if m, drop := b.hear(raw(dhcp.Discover, "\xff")); drop != None || optionsOf(m) != "\x35\x01\x01\x52\x18"+discover+"\xff" {
		t.Errorf("DISCOVER: got %v, %q", drop, optionsOf(m))
	}
	m, drop := b.renew("\xff", yiaddr)
	if drop != None || m.Giaddr() != ourGiaddr || m.Ciaddr() != yiaddr || optionsOf(m) != "\x35\x01\x03\x52\x06\x05\x04\xc0\x00\x02\x32\xff" {
		t.Errorf("RENEW: got %v, giaddr %v, %q", drop, m.Giaddr(), optionsOf(m))
	}
	reply, o, drop := b.answer(m)
	if drop != None || reply.HasOption82() || o.from != (peer{wide(yiaddr), clientPort}) || reply.Giaddr() != [4]byte{} {
		t.Errorf("ACK: got %v, option 82 %v, to %v", drop, reply.HasOption82(), o.from)
	}
	for _, ciaddr := range [][4]byte{{}, {127, 0, 0, 1}, {255, 255, 255, 255}, {224, 0, 0, 1}, {0, 0, 0, 5}} {
		if m, drop := b.renew("\xff", ciaddr); drop != None || m.HasOption82() {
			t.Errorf("ciaddr %v: got %v, %q", ciaddr, drop, optionsOf(m))
		}
	}
}

// TestNoLinkUnasked: a renewal gets no option 82 where none is configured.
func TestNoLinkUnasked(t *testing.T) {
	b := renewBench(t, func(c *Config) { c.AgentOptions = nil })
	if m, drop := b.renew("\xff", yiaddr); drop != None || m.HasOption82() {
		t.Errorf("got %v, %q", drop, optionsOf(m))
	}
}

// ciscoAgent is what Catalyst switches add: VLAN and port, and the switch's MAC address.
const ciscoAgent = "\x01\x06\x00\x04\x00\x14\x00\x05\x02\x08\x00\x06\xaa\xbb\xcc\xdd\xee\xff"

// TestSwitchWithSnoopingIsSaid: the requests are refused, and one line says by which switch, and what to do.
func TestSwitchWithSnoopingIsSaid(t *testing.T) {
	var log bytes.Buffer
	b := renewBench(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 100 {
		if _, drop := b.hear(raw(dhcp.Discover, "\x52\x12"+ciscoAgent+"\xff")); drop != UntrustedAgent {
			t.Fatalf("got %v", drop)
		}
	}
	if _, drop := b.renew("\x52\x12"+ciscoAgent+"\xff", yiaddr); drop != UntrustedAgent {
		t.Errorf("RENEW: got %v", drop)
	}
	for _, want := range []string{
		"refused option 82 without a giaddr", "giaddr=0.0.0.0", "02:00:00:00:00:50", "remote_id=0006aabbccddeeff", "TRUSTED_LISTENERS",
		"no ip dhcp snooping information option",
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log does not say %q once: %s", want, log.String())
		}
	}
}

// TestTrustedSwitch: its option 82 goes up and comes back as it was, with nothing of ours.
func TestTrustedSwitch(t *testing.T) {
	trusted := func(c *Config) { c.TrustedListeners = []string{"macvlan0"} }
	tests := map[string]struct {
		change   func(*Config)
		theirs   string
		up, back string
		renews   bool
	}{
		"by default":    {change: func(c *Config) { c.AgentOptions = nil }, theirs: ciscoAgent, up: ciscoAgent, back: ciscoAgent},
		"with the link": {theirs: ciscoAgent, up: ciscoAgent + "\x05\x04\xc0\x00\x02\x01", back: ciscoAgent},
		"a renewal": {
			theirs: ciscoAgent, renews: true,
			up: ciscoAgent + "\x05\x04\xc0\x00\x02\x32", back: ciscoAgent,
		},
		"an empty one":      {theirs: "", up: "\x05\x04\xc0\x00\x02\x01", back: "-"},
		"a link of its own": {theirs: "\x05\x04\xcb\x00\x71\x01", up: "\x05\x04\xcb\x00\x71\x01", back: "\x05\x04\xcb\x00\x71\x01"},
	}
	option := func(agent string) string {
		if agent == "-" {
			return "\xff"
		}
		return "\x52" + string(rune(len(agent))) + agent + "\xff"
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := renewBench(t, func(c *Config) {
				trusted(c)
				if test.change != nil {
					test.change(c)
				}
			})
			b.heard.trusted = true
			m, drop := b.hear(raw(dhcp.Discover, option(test.theirs)))
			kind := "\x35\x01\x01"
			if test.renews {
				m, drop = b.renew(option(test.theirs), yiaddr)
				kind = "\x35\x01\x03"
			}
			if drop != None {
				t.Fatal(drop)
			}
			if diff := cmp.Diff(kind+option(test.up), optionsOf(m)); diff != "" || m.Giaddr() != ourGiaddr {
				t.Errorf("giaddr %v, request (-want +got):\n%s", m.Giaddr(), diff)
			}
			reply, _, drop := b.answer(m)
			if diff := cmp.Diff(kind+option(test.back), optionsOf(reply)); diff != "" || drop != None {
				t.Errorf("got %v, reply (-want +got):\n%s", drop, diff)
			}
		})
	}
}

// TestGiaddrReasons: a loop, what no host can have, and what is not trusted are three things.
func TestGiaddrReasons(t *testing.T) {
	b := renewBench(t, tor)
	for giaddr, want := range map[[4]byte]Drop{
		ourGiaddr: Loop, {192, 0, 2, 1}: Loop, {192, 0, 2, 2}: Loop, {127, 0, 0, 1}: BadGiaddr, {224, 0, 0, 1}: BadGiaddr,
		{0, 0, 0, 5}: BadGiaddr, {203, 0, 113, 9}: UntrustedRelay,
	} {
		a := b.heard
		a.source = peer{wide([4]byte{203, 0, 113, 9}), serverPort}
		if _, drop := b.worker.request4(withGiaddr(raw(dhcp.Discover, "\xff"), giaddr), &a, b.targets, b.now()); drop != want {
			t.Errorf("%v: got %v, want %v", giaddr, drop, want)
		}
	}
}

// TestAgentIsAnsweredAtItsPort: at 67, or at the port that it sent from where it asks for that (RFC 8357).
func TestAgentIsAnsweredAtItsPort(t *testing.T) {
	tests := map[string]struct {
		port    uint16
		options string
		want    uint16
	}{
		"68":                    {port: 68, options: "\xff", want: serverPort},
		"49152":                 {port: 49152, options: "\xff", want: serverPort},
		"49152, and it says so": {port: 49152, options: "\x52\x02\x13\x00\xff", want: 49152},
	}
	for name, test := range tests {
		b := newBench(t, tor)
		m, drop := b.fromTor(raw(dhcp.Discover, test.options), test.port)
		if drop != None {
			t.Fatal(drop)
		}
		reply, o, drop := b.answer(m)
		if drop != None || o.from != (peer{wide(torGiaddr), test.want}) || optionsOf(reply) != "\x35\x01\x01"+test.options {
			t.Errorf("%s: got %v, to %v, %q", name, drop, o.from, optionsOf(reply))
		}
	}
}

// TestRepeatedRepliesAreBounded: four of a server and sixteen in all for each request that was relayed, which a
// repeated request is, too.
func TestRepeatedRepliesAreBounded(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	storm := func(m dhcp.Message, servers int) (passed int) {
		for n := range 10000 {
			reply := make(dhcp.Message, len(m), mmsg.SlotLen)
			copy(reply, m)
			reply[0] = byte(dhcp.OpReply)
			_, _, drop := reply4(b.worker, reply, netip.AddrFrom4([4]byte{10, 9, byte(n % servers), 10}), b.targets, b.now())
			switch drop {
			case None:
				passed++
			case ReplyLimit:
			default:
				t.Fatal(drop)
			}
		}
		return passed
	}
	for servers, want := range map[int]int{1: 4, 3: 12, 4: 16, 200: 16} {
		m, drop := b.hear(raw(dhcp.Discover, "\xff"))
		if drop != None {
			t.Fatal(drop)
		}
		if got := storm(m, servers); got != want {
			t.Errorf("%d servers: %d replies passed, want %d", servers, got, want)
		}
	}
	m, _ := b.hear(raw(dhcp.Request, "\xff")) // with the same xid
	if _, _, drop := b.answer(m); drop != None {
		t.Errorf("the next request's answer: %v", drop)
	}
	if n := strings.Count(log.String(), "dropped repeated replies"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// TestServersMaySendTwoOffers each, to each of a client's tries with one xid.
func TestServersMaySendTwoOffers(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Servers = []string{"10.9.0.10", "10.9.0.11", "10.9.0.12"} })
	for try := range 5 {
		m, _ := b.hear(raw(dhcp.Discover, "\xff"))
		for _, from := range []byte{10, 10, 11, 12} {
			reply := make(dhcp.Message, len(m), mmsg.SlotLen)
			copy(reply, m)
			reply[0] = byte(dhcp.OpReply)
			if _, _, drop := reply4(b.worker, reply, netip.AddrFrom4([4]byte{10, 9, 0, from}), b.targets, b.now()); drop != None {
				t.Errorf("try %d, server %d: %v", try, from, drop)
			}
		}
	}
}

// TestTokenThatDoesNotComeBack is told apart from forged ones and from what nobody asked for, and the server is not
// dead.
func TestTokenThatDoesNotComeBack(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t, func(c *Config) {
		c.TokenKey = []byte("0123456789abcdef")
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	s := b.servers.Servers()[0]
	for range 30 {
		m, _ := b.hear(raw(dhcp.Discover, "\xff"))
		b.worker.send(m, b.targets, b.now())
		if _, _, drop := b.answer(bytes.Clone(m.StripOption82())); drop != TokenMissing {
			t.Fatalf("got %v", drop)
		}
	}
	if s.Unanswered() != 0 {
		t.Errorf("%d requests count as unanswered", s.Unanswered())
	}
	for _, want := range []string{"dropped a reply without its token", "source=10.244.0.11 ", "does not echo option 82"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log does not say %q once: %s", want, log.String())
		}
	}
	m := raw(dhcp.Offer, "\xff")
	m[4] ^= 1 // an xid that was never asked
	if _, _, drop := b.answer(m); drop != Unsolicited {
		t.Errorf("unasked: got %v", drop)
	}
}

// TestTokenAmongSortedSubOptions: Kea answers with the sub-options in the order of their codes.
func TestTokenAmongSortedSubOptions(t *testing.T) {
	b := renewBench(t, func(c *Config) {
		c.TokenKey, c.AgentOptions = []byte("0123456789abcdef"), append(c.AgentOptions, RelayID)
	})
	m, _ := b.hear(raw(dhcp.Discover, "\xff"))
	agent, _ := m.Option(dhcp.OptionAgent)
	subs := map[byte][]byte{}
	for code, value, rest, ok := dhcp.NextSub(agent); ok; code, value, rest, ok = dhcp.NextSub(rest) {
		subs[code] = bytes.Clone(value)
	}
	var sorted []byte
	for code := range byte(255) {
		if value, found := subs[code]; found {
			sorted = dhcp.AppendSub(sorted, code, value)
		}
	}
	copy(agent, sorted)
	if bytes.HasSuffix(agent, subs[dhcp.SubVendor]) {
		t.Fatal("the token is the last")
	}
	if reply, _, drop := b.answer(m); drop != None || reply.HasOption82() {
		t.Errorf("got %v, option 82 %v", drop, reply.HasOption82())
	}
}

// TestReplyForNoHost: no frame goes to an address that no host can have.
func TestReplyForNoHost(t *testing.T) {
	for ip, want := range map[[4]byte]Drop{
		{0, 0, 0, 5}: BadAddress, {127, 0, 0, 1}: BadAddress, {224, 0, 0, 1}: BadAddress, {255, 255, 255, 255}: None, yiaddr: None, {}: None,
	} {
		b := newBench(t, nil)
		m, _ := b.hear(raw(dhcp.Discover, "\xff"))
		copy(m[16:], ip[:])
		if _, _, drop := b.answer(m); drop != want {
			t.Errorf("yiaddr %v: got %v, want %v", ip, drop, want)
		}
	}
}

// TestOptionIsTakenFromTheMiddle of a reply: what follows it stays.
func TestOptionIsTakenFromTheMiddle(t *testing.T) {
	b := renewBench(t, nil)
	m, _ := b.hear(raw(dhcp.Discover, "\xff"))
	reply := raw(dhcp.Offer, "\x52\x06\x05\x04\xc6\x33\x64\x01\x33\x04\x00\x00\x0e\x10\x36\x04\x0a\x09\x00\x0a\xff")
	copy(reply[4:8], m[4:8])
	got, _, drop := b.answer(reply)
	const want = "\x35\x01\x02\x33\x04\x00\x00\x0e\x10\x36\x04\x0a\x09\x00\x0a\xff"
	if drop != None || optionsOf(got) != want || len(got) < dhcp.PaddedLen {
		t.Errorf("got %v, %q", drop, optionsOf(got))
	}
}

// TestUnicastsDoNotAllocate: neither a renewal nor a request of another relay agent, with option 82 of its own.
func TestUnicastsDoNotAllocate(t *testing.T) {
	b := renewBench(t, func(c *Config) {
		tor(c)
		c.TokenKey = []byte("0123456789abcdef")
	})
	agents := raw(dhcp.Discover, "\x52\x0a\x01\x04\x00\x14\x00\x05\x02\x02\xab\xcd\xff")
	agents.SetGiaddr(torGiaddr)
	renewal := raw(dhcp.Request, "\xff")
	copy(renewal[12:], yiaddr[:])
	slot := make([]byte, mmsg.SlotLen)
	for name, request := range map[string]dhcp.Message{"agent": agents, "renewal": renewal} {
		a := arrival{listener: unicast, source: peer{wide(torGiaddr), serverPort}, local: wide(ourGiaddr)}
		if got := testing.AllocsPerRun(500, func() {
			m, drop := b.worker.request4(slot[:copy(slot, request)], &a, b.targets, b.now())
			if drop != None {
				t.Fatal(drop)
			}
			m[0] = byte(dhcp.OpReply)
			if _, _, drop := reply4(b.worker, m, b.targets.All[0].Addr.Addr(), b.targets, b.now()); drop != None {
				t.Fatal(drop)
			}
		}); got != 0 {
			t.Errorf("%s: got %v allocations", name, got)
		}
	}
}

// TestHiddenOption82: servers read options in file and sname where option 52 says that they are there (RFC 2132 section
// 9.3), so that a machine that hides option 82 there is a machine that brings it.
func TestHiddenOption82(t *testing.T) {
	const option82 = "\x52\x06\x01\x04evil\xff"
	for name, test := range map[string]struct {
		options     string
		file, sname string
		want        Drop
	}{
		"in file":                     {"\x34\x01\x01\xff", option82, "", UntrustedAgent},
		"in sname":                    {"\x34\x01\x02\xff", "", option82, UntrustedAgent},
		"behind another option":       {"\x34\x01\x03\xff", "\x43\x01a\x00" + option82, "", UntrustedAgent},
		"split over both":             {"\x34\x01\x03\xff", "\x52\x02\x01\x04\xff", "\x52\x04evil\xff", UntrustedAgent},
		"in file, and not overloaded": {"\xff", option82, "", None},
		"in sname, file overloaded":   {"\x34\x01\x01\xff", "", option82, None},
		"behind the end":              {"\x34\x01\x01\xff", "\xff" + option82, "", None},
		"an option that is cut off":   {"\x34\x01\x01\xff", "\x43\xff", "", None},
	} {
		for _, kind := range []dhcp.Type{dhcp.Discover, dhcp.Request} {
			b := newBench(t, tor)
			m := raw(kind, test.options)
			copy(m[108:236], test.file)
			copy(m[44:108], test.sname)
			a := b.heard
			if _, drop := b.worker.request4(m, &a, b.targets, b.now()); drop != test.want {
				t.Errorf("%s, %v: got %v, want %v", name, kind, drop, test.want)
			}
		}
	}
}
