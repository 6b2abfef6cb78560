package relay

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// TestOption82 compares the server's view of requests with option 82, and the client's of replies that echo it. An option
// that is there already stays as it is.
func TestOption82(t *testing.T) {
	const ours, theirs = "\x52\x0a\x01\x08macvlan0", "\x52\x03\x01\x01x"
	circuit := []SubOption{CircuitID}
	tests := map[string]struct {
		options        []SubOption
		giaddr, agent  bool
		request, reply string // what stands for option 82 in each
	}{
		"plain":                        {options: circuit, request: ours},
		"giaddr":                       {options: circuit, giaddr: true},
		"giaddr and agent":             {options: circuit, giaddr: true, agent: true, request: theirs, reply: theirs},
		"agent on trusted":             {options: circuit, agent: true, request: theirs, reply: theirs},
		"nothing configured, plain":    {request: ""},
		"nothing configured, relayed":  {giaddr: true},
		"nothing configured, and both": {giaddr: true, agent: true, request: theirs, reply: theirs},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) {
				c.TrustedListeners, c.AgentOptions = []string{"macvlan0"}, test.options
			})
			b.heard.trusted = true
			var options []byte
			if test.agent {
				options = []byte(theirs)
			}
			m := message(dhcp.OpRequest, byte(dhcp.Discover), options...)
			if test.giaddr {
				m.SetGiaddr(theirGiaddr)
			}
			got, drop := b.hear(m)
			if drop != None {
				t.Fatal(drop)
			}
			want := append([]byte{53, 1, 1}, test.request...)
			want = append(append(want, 255), make([]byte, 300)...)[:60]
			if diff := cmp.Diff(want, []byte(got[240:])); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
			reply, _, drop := b.answer(got)
			if drop != None {
				t.Fatalf("reply: got %v", drop)
			}
			want = append([]byte{53, 1, 1}, test.reply...)
			want = append(append(want, 255), make([]byte, 300)...)[:60]
			if diff := cmp.Diff(want, []byte(reply[240:])); diff != "" {
				t.Errorf("reply (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStripLeavesTheirs: the server echoed a part of option 82, or split it.
func TestStripLeavesTheirs(t *testing.T) {
	const link = "\x05\x04\xc0\x00\x02\x01"
	const ours, theirs, joined = "\x52\x06" + link, "\x52\x0a\x01\x08circuit1", "\x52\x10\x01\x08circuit1" + link
	for name, echoed := range map[string]string{
		"theirs": theirs, "split": theirs + ours, "whole": joined, "twice": joined + joined,
	} {
		b := renewBench(t, func(c *Config) { c.TrustedListeners = []string{"macvlan0"} })
		b.heard.trusted = true
		if m, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover), []byte(theirs)...)); !bytes.Contains(m, []byte(joined)) {
			t.Fatal("ours was not added")
		}
		out, _, drop := b.answer(message(dhcp.OpReply, byte(dhcp.Offer), []byte(echoed)...))
		if v, _ := out.Option(dhcp.OptionAgent); drop != None || string(v) != theirs[2:] || bytes.Contains(out, []byte(link)) {
			t.Errorf("%s: got %v %q", name, drop, v)
		}
	}
}

// TestSubOptions is every sub-option.
func TestSubOptions(t *testing.T) {
	config := Config{AgentOptions: []SubOption{CircuitID, RemoteID, LinkSelection, RelayID}}
	own := [4]byte{192, 0, 2, 9}
	got := config.agentOf(Listener{Name: "vlan7"}, testMAC, own)
	want := "\x01\x05vlan7" + "\x02\x06\x02\x00\x00\x00\x00\x01" + "\x05\x04\xc0\x00\x02\x09" +
		"\x0c\x0a\x00\x03\x00\x01\x02\x00\x00\x00\x00\x01"
	if diff := cmp.Diff([]byte(want), got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	got = config.agentOf(Listener{Name: "vlan7", LinkAddress: netip.MustParseAddr("198.51.100.1")}, testMAC, own)
	want = strings.Replace(want, "\x05\x04\xc0\x00\x02\x09", "\x05\x04\xc6\x33\x64\x01", 1)
	if diff := cmp.Diff([]byte(want), got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

// TestTrap04OptionThatDoesNotFit is forwarded without, and counted.
func TestTrap04OptionThatDoesNotFit(t *testing.T) {
	agent := func(c *Config) { c.AgentOptions = []SubOption{CircuitID} }
	long := append([]byte{57, 2, 2, 64}, bytes.Repeat([]byte{200, 80}, 1)...) // option 57: 576 bytes
	long = append(long, make([]byte, 80)...)
	for len(long) < 576-240-4-12+1 {
		long = append(long, 0)
	}
	tests := map[string]struct {
		options []byte
		mtu     int
		added   bool
	}{
		"fits":                       {mtu: 1500, added: true},
		"too long for the client":    {options: append(long, 201, 0), mtu: 1500},
		"too long for the interface": {mtu: 240 + 4 + 12 + 28 - 1},
		"just fits the interface":    {mtu: 240 + 4 + 12 + 28, added: true},
		"cut off":                    {options: []byte{61, 250}, mtu: 1500},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, agent)
			b.targets.MTU = test.mtu
			got, drop := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover), test.options...))
			if drop != None || got.HasOption82() != test.added {
				t.Errorf("got %v and option 82 %v, want %v", drop, got.HasOption82(), test.added)
			}
			// What was not added is not taken out of the reply either.
			if _, o, _ := b.answer(got); (o.added != 0) != test.added {
				t.Errorf("origin says added %v", o.added)
			}
		})
	}
}

