package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

var (
	ourGiaddr   = [4]byte{10, 244, 0, 10}
	theirGiaddr = [4]byte{203, 0, 113, 1}
	testMAC     = frame.MAC{2, 0, 0, 0, 0, 1}
)

// bench is a relay without sockets, and a listener's desk.
type bench struct {
	*Relay
	desk   *desk
	routes *routes
	heard  arrival
}

func newBench(tb testing.TB, change func(*Config)) *bench {
	tb.Helper()
	config := Config{
		Listeners:     []Listener{{Name: "macvlan0"}},
		Servers:       []string{"10.244.0.11"},
		TrustedRelays: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		ClientRate:    -1,
		TotalRate:     -1,
	}
	if change != nil {
		change(&config)
	}
	if err := config.Validate(); err != nil {
		tb.Fatal(err)
	}
	r, err := assemble(config.withDefaults())
	if err != nil {
		tb.Fatal(err)
	}
	to := &routes{giaddr: ourGiaddr, mtu: 1500}
	for _, s := range r.health.servers {
		to.targets = append(to.targets, target{peer: peer{ip: [4]byte{10, 244, 0, 11}, port: 67}, server: s})
	}
	r.routes.Store(to)
	b := &bench{Relay: r, desk: newDesk(r, 0, "macvlan0"), routes: to}
	b.heard = arrival{agent: r.config.agentOf(Listener{Name: "macvlan0"}, testMAC, [4]byte{})}
	return b
}

// hear relays a request that was heard on the listener, from the router at 203.0.113.1 if it has a giaddr.
func (b *bench) hear(m dhcp.Message) (dhcp.Message, Drop) {
	a := b.heard
	if len(m) > 28 && m.Giaddr() != ([4]byte{}) {
		a.source.ip = theirGiaddr
	}
	return b.desk.request(m, &a, b.routes, b.now())
}

// answer is the server's reply to a request: the request turned around, with whatever options it had.
func (b *bench) answer(m dhcp.Message) (dhcp.Message, origin, Drop) {
	reply := make(dhcp.Message, len(m), slotLen)
	copy(reply, m)
	reply[0] = byte(dhcp.Reply)
	return b.desk.reply(reply, peer{ip: [4]byte{10, 244, 0, 11}, port: 67}, b.routes, b.now())
}

func withGiaddr(m dhcp.Message, giaddr [4]byte) dhcp.Message {
	m.SetGiaddr(giaddr)
	return m
}

func changed(m dhcp.Message, at int, values ...byte) dhcp.Message {
	copy(m[at:], values)
	return m
}

