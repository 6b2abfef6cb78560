package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

var (
	ourGiaddr   = [4]byte{10, 244, 0, 10}
	theirGiaddr = [4]byte{203, 0, 113, 1}
	testMAC     = frame.MAC{2, 0, 0, 0, 0, 1}
)

// bench is a relay without sockets, and a listener's worker.
type bench struct {
	*Relay
	worker  *worker
	targets *server.Targets
	heard   arrival
}

// assembled is a relay of a configuration that is changed, whose servers all have one address.
func assembled(
	tb testing.TB, config *Config, change func(*Config), source netip.Addr, address netip.AddrPort,
) (*Relay, *server.Targets) {
	tb.Helper()
	if change != nil {
		change(config)
	}
	if err := config.Validate(); err != nil {
		tb.Fatal(err)
	}
	r, err := assemble(config.withDefaults())
	if err != nil {
		tb.Fatal(err)
	}
	to := &server.Targets{Source: source, MTU: 1500}
	for _, s := range r.servers.Servers() {
		to.All = append(to.All, server.Target{Addr: address, Server: s})
	}
	r.targets.Store(to)
	return r, to
}

func newBench(tb testing.TB, change func(*Config)) *bench {
	tb.Helper()
	config := Config{
		Listeners:     []Listener{{Name: "macvlan0"}},
		Servers:       []string{"10.244.0.11"},
		TrustedRelays: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		Limits:        Limits{ClientRate: -1, TotalRate: -1},
	}
	r, to := assembled(tb, &config, change, netip.AddrFrom4(ourGiaddr), netip.MustParseAddrPort("10.244.0.11:67"))
	b := &bench{Relay: r, worker: newWorker(r, 0), targets: to}
	b.heard = arrival{link: &link{options: r.config.agentOf(Listener{Name: "macvlan0"}, testMAC, [4]byte{})}}
	return b
}

// hear relays a request that was heard on the listener, from the router at 203.0.113.1 if it has a giaddr.
func (b *bench) hear(m dhcp.Message) (dhcp.Message, Drop) {
	a := b.heard
	if len(m) > 28 && m.Giaddr() != ([4]byte{}) {
		a.source.ip = wide(theirGiaddr)
	}
	return b.worker.request4(m, &a, b.targets, b.now())
}

// answer is the server's reply to a request: the request turned around, with whatever options it had.
func (b *bench) answer(m dhcp.Message) (dhcp.Message, origin, Drop) {
	reply := make(dhcp.Message, len(m), mmsg.SlotLen)
	copy(reply, m)
	reply[0] = byte(dhcp.OpReply)
	return reply4(b.worker, reply, netip.AddrFrom4([4]byte{10, 244, 0, 11}), b.targets, b.now())
}

func withGiaddr(m dhcp.Message, giaddr [4]byte) dhcp.Message {
	m.SetGiaddr(giaddr)
	return m
}

func changed(m dhcp.Message, at int, values ...byte) dhcp.Message {
	copy(m[at:], values)
	return m
}