// TestTrap25Token: a reply is known by its token where no request is pending.
func TestTrap25Token(t *testing.T) {
	secret := func(key string) func(*Config) {
		return func(c *Config) {
			c.TokenKey = []byte(key)
			c.AgentOptions = []SubOption{CircuitID}
		}
	}
	first := newBench(t, secret("0123456789abcdef"))
	heard, _ := first.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	request := bytes.Clone(heard)
	tests := map[string]struct {
		key    string
		change func(dhcp.Message) dhcp.Message
		want   Drop
	}{
		"another replica":  {key: "0123456789abcdef"},
		"another key":      {key: "0123456789abcdeF", want: Unsolicited},
		"another xid":      {key: "0123456789abcdef", want: Unsolicited, change: set(4)},
		"another chaddr":   {key: "0123456789abcdef", want: Unsolicited, change: set(33)},
		"not echoed":       {key: "0123456789abcdef", want: Unsolicited, change: dhcp.Message.StripOption82},
		"a forged origin":  {key: "0123456789abcdef", want: Unsolicited, change: forge},
		"without any keys": {want: Unsolicited},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			second := newBench(t, secret(test.key))
			m := dhcp.Message(bytes.Clone(request))
			if test.change != nil {
				m = test.change(m)
			}
			reply, o, drop := second.answer(m)
			if drop != test.want {
				t.Fatalf("got %v, want %v", drop, test.want)
			}
			if drop == None && (o.listener != 0 || reply.HasOption82()) {
				t.Errorf("got %+v, option 82 %v", o, reply.HasOption82())
			}
		})
	}
	if _, ok := newSigner([]byte("0123456789abcdef")).read4(request, first.unix(first.now())+100, 11); ok {
		t.Error("an old token is good")
	}
}

// set changes one byte.
func set(at int) func(dhcp.Message) dhcp.Message {
	return func(m dhcp.Message) dhcp.Message { return changed(m, at, 1) }
}

// forge changes the listener in the token.
func forge(m dhcp.Message) dhcp.Message {
	token, _ := findToken(m)
	token[6]++
	return m
}

// TestTrap25TokenIsRequired where one was sent: xid and chaddr of a pending request can be guessed.
func TestTrap25TokenIsRequired(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TokenKey = []byte("0123456789abcdef") })
	request, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	with := bytes.Clone(request)
	without := dhcp.Message(bytes.Clone(request)).StripOption82()
	forged := dhcp.Message(bytes.Clone(request))
	token, _ := findToken(forged)
	token[tokenLen4-1]++
	for name, test := range map[string]struct {
		m    dhcp.Message
		want Drop
	}{"without": {without, TokenMissing}, "forged": {forged, BadToken}, "with": {with, None}} {
		if _, _, drop := b.answer(test.m); drop != test.want {
			t.Errorf("%s token: got %v, want %v", name, drop, test.want)
		}
	}
	// There was no room for one.
	b.targets.MTU = len(message(dhcp.OpRequest, byte(dhcp.Discover))) + ipAndUDP
	full, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	if full.HasOption82() {
		t.Fatal("there was room")
	}
	if _, _, drop := b.answer(full); drop != None {
		t.Errorf("a request without a token: %v", drop)
	}
}

// TestTraceHasNoTokens: whoever is handed a trace cannot answer what is pending in it.
func TestTraceHasNoTokens(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TokenKey = []byte("0123456789abcdef") })
	request, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	token, found := findToken(request)
	if !found {
		t.Fatal("no token")
	}
	code := token[tokenLen4-tokenCode:]
	b.trace.Payload(0, (peer{}).addrPort(), (peer{}).addrPort(), request)
	b.trace.Payload(0, (peer{}).addrPort(), (peer{}).addrPort(), request)
	var pcap bytes.Buffer
	if err := trace.Write(&pcap, nil, b.Trace()); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(pcap.Bytes(), code) || !bytes.Contains(pcap.Bytes(), token[:tokenLen4-tokenCode]) {
		t.Error("the code of a token is in the trace, or more than that is missing")
	}
}