// TestNegative is bad input by the names of sonic-mgmt's negative tests and of the table in docs/dhcp-relay.md.
func TestNegative(t *testing.T) {
	request := func(options ...byte) dhcp.Message { return message(dhcp.Request, byte(dhcp.Discover), options...) }
	hops16 := func(c *Config) { c.MaxHops = 16 }
	noTrust := func(c *Config) { c.TrustedRelays = nil }
	discard := func(c *Config) { c.PresentGiaddr = Discard }
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
		"trap 2, discard":                {m: withGiaddr(request(), theirGiaddr), change: discard, want: AgentRefused},
		"trap 3, option 82 of a client":  {m: request(82, 3, 1, 1, 'x'), want: UntrustedAgent},
		"trap 3, on a trusted listener":  {m: request(82, 3, 1, 1, 'x'), change: trusted},
		"trap 13, hlen 17":               {m: changed(request(), 2, 17), want: BadHlen},
		"trap 13, op 0":                  {m: changed(request(), 0, 0), want: BadOp},
		"trap 13, op 255":                {m: changed(request(), 0, 255), want: BadOp},
		"trap 13, short":                 {m: request()[:235], want: ShortMessage},
		"trap 13, empty":                 {m: dhcp.Message{}, want: ShortMessage},
		"trap 13, bad magic":             {m: changed(request(), 236, 1, 2, 3, 4), want: BadMagic},
		"trap 13, no magic":              {m: changed(request(), 236, 0, 0, 0, 0)},
		"trap 22, no end":                {m: request()[:243]},
		"trap 22, option beyond the end": {m: request(61, 250)},
		"trap 22, split options":         {m: request(12, 1, 'a', 12, 1, 'b')},
		"trap 22, overload":              {m: request(52, 1, 3)},
		"unknown type":                   {m: changed(request(), 242, 99)},
		"a server's reply on the VLAN":   {m: message(dhcp.Reply, byte(dhcp.Offer)), want: ReplyFromClient},
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
				if b.pending.live != 0 {
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
	b.routes = &routes{}
	if _, drop := b.hear(message(dhcp.Request, byte(dhcp.Discover))); drop != NoServer {
		t.Errorf("got %v", drop)
	}
	b.routes = &routes{targets: []target{{}}}
	if _, drop := b.hear(message(dhcp.Request, byte(dhcp.Discover))); drop != NoGiaddr {
		t.Errorf("got %v", drop)
	}
}

// TestPresentGiaddrAction is the matrix of the four modes: what the server sees, and what the client gets when the
// server echoes option 82.
func TestPresentGiaddrAction(t *testing.T) {
	const ours, theirs = "\x52\x04\x01\x02me", "\x52\x03\x01\x01x"
	tests := map[string]struct {
		action         Action
		giaddr, agent  bool
		request, reply string // what stands for option 82 in each
		drop           Drop
	}{
		"forward, plain":               {action: Forward, request: ours},
		"forward, giaddr":              {action: Forward, giaddr: true},
		"forward, giaddr and agent":    {action: Forward, giaddr: true, agent: true, request: theirs, reply: theirs},
		"append, plain":                {action: Append, request: ours},
		"append, giaddr":               {action: Append, giaddr: true, request: ours},
		"append, giaddr and agent":     {action: Append, giaddr: true, agent: true, request: theirs + ours, reply: theirs},
		"replace, plain":               {action: Replace, request: ours},
		"replace, giaddr":              {action: Replace, giaddr: true, request: ours},
		"replace, giaddr and agent":    {action: Replace, giaddr: true, agent: true, request: ours},
		"discard, plain":               {action: Discard, request: ours},
		"discard, giaddr":              {action: Discard, giaddr: true, drop: AgentRefused},
		"discard, giaddr and agent":    {action: Discard, giaddr: true, agent: true, drop: AgentRefused},
		"forward, agent on trusted":    {action: Forward, agent: true, request: theirs, reply: theirs},
		"replace, agent on trusted":    {action: Replace, agent: true, request: ours},
		"append, agent on trusted":     {action: Append, agent: true, request: theirs + ours, reply: theirs},
		"discard, agent on trusted":    {action: Discard, agent: true, drop: AgentRefused},
		"nothing configured, plain":    {action: "", request: ""},
		"nothing configured, relayed":  {action: "", giaddr: true},
		"nothing configured, and both": {action: "", giaddr: true, agent: true, request: theirs, reply: theirs},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) {
				c.TrustedListeners = []string{"macvlan0"}
				c.PresentGiaddr = test.action
				if test.action != "" {
					c.Agent = Agent{Options: []SubOption{CircuitID}, CircuitID: "me"}
				}
			})
			b.heard.trusted = true
			var options []byte
			if test.agent {
				options = []byte(theirs)
			}
			m := message(dhcp.Request, byte(dhcp.Discover), options...)
			if test.giaddr {
				m.SetGiaddr(theirGiaddr)
			}
			got, drop := b.hear(m)
			if drop != test.drop {
				t.Fatalf("got %v, want %v", drop, test.drop)
			}
			if drop != None {
				return
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

// TestSubOptions is every sub-option with its default and with a value.
func TestSubOptions(t *testing.T) {
	all := []SubOption{CircuitID, RemoteID, LinkSelection, SubscriberID, RelayID, ServerIDOverride}
	config := Config{Agent: Agent{Options: all, SubscriberID: "rack7"}}
	own := [4]byte{192, 0, 2, 9}
	got := config.agentOf(Listener{Name: "vlan7"}, testMAC, own)
	want := "\x01\x05vlan7" + "\x02\x06\x02\x00\x00\x00\x00\x01" + "\x05\x04\xc0\x00\x02\x09" + "\x06\x05rack7" +
		"\x0c\x0a\x00\x03\x00\x01\x02\x00\x00\x00\x00\x01" + "\x0b\x04\xc0\x00\x02\x09" + "\x0a\x01\x00"
	if diff := cmp.Diff([]byte(want), got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	config.SourceAddress = netip.MustParseAddr("192.0.2.2")
	config.Agent.CircuitID, config.Agent.RemoteID, config.Agent.RelayID = "c", "r", []byte{0, 2, 1}
	got = config.agentOf(Listener{Name: "vlan7", LinkAddress: netip.MustParseAddr("198.51.100.1")}, testMAC, own)
	want = "\x01\x01c\x02\x01r" + "\x05\x04\xc6\x33\x64\x01" + "\x06\x05rack7" + "\x0c\x03\x00\x02\x01" +
		"\x0b\x04\xc0\x00\x02\x02" + "\x0a\x01\x00"
	if diff := cmp.Diff([]byte(want), got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	got = config.agentOfUnicast(nil, theirGiaddr)
	want = "\x05\x04\xcb\x00\x71\x01" + "\x06\x05rack7" + "\x0c\x03\x00\x02\x01" + "\x0a\x01\x80"
	if diff := cmp.Diff([]byte(want), got); diff != "" {
		t.Errorf("unicast (-want +got):\n%s", diff)
	}
}

// TestTrap04OptionThatDoesNotFit is forwarded without, and counted.
func TestTrap04OptionThatDoesNotFit(t *testing.T) {
	agent := func(c *Config) { c.Agent = Agent{Options: []SubOption{CircuitID}, CircuitID: "me"} }
	long := append([]byte{57, 2, 2, 64}, bytes.Repeat([]byte{200, 80}, 1)...) // option 57: 576 bytes
	long = append(long, make([]byte, 80)...)
	for len(long) < 576-240-4-6+1 {
		long = append(long, 0)
	}
	tests := map[string]struct {
		options []byte
		mtu     int
		added   bool
	}{
		"fits":                       {mtu: 1500, added: true},
		"too long for the client":    {options: append(long, 201, 0), mtu: 1500},
		"too long for the interface": {mtu: 240 + 4 + 6 + 28 - 1},
		"just fits the interface":    {mtu: 240 + 4 + 6 + 28, added: true},
		"cut off":                    {options: []byte{61, 250}, mtu: 1500},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, agent)
			b.routes.mtu = test.mtu
			got, drop := b.hear(message(dhcp.Request, byte(dhcp.Discover), test.options...))
			if drop != None || got.HasAgent() != test.added {
				t.Errorf("got %v and option 82 %v, want %v", drop, got.HasAgent(), test.added)
			}
			// What was not added is not taken out of the reply either.
			if _, o, _ := b.answer(got); o.added != test.added {
				t.Errorf("origin says added %v", o.added)
			}
		})
	}
}

// TestTrap24ClearGiaddr is for firmware that takes giaddr for a gateway.
func TestTrap24ClearGiaddr(t *testing.T) {
	for _, clear := range []bool{false, true} {
		b := newBench(t, func(c *Config) { c.ClearGiaddr = clear })
		request, _ := b.hear(message(dhcp.Request, byte(dhcp.Discover)))
		reply, _, _ := b.answer(request)
		if got := reply.Giaddr() == [4]byte{}; got != clear {
			t.Errorf("got giaddr %v", reply.Giaddr())
		}
	}
}

// TestTrap25Token: a reply is known by its token where no request is pending.
func TestTrap25Token(t *testing.T) {
	secret := func(key string) func(*Config) {
		return func(c *Config) {
			c.TokenKey = []byte(key)
			c.Agent = Agent{Options: []SubOption{CircuitID}}
		}
	}
	first := newBench(t, secret("0123456789abcdef"))
	heard, _ := first.hear(message(dhcp.Request, byte(dhcp.Discover)))
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
		"not echoed":       {key: "0123456789abcdef", want: Unsolicited, change: dhcp.Message.StripAgents},
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
			if drop == None && (o.listener != 0 || reply.HasAgent()) {
				t.Errorf("got %+v, option 82 %v", o, reply.HasAgent())
			}
		})
	}
	if _, ok := newSigner([]byte("0123456789abcdef")).read(request, first.unix(first.now())+100, 11); ok {
		t.Error("an old token is good")
	}
}