// TestNegative is bad input by the names of sonic-mgmt's negative tests and of the table in cmd/dhcp-relay/TRAPS.md.
func TestNegative(t *testing.T) {
	request := func(options ...byte) dhcp.Message { return message(dhcp.OpRequest, byte(dhcp.Discover), options...) }
	hops16 := func(c *Config) { c.MaxHops = 16 }
	noTrust := func(c *Config) { c.TrustedRelays = nil }
	trusted := func(c *Config) { c.TrustedListeners = []string{"macvlan0"} }
	tests := map[string]struct {
		m      dhcp.Message
		change func(*Config)
		want   Drop
	}{
		"trap 1, hops at the limit":      {m: changed(request(), 3, 4), want: HopLimit},
		"trap 1, hops below the limit":   {m: changed(request(), 3, 3)},
		"trap 1, hops 15 of 16":          {m: changed(request(), 3, 15), change: hops16},
		"trap 1, hops 16 of 16":          {m: changed(request(), 3, 16), change: hops16, want: HopLimit},
		"trap 1, hops 255":               {m: changed(request(), 3, 255), want: HopLimit},
		"trap 2, giaddr of another":      {m: withGiaddr(request(), theirGiaddr)},
		"trap 2, our giaddr":             {m: withGiaddr(request(), ourGiaddr), want: Loop},
		"trap 2, untrusted":              {m: withGiaddr(request(), theirGiaddr), change: noTrust, want: UntrustedRelay},
		"trap 3, option 82 of a client":  {m: request(82, 3, 1, 1, 'x'), want: UntrustedAgent},
		"trap 3, on a trusted listener":  {m: request(82, 3, 1, 1, 'x'), change: trusted},
		"trap 13, hlen 17":               {m: changed(request(), 2, 17), want: BadHlen},
		"trap 13, op 0":                  {m: changed(request(), 0, 0), want: BadOp},
		"trap 13, op 255":                {m: changed(request(), 0, 255), want: BadOp},
		"trap 13, short":                 {m: request()[:235], want: ShortMessage},
		"trap 13, empty":                 {m: dhcp.Message{}, want: ShortMessage},
		"trap 13, bad magic":             {m: changed(request(), 236, 1, 2, 3, 4)},
		"trap 13, no magic":              {m: changed(request(), 236, 0, 0, 0, 0)},
		"trap 22, no end":                {m: request()[:243]},
		"trap 22, option beyond the end": {m: request(61, 250)},
		"trap 22, split options":         {m: request(12, 1, 'a', 12, 1, 'b')},
		"trap 22, overload":              {m: request(52, 1, 3)},
		"unknown type":                   {m: changed(request(), 242, 99)},
		"a server's reply on the VLAN":   {m: message(dhcp.OpReply, byte(dhcp.Offer)), want: ReplyFromClient},
		"trap 23, PXE options stay": {
			m: request(93, 2, 0, 7, 94, 3, 1, 2, 1, 97, 1, 0, 43, 3, 6, 1, 8, 60, 1, 'P'),
		},
		"trap 21, exactly the fixed fields": {m: request()[:236]},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.change)
			b.heard.trusted = len(b.config.TrustedListeners) > 0
			before := bytes.Clone(test.m)
			got, drop := b.hear(test.m)
			if drop != test.want {
				t.Fatalf("got %v, want %v", drop, test.want)
			}
			if drop != None {
				if b.pending.Len() != 0 {
					t.Error("a dropped request is pending")
				}
				return
			}
			// Every byte stays but hops, an empty giaddr, and the padding to 300 bytes.
			want := make([]byte, max(300, len(before)))
			copy(want, before)
			want[3]++
			if bytes.Equal(want[24:28], make([]byte, 4)) {
				copy(want[24:], ourGiaddr[:])
			}
			if diff := cmp.Diff(want, []byte(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNoRoute: without a server or an address to be answered at nothing is relayed, and nothing pends.
func TestNoRoute(t *testing.T) {
	b := newBench(t, nil)
	b.targets = &server.Targets{}
	if _, drop := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover))); drop != NoServer {
		t.Errorf("got %v", drop)
	}
	b.targets = &server.Targets{All: []server.Target{{}}}
	if _, drop := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover))); drop != NoGiaddr {
		t.Errorf("got %v", drop)
	}
}

// TestTrap24ClearGiaddr is for firmware that takes giaddr for a gateway.
func TestTrap24ClearGiaddr(t *testing.T) {
	for _, clear := range []bool{false, true} {
		b := newBench(t, func(c *Config) { c.ClearGiaddr = clear })
		request, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
		reply, _, _ := b.answer(request)
		if got := reply.Giaddr() == [4]byte{}; got != clear {
			t.Errorf("got giaddr %v", reply.Giaddr())
		}
	}
}