// set changes one byte.
func set(at int) func(dhcp.Message) dhcp.Message {
	return func(m dhcp.Message) dhcp.Message { return changed(m, at, 1) }
}

// forge changes the listener in the token.
func forge(m dhcp.Message) dhcp.Message {
	agent, _ := m.LastAgent()
	token, _ := dhcp.Sub(agent, dhcp.SubVendor)
	token[6]++
	return m
}

// TestUnicastTakesTheAgentsPlace: upstream giaddr is ours, and the agent's is restored.
func TestUnicastTakesTheAgentsPlace(t *testing.T) {
	b := newBench(t, nil)
	asked := arrival{listener: unicast, source: peer{theirGiaddr, 6767}, local: [4]byte{192, 0, 2, 2}}
	m := withGiaddr(message(dhcp.Request, byte(dhcp.Discover)), theirGiaddr)
	got, drop := b.desk.request(m, &asked, b.routes, b.now())
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
	request, _ := b.hear(message(dhcp.Request, byte(dhcp.Discover)))
	if _, _, drop := b.answer(request); drop != UntrustedServer {
		t.Errorf("got %v", drop)
	}
}

// TestLimits in one table: each client, all of them, and clients that have no address to tell them apart.
func TestLimits(t *testing.T) {
	const second = int64(1e9)
	l := newLimiter(2, 10)
	take := func(n, hlen int, now int64) Drop {
		k := keyNumber(n)
		k.hlen = uint8(hlen)
		return l.allow(k, now)
	}
	for i, want := range []Drop{None, None, None, None, ClientLimit, ClientLimit} {
		if got := take(1, 6, 0); got != want {
			t.Errorf("request %d: got %v, want %v", i, got, want)
		}
	}
	if got := take(1, 6, second/2); got != None {
		t.Errorf("half a second later: got %v", got)
	}
	dropped := 0
	for i := range 40 {
		if take(100+i, 6, second/2) == TotalLimit {
			dropped++
		}
	}
	// The total has 20 to begin with: 4 were spent, up to 20 came back, and 1 was spent.
	if dropped != 21 {
		t.Errorf("got %d dropped by the total limit, want 21", dropped)
	}
	free := newLimiter(2, -1)
	for range 100 {
		if got := free.allow(key{hlen: 0}, 0); got != None {
			t.Errorf("InfiniBand: got %v", got)
		}
	}
}