// TestUnicastTakesTheAgentsPlace: upstream giaddr is ours, and the agent's is restored.
func TestUnicastTakesTheAgentsPlace(t *testing.T) {
	b := newBench(t, nil)
	asked := arrival{listener: unicast, source: peer{wide([4]byte{203, 0, 113, 200}), 6767}, local: wide([4]byte{192, 0, 2, 2})}
	m := withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover)), theirGiaddr)
	got, drop := b.worker.request4(m, &asked, b.targets, b.now())
	if drop != None || got.Giaddr() != ourGiaddr {
		t.Fatalf("got %v, giaddr %v", drop, got.Giaddr())
	}
	reply, o, drop := b.answer(got)
	if drop != None || reply.Giaddr() != theirGiaddr || o.from != asked.source || o.local != asked.local {
		t.Errorf("got %v, giaddr %v, origin %+v", drop, reply.Giaddr(), o)
	}
}

// TestTrustedServers: prefixes narrow who may answer.
func TestTrustedServers(t *testing.T) {
	b := newBench(t, func(c *Config) { c.TrustedServers = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")} })
	request, _ := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	if _, _, drop := b.answer(request); drop != UntrustedServer {
		t.Errorf("got %v", drop)
	}
}

// TestDoesNotAllocate: the whole way of a transaction through the policy, with option 82, token, limits and events.
func TestDoesNotAllocate(t *testing.T) {
	events := 0
	b := newBench(t, func(c *Config) {
		c.Event = func(*boot.Event) { events++ }
		c.AgentOptions = []SubOption{CircuitID, RemoteID}
		c.TokenKey = []byte("0123456789abcdef")
		c.ClientRate, c.TotalRate = 1<<20, 1<<30
	})
	request := message(dhcp.OpRequest, byte(dhcp.Discover))
	slot, reply := make([]byte, mmsg.SlotLen), make([]byte, mmsg.SlotLen)
	n := uint32(0)
	got := testing.AllocsPerRun(2000, func() {
		n++
		copy(slot, request)
		binary.BigEndian.PutUint32(slot[4:], n)
		m, drop := b.worker.request4(dhcp.Message(slot[:len(request)]), &b.heard, b.targets, b.now())
		if drop != None {
			t.Fatal(drop)
		}
		tellArrived(b.worker, m, &b.heard, b.targets, b.now(), drop)
		b.worker.send(m, b.targets, b.now())
		b.worker.sender.Clear()
		copy(reply, m)
		reply[0] = byte(dhcp.OpReply)
		from := b.targets.All[0].Addr.Addr()
		answer, o, drop := reply4(b.worker, dhcp.Message(reply[:len(m)]), from, b.targets, b.now())
		if drop != None {
			t.Fatal(drop)
		}
		tellBack(b.worker, answer, &o, b.targets.All[0].Addr, b.now(), drop)
	})
	if events != 2*2001 { // and one to warm up
		t.Errorf("told of %d messages", events)
	}
	if got != 0 {
		t.Errorf("got %v allocations per transaction", got)
	}
}

// BenchmarkTransaction is a request and its reply through the policy, without system calls.
func BenchmarkTransaction(tb *testing.B) {
	b := newBench(tb, nil)
	request := message(dhcp.OpRequest, byte(dhcp.Discover))
	slot := make([]byte, mmsg.SlotLen)
	n := uint32(0)
	tb.ReportAllocs()
	for tb.Loop() {
		n++
		copy(slot, request)
		binary.BigEndian.PutUint32(slot[4:], n)
		m, _ := b.worker.request4(dhcp.Message(slot[:len(request)]), &b.heard, b.targets, int64(n))
		b.worker.send(m, b.targets, int64(n))
		b.worker.sender.Clear()
		m[0] = byte(dhcp.OpReply)
		if _, _, drop := reply4(b.worker, m, b.targets.All[0].Addr.Addr(), b.targets, int64(n)); drop != None {
			tb.Fatal(drop)
		}
	}
}

// TestReplyWithoutPaddingOfChaddr: Smee parses and rebuilds, and copies no more than hlen bytes of chaddr.
func TestReplyWithoutPaddingOfChaddr(t *testing.T) {
	for _, key := range []string{"", "0123456789abcdef"} {
		b := newBench(t, func(c *Config) { c.TokenKey = []byte(key) })
		m := message(dhcp.OpRequest, byte(dhcp.Discover))
		copy(m[28+6:], "firmware")
		heard, drop := b.hear(m)
		if drop != None {
			t.Fatal(drop)
		}
		if got := string(heard[28+6 : 28+6+8]); got != "firmware" {
			t.Errorf("the server gets chaddr with %q", got)
		}
		request, err := dhcpv4.FromBytes(bytes.Clone(heard))
		if err != nil {
			t.Fatal(err)
		}
		reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, drop := b.answer(reply.ToBytes()); drop != None {
			t.Errorf("key %q: the answer is dropped: %v", key, drop)
		}
	}
}

// TestTrap02GiaddrOutsideTrustedIsNoReflector: a machine on the VLAN forges a trusted source, and has the server answer
// somebody else. What is sent to us is answered by way of us.
func TestTrap02GiaddrOutsideTrustedIsNoReflector(t *testing.T) {
	b := newBench(t, nil)
	elsewhere := [4]byte{198, 51, 100, 8}
	a := b.heard
	a.source.ip = wide(theirGiaddr)
	m := withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover)), elsewhere)
	if _, drop := b.worker.request4(m, &a, b.targets, 1); drop != UntrustedRelay {
		t.Errorf("heard: got %v", drop)
	}
	a.listener = unicast
	m = withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover)), elsewhere)
	if m, drop := b.worker.request4(m, &a, b.targets, 1); drop != None || m.Giaddr() != ourGiaddr {
		t.Errorf("sent to us: got %v, giaddr %v", drop, m.Giaddr())
	}
}

// TestTrap02OwnAddressesAreLoops: not giaddr alone, but every address by which this relay is known.
func TestTrap02OwnAddressesAreLoops(t *testing.T) {
	b := newBench(t, func(c *Config) { c.SourceAddress = netip.MustParseAddr("203.0.113.9") })
	b.vlans[0].SetOpened(&listener.Opened[link]{Info: link{address: wide([4]byte{203, 0, 113, 8})}})
	for own, want := range map[[4]byte]Drop{
		ourGiaddr: Loop, {203, 0, 113, 9}: Loop, {203, 0, 113, 8}: Loop, {203, 0, 113, 7}: None,
	} {
		if _, drop := b.hear(withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover)), own)); drop != want {
			t.Errorf("giaddr %v: got %v, want %v", own, drop, want)
		}
	}
}

// TestUnansweredCountsWhatComesBackHere: a server is not dead because nobody answers a RELEASE or a DECLINE, or because
// it answers another relay agent past us.
func TestUnansweredCountsWhatComesBackHere(t *testing.T) {
	b := newBench(t, nil)
	s := b.servers.Servers()[0]
	for _, step := range []struct {
		what string
		m    dhcp.Message
		want int64
	}{
		{"another relay's", withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover)), theirGiaddr), 0},
		{"a RELEASE", message(dhcp.OpRequest, byte(dhcp.Release)), 0},
		{"a DECLINE", message(dhcp.OpRequest, byte(dhcp.Decline)), 0},
		{"a DISCOVER", message(dhcp.OpRequest, byte(dhcp.Discover)), 1},
		{"a REQUEST", message(dhcp.OpRequest, 3), 2},
	} {
		m, drop := b.hear(step.m)
		if drop != None {
			t.Fatalf("%s: %v", step.what, drop)
		}
		b.worker.send(m, b.targets, 1)
		if got := s.Unanswered(); got != step.want {
			t.Errorf("after %s: %d unanswered, want %d", step.what, got, step.want)
		}
	}
}