// TestDoesNotAllocate: the whole way of a transaction through the policy, with option 82, token and limits.
func TestDoesNotAllocate(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.Agent = Agent{Options: []SubOption{CircuitID, RemoteID}}
		c.TokenKey = []byte("0123456789abcdef")
		c.ClientRate, c.TotalRate = 1<<20, 1<<30
	})
	request := message(dhcp.Request, byte(dhcp.Discover))
	slot, reply := make([]byte, slotLen), make([]byte, slotLen)
	n := uint32(0)
	got := testing.AllocsPerRun(2000, func() {
		n++
		copy(slot, request)
		binary.BigEndian.PutUint32(slot[4:], n)
		m, drop := b.desk.request(dhcp.Message(slot[:len(request)]), &b.heard, b.routes, b.now())
		if drop != None {
			t.Fatal(drop)
		}
		b.desk.send(m, b.routes, b.now())
		b.desk.toServers.clear()
		copy(reply, m)
		reply[0] = byte(dhcp.Reply)
		from := b.routes.targets[0].peer
		if _, _, drop := b.desk.reply(dhcp.Message(reply[:len(m)]), from, b.routes, b.now()); drop != None {
			t.Fatal(drop)
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations per transaction", got)
	}
}

// BenchmarkTransaction is a request and its reply through the policy, without system calls.
func BenchmarkTransaction(tb *testing.B) {
	b := newBench(tb, nil)
	request := message(dhcp.Request, byte(dhcp.Discover))
	slot := make([]byte, slotLen)
	n := uint32(0)
	tb.ReportAllocs()
	for tb.Loop() {
		n++
		copy(slot, request)
		binary.BigEndian.PutUint32(slot[4:], n)
		m, _ := b.desk.request(dhcp.Message(slot[:len(request)]), &b.heard, b.routes, int64(n))
		b.desk.send(m, b.routes, int64(n))
		b.desk.toServers.clear()
		m[0] = byte(dhcp.Reply)
		if _, _, drop := b.desk.reply(m, b.routes.targets[0].peer, b.routes, int64(n)); drop != None {
			tb.Fatal(drop)
		}
	}
}

// FuzzPolicy is a request and a reply of any bytes: never a panic, and of a request only what may change does.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte(message(dhcp.Request, byte(dhcp.Discover))), false)
	f.Add([]byte(message(dhcp.Request, byte(dhcp.Requests), 82, 3, 1, 1, 'x')), true)
	f.Add([]byte(withGiaddr(message(dhcp.Request, byte(dhcp.Inform)), theirGiaddr)), true)
	f.Add([]byte(message(dhcp.Reply, byte(dhcp.Ack), 82, 3, 1, 1, 'x')), false)
	bench := newBench(f, func(c *Config) { c.TracePackets, c.Pending = -1, 16 })
	f.Fuzz(func(t *testing.T, b []byte, viaUnicast bool) {
		if len(b) > received {
			return
		}
		slot := make([]byte, len(b), slotLen)
		copy(slot, b)
		a := bench.heard
		if viaUnicast {
			a = arrival{listener: unicast, source: peer{theirGiaddr, 67}}
		}
		got, drop := bench.desk.request(slot, &a, bench.routes, 0)
		if drop != None {
			return
		}
		if len(got) < 300 || len(got) < len(b) || !bytes.Equal(got[4:24], b[4:24]) || !bytes.Equal(got[28:len(b)], b[28:]) {
			t.Fatal("a byte changed that may not")
		}
		if got.Hops() != b[3]+1 {
			t.Fatal("hops are not counted")
		}
		got[0] = byte(dhcp.Reply)
		if _, _, drop := bench.desk.reply(got, bench.routes.targets[0].peer, bench.routes, 0); drop != None {
			t.Fatalf("the answer is dropped: %v", drop)
		}
	})
}

// FuzzReply is a reply of any bytes, asked for or not, to a request that had option 82 of its own, ours, or none.
func FuzzReply(f *testing.F) {
	f.Add([]byte(message(dhcp.Reply, byte(dhcp.Offer), 82, 4, 1, 2, 'm', 'e')), byte(3), byte(4))
	f.Add([]byte(message(dhcp.Reply, byte(dhcp.Ack), 82, 3, 1, 1, 'x', 82, 4, 1, 2, 'm', 'e')), byte(1), byte(4))
	f.Add([]byte(message(dhcp.Reply, byte(dhcp.Nak), 82, 7, 9, 5, 0, 0, 0x7e, 0xd9, 0)), byte(4), byte(0))
	f.Add([]byte(message(dhcp.Reply, byte(dhcp.Ack)))[:238], byte(9), byte(200))
	bench := newBench(f, func(c *Config) {
		c.TracePackets, c.Pending = -1, 16
		c.TokenKey = []byte("0123456789abcdef")
	})
	f.Fuzz(func(t *testing.T, b []byte, flags, agent byte) {
		if len(b) > received || len(b) > 0 && b[0] != byte(dhcp.Reply) {
			return
		}
		slot := make([]byte, headroom+len(b), slotLen)
		copy(slot[headroom:], b)
		m := dhcp.Message(slot[headroom:])
		if m.Check() == dhcp.OK && flags&4 == 0 {
			o := origin{added: flags&1 != 0, sole: flags&2 != 0, agent: agent}
			if flags&8 != 0 {
				o.listener = unicast
			}
			bench.pending.remember(keyOf(m), o, 0)
		}
		got, o, drop := bench.desk.reply(m, peer{}, bench.routes, 0)
		if drop != None {
			return
		}
		if len(got) < dhcp.PaddedLen || len(got) > max(len(b), dhcp.PaddedLen) {
			t.Fatalf("got %d bytes of %d", len(got), len(b))
		}
		if !bytes.Equal(got[:24], b[:24]) || !bytes.Equal(got[28:236], b[28:236]) {
			t.Fatal("a fixed field changed")
		}
		if !o.added && !bytes.Equal(got[236:len(b)], b[236:]) {
			t.Fatal("an option changed though none was ours")
		}
		if o.added && o.sole && got.HasAgent() {
			t.Fatal("our option 82 is left")
		}
		putReply(slot[:headroom+len(got)], testMAC, ourGiaddr, false)
		if _, fault := frame.Parse(slot[:headroom+len(got)], frame.Verify); fault != frame.OK {
			t.Fatalf("the frame is bad: %v", fault)
		}
	})
}

func TestValidateNamesEveryFault(t *testing.T) {
	config := Config{
		Listeners:         []Listener{{Name: "eth0"}, {Name: "a"}, {Name: "a"}, {Name: ""}},
		UpstreamInterface: "eth0", UpstreamAddress: netip.MustParseAddr("127.0.0.1"), MaxHops: 17,
		Servers: []string{"", "host:99999", "[::1]:67"}, TokenKey: []byte("short"),
		Agent: Agent{Options: []SubOption{SubscriberID}, CircuitID: "x"}, TrustedListeners: []string{"b"},
	}
	err := config.Validate()
	if err == nil {
		t.Fatal("no fault")
	}
	faults, ok := err.(interface{ Unwrap() []error })
	if !ok || len(faults.Unwrap()) != 13 {
		t.Errorf("got %v", err)
	}
}
