package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

func ip(s string) [16]byte { return netip.MustParseAddr(s).As16() }

var (
	clientMAC  = frame.MAC{2, 0, 0, 0, 0, 0x50}
	ourMAC     = frame.MAC{2, 0, 0, 0, 0, 1}
	clientIP   = frame.LinkLocal(clientMAC)
	ourLink    = ip("2001:db8:1::1")
	ourAddress = netip.MustParseAddr("2001:db8:244::10")
	serverIP   = netip.MustParseAddr("2001:db8:244::11")
	agentIP    = ip("2001:db8:203::1") // of a trusted relay agent
	agentLink  = ip("2001:db8:203:4::1")
	strangerIP = ip("2001:db8:bad::1")
)

// bench is a relay without sockets, and a listener's worker.
type bench6 struct {
	*Relay
	worker  *worker
	targets *server.Targets
	heard   arrival
}

func newBench6(tb testing.TB, change func(*Config)) *bench6 {
	tb.Helper()
	config := Config{
		IPv6:          true,
		Listeners:     []Listener{{Name: "macvlan0", LinkAddress: netip.AddrFrom16(ourLink)}},
		Servers:       []string{serverIP.String()},
		TrustedRelays: []netip.Prefix{netip.MustParsePrefix("2001:db8:203::/48"), netip.MustParsePrefix("fe80::77/128")},
		Limits:        Limits{ClientRate: -1, TotalRate: -1},
	}
	r, to := assembled(tb, &config, change, ourAddress, netip.AddrPortFrom(serverIP, 547))
	b := &bench6{Relay: r, worker: newWorker(r, min(0, len(r.vlans)-1)), targets: to}
	for i, l := range config.Listeners {
		known := link{local: frame.LinkLocal(ourMAC)}
		if l.LinkAddress.IsValid() {
			known.address = l.LinkAddress.As16()
		}
		r.vlans[i].SetOpened(&listener.Opened[link]{MAC: ourMAC, MTU: 1500, Info: known})
	}
	b.heard = arrival{source: peer{clientIP, clientPort6}, mac: clientMAC}
	if len(r.vlans) > 0 {
		b.heard.link = &r.vlans[0].Opened().Info
	}
	return b
}

// hear relays a message that arrived so.
func (b *bench6) hear(m dhcp6.Message, a *arrival) (dhcp6.Message, Drop) {
	return b.hearAt(m, a, b.now())
}

// hearAt does so at a time.
func (b *bench6) hearAt(m dhcp6.Message, a *arrival, now int64) (dhcp6.Message, Drop) {
	slot := make([]byte, headroom6+frame.HeaderLen6+len(m), mmsg.SlotLen+len(m))
	copy(slot[headroom6+frame.HeaderLen6:], m)
	wrapped, drop := b.worker.request6(slot, headroom6+frame.HeaderLen6, a, b.targets, now)
	return bytes.Clone(wrapped), drop
}

// fromClient is the machine's message heard on the listener.
func (b *bench6) fromClient(m dhcp6.Message) (dhcp6.Message, Drop) {
	a := b.heard
	return b.hear(m, &a)
}

// duid is the machine's client identifier option.
var duid6 = []byte{0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0x50}

// message is the machine's message of a type with these options, as they stand, behind its client identifier.
func message6(t dhcp6.Type, options ...byte) dhcp6.Message {
	m := append(dhcp6.Message{byte(t), 0x12, 0x34, 0x56}, duid6...)
	return append(m, options...)
}

// around puts a relay message around another.
func around(t dhcp6.Type, hops uint8, link, peer [16]byte, m dhcp6.Message, options ...byte) dhcp6.Message {
	b := append(make([]byte, 200), m...)
	start, ok := dhcp6.Forward(b, 200, dhcp6.Relay{Hops: hops, Link: link, Peer: peer}, options)
	if !ok {
		panic("no room")
	}
	b[start] = byte(t)
	return b[start:]
}

// nest puts a number of RELAY-FORWs around a message, each with the hop count that it should have.
func nest(levels int, m dhcp6.Message) dhcp6.Message {
	peer := clientIP
	for n := range levels {
		m = around(dhcp6.RelayForward, uint8(n), [16]byte{}, peer, m)
		peer = agentIP
	}
	return m
}

// answered is the server's answer to what was wrapped: with the same relay messages around it and their options.
func answered(request dhcp6.Message, t dhcp6.Type, options ...byte) dhcp6.Message {
	if !request.IsRelay() {
		reply := dhcp6.Message{byte(t), request[1], request[2], request[3]}
		if id, found := request.Option(dhcp6.OptionClientID); found {
			reply = dhcp6.Append(reply, dhcp6.OptionClientID, id)
		}
		return append(reply, options...)
	}
	var repeated []byte
	if value, found := request.Option(dhcp6.OptionInterfaceID); found {
		repeated = dhcp6.Append(nil, dhcp6.OptionInterfaceID, value)
	}
	return around(dhcp6.RelayReply, request.Hops(), request.Link(), request.Peer(),
		answered(request.Inner(), t, options...), repeated...)
}

// TestRequests is what happens to each kind of message, good or bad.
func TestRequests(t *testing.T) {
	agent := arrival{source: peer{agentIP, serverPort6}, mac: frame.MAC{2, 0, 0, 0, 0, 0x77}}
	localAgent := arrival{source: peer{ip("fe80::77"), serverPort6}, mac: frame.MAC{2, 0, 0, 0, 0, 0x77}}
	relayed := func(m dhcp6.Message) dhcp6.Message { return around(dhcp6.RelayForward, 0, agentLink, clientIP, m) }
	from := func(source [16]byte) arrival { return arrival{source: peer{source, 546}, mac: clientMAC} }
	tests := map[string]struct {
		m       dhcp6.Message
		from    arrival // the machine, if it is left out
		unicast bool
		want    Drop
	}{
		"solicit":                         {m: message6(dhcp6.Solicit)},
		"request":                         {m: message6(dhcp6.Request)},
		"confirm":                         {m: message6(dhcp6.Confirm)},
		"renew":                           {m: message6(dhcp6.Renew)},
		"rebind":                          {m: message6(dhcp6.Rebind)},
		"release":                         {m: message6(dhcp6.Release)},
		"decline":                         {m: message6(dhcp6.Decline)},
		"information-request":             {m: message6(dhcp6.InformationRequest)},
		"unknown type (RFC 7283)":         {m: message6(99)},
		"without a client identifier":     {m: dhcp6.Message{byte(dhcp6.InformationRequest), 0, 0, 1}},
		"garbage":                         {m: dhcp6.Message("garbage, and no DHCPv6"), want: BadOptions},
		"empty":                           {m: dhcp6.Message{}, want: ShortMessage},
		"type 0":                          {m: message6(0), want: BadType},
		"option cut off":                  {m: message6(dhcp6.Solicit, 0, 8, 0, 2, 1), want: BadOptions},
		"option of 65,535 bytes":          {m: message6(dhcp6.Solicit, 0, 8, 255, 255, 1), want: BadOptions},
		"advertise on the listener":       {m: message6(dhcp6.Advertise), want: ReplyFromClient},
		"reply on the listener":           {m: message6(dhcp6.Reply), want: ReplyFromClient},
		"reconfigure on the listener":     {m: message6(dhcp6.Reconfigure), want: ReplyFromClient},
		"relay-reply on the listener":     {m: around(dhcp6.RelayReply, 0, ourLink, clientIP, message6(dhcp6.Reply)), want: ReplyFromClient},
		"relay-reply inside":              {m: relayed(around(dhcp6.RelayReply, 0, agentLink, clientIP, message6(dhcp6.Solicit))), from: agent, want: ReplyFromClient},
		"reply inside":                    {m: relayed(message6(dhcp6.Reply)), from: agent, want: ReplyFromClient},
		"from nowhere":                    {m: message6(dhcp6.Solicit), from: from(ip("::")), want: BadSource},
		"from a group":                    {m: message6(dhcp6.Solicit), from: from(ip("ff02::1")), want: BadSource},
		"from loopback":                   {m: message6(dhcp6.Solicit), from: from(ip("::1")), want: BadSource},
		"from a global address":           {m: message6(dhcp6.Confirm), from: from(ip("2001:db8:1::50"))},
		"RELAY-FORW of a machine":         {m: relayed(message6(dhcp6.Solicit)), want: UntrustedRelay},
		"of an agent":                     {m: relayed(message6(dhcp6.Solicit)), from: agent},
		"of an agent, by unicast":         {m: relayed(message6(dhcp6.Solicit)), from: agent, unicast: true},
		"of an agent on the link":         {m: relayed(message6(dhcp6.Solicit)), from: localAgent},
		"of a stranger":                   {m: relayed(message6(dhcp6.Solicit)), from: from(strangerIP), want: UntrustedRelay},
		"of a stranger, by unicast":       {m: relayed(message6(dhcp6.Solicit)), from: from(strangerIP), unicast: true, want: UntrustedRelay},
		"no message inside":               {m: relayed(message6(dhcp6.Solicit))[:dhcp6.RelayHeader], from: agent, want: BadRelayMessage},
		"spoofed link address":            {m: around(dhcp6.RelayForward, 0, strangerIP, clientIP, message6(dhcp6.Solicit)), from: agent, want: UntrustedLink},
		"spoofed link address, one below": {m: around(dhcp6.RelayForward, 1, [16]byte{}, agentIP, around(dhcp6.RelayForward, 0, strangerIP, clientIP, message6(dhcp6.Solicit))), from: agent, want: UntrustedLink},
		"our link address":                {m: around(dhcp6.RelayForward, 0, ourLink, clientIP, message6(dhcp6.Solicit)), from: agent, want: Loop},
		"our link address, one below":     {m: around(dhcp6.RelayForward, 1, [16]byte{}, agentIP, around(dhcp6.RelayForward, 0, ourLink, clientIP, message6(dhcp6.Solicit))), from: agent, want: Loop},
		"our own address":                 {m: relayed(message6(dhcp6.Solicit)), from: from(ourAddress.As16()), want: Loop},
		"our link-local address":          {m: relayed(message6(dhcp6.Solicit)), from: from(frame.LinkLocal(ourMAC)), want: Loop},
		"hop count 7":                     {m: nest(8, message6(dhcp6.Solicit)), from: agent},
		"hop count 8":                     {m: around(dhcp6.RelayForward, 8, [16]byte{}, agentIP, message6(dhcp6.Solicit)), from: agent, want: HopLimit},
		"hop count 255":                   {m: around(dhcp6.RelayForward, 255, [16]byte{}, agentIP, message6(dhcp6.Solicit)), from: agent, want: HopLimit},
		"nine agents that count wrong":    {m: around(dhcp6.RelayForward, 0, [16]byte{}, agentIP, nest(8, message6(dhcp6.Solicit))), from: agent, want: TooDeep},
		"nest of 33":                      {m: nest(33, message6(dhcp6.Solicit)), from: agent, want: TooDeep},
		"machine by unicast":              {m: message6(dhcp6.Renew), unicast: true, want: UnicastFromClient},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, nil)
			a := test.from
			if a.source.port == 0 {
				a = b.heard
			}
			if a.link = b.heard.link; test.unicast {
				a.listener, a.link, a.mac, a.local = unicast, nil, frame.MAC{}, ourAddress.As16()
			}
			got, drop := b.hear(test.m, &a)
			if drop != test.want {
				t.Fatalf("got %v, want %v", drop, test.want)
			}
			if drop != None {
				if got != nil || b.pending.Len() != 0 {
					t.Error("a dropped message is relayed, or pending")
				}
				return
			}
			if fault := got.Check(dhcp6.HopLimit + 1); fault != dhcp6.OK {
				t.Fatalf("the RELAY-FORW is bad: %v", fault)
			}
			if !bytes.Equal(got.Inner(), test.m) {
				t.Errorf("the message changed: got %x, want %x", got.Inner(), test.m)
			}
			wantHops := uint8(0)
			if test.m.IsRelay() {
				wantHops = test.m.Hops() + 1
			}
			if got.Type() != dhcp6.RelayForward || got.Hops() != wantHops || got.Peer() != a.source.ip {
				t.Errorf("got %v, hops %d, peer %x", got.Type(), got.Hops(), got.Peer())
			}
			wantLink := ourLink
			if test.unicast || test.m.IsRelay() && a.source.ip == agentIP {
				wantLink = [16]byte{} // RFC 9915 section 19.1.2
			}
			if got.Link() != wantLink {
				t.Errorf("got link address %x, want %x", got.Link(), wantLink)
			}
			if mac, found := got.ClientLinkAddr(); found == test.m.IsRelay() || found && mac != clientMAC {
				t.Errorf("got option 79 %v, %x", found, mac) // RFC 6939: of the first agent only
			}
			// The answer comes back to the same place.
			reply := answered(got, dhcp6.Reply)
			o, drop := reply6(b.worker, reply, serverIP, b.targets, b.now())
			wantPort := uint16(clientPort6)
			if test.m.IsRelay() {
				wantPort = serverPort6
			}
			if drop != None || o.listener != a.listener || o.mac != a.mac || o.port != wantPort || o.local != a.local {
				t.Errorf("the answer: got %v, %+v", drop, o)
			}
		})
	}
}

// TestRelaySourcePort: an agent that sends from another port is answered there if it says so (RFC 8357), and the server
// hears of it; one that does not is answered at 547.
func TestRelaySourcePort(t *testing.T) {
	for name, test := range map[string]struct {
		options []byte
		port    uint16
		want    uint16
		told    bool
	}{
		"usual port":             {port: 547, want: 547},
		"usual port, and option": {port: 547, options: dhcp6.AppendRelayPort(nil, 0), want: 547},
		"other port":             {port: 5470, want: 547},
		"other port, and option": {port: 5470, options: dhcp6.AppendRelayPort(nil, 0), want: 5470, told: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, nil)
			a := arrival{listener: unicast, source: peer{agentIP, test.port}, local: ourAddress.As16()}
			got, drop := b.hear(around(dhcp6.RelayForward, 0, agentLink, clientIP, message6(dhcp6.Solicit), test.options...), &a)
			if drop != None {
				t.Fatal(drop)
			}
			port, found := got.Option(dhcp6.OptionRelayPort)
			if found != test.told || found && binary.BigEndian.Uint16(port) != test.port {
				t.Errorf("the server is told of port %x: %v", port, found)
			}
			if o, drop := reply6(b.worker, answered(got, dhcp6.Advertise), serverIP, b.targets, b.now()); drop != None || o.port != test.want {
				t.Errorf("got %v, port %d, want %d", drop, o.port, test.want)
			}
		})
	}
}

// TestLinkAddressOfZero: without an address of its own the link is told by the Interface-Id.
func TestLinkAddressOfZero(t *testing.T) {
	b := newBench6(t, func(c *Config) { c.Listeners[0].LinkAddress = netip.Addr{} })
	got, drop := b.fromClient(message6(dhcp6.Solicit))
	id, _ := got.Option(dhcp6.OptionInterfaceID)
	if drop != None || got.Link() != ([16]byte{}) || string(id) != "macvlan0" {
		t.Errorf("got %v, link address %x, interface %q", drop, got.Link(), id)
	}
	if _, drop := reply6(b.worker, answered(got, dhcp6.Advertise), serverIP, b.targets, b.now()); drop != None {
		t.Errorf("the answer: %v", drop)
	}
}

// TestLongestOptionsFitInHeadroom: whatever the settings allow, there is room for it in headroom6 of a message.
func TestLongestOptionsFitInHeadroom(t *testing.T) {
	b := newBench6(t, func(c *Config) {
		c.Listeners[0].Name = "fifteen-letters"
		c.TokenKey = []byte("0123456789abcdef")
	})
	a := arrival{listener: unicast, source: peer{agentIP, 5470}, link: b.heard.link}
	inner := around(dhcp6.RelayForward, 0, agentLink, clientIP, message6(dhcp6.Solicit), dhcp6.AppendRelayPort(nil, 0)...)
	slot := append(make([]byte, headroom6), inner...)
	if _, drop := b.worker.request6(slot, headroom6, &a, b.targets, b.now()); drop != None {
		t.Errorf("an agent's: %v", drop)
	}
	a = b.heard
	slot = append(make([]byte, headroom6), message6(dhcp6.Solicit)...)
	if _, drop := b.worker.request6(slot, headroom6, &a, b.targets, b.now()); drop != None {
		t.Errorf("a machine's: %v", drop)
	}
}

func TestNoServer(t *testing.T) {
	for name, targets := range map[string]*server.Targets{
		"no server": {Source: ourAddress}, "no address": {All: []server.Target{{}}},
	} {
		b := newBench6(t, nil)
		b.targets = targets
		if _, drop := b.fromClient(message6(dhcp6.Solicit)); drop != NoServer {
			t.Errorf("%s: got %v", name, drop)
		}
	}
}

// TestDoesNotAllocate6: the whole way of a transaction through the policy, with all options, token, limits and events.
func TestDoesNotAllocate6(t *testing.T) {
	events := 0
	b := newBench6(t, func(c *Config) {
		c.Event = func(*boot.Event) { events++ }
		c.TokenKey = []byte("0123456789abcdef")
		c.ClientRate, c.TotalRate = 1<<20, 1<<30
	})
	n, at := uint32(0), headroom6+frame.HeaderLen6
	m := message6(dhcp6.Solicit, 0, 8, 0, 2, 0, 0)
	slot := make([]byte, at+len(m))
	if got := testing.AllocsPerRun(2000, b.transaction(t, slot, m, &n)); got != 0 {
		t.Errorf("got %v allocations per transaction", got)
	}
	if events != 2*2001 { // and one to warm up
		t.Errorf("told of %d messages", events)
	}
}

// transaction is a message and its answer, once for each call.
func (b *bench6) transaction(tb testing.TB, slot []byte, m dhcp6.Message, n *uint32) func() {
	at, reply := headroom6+frame.HeaderLen6, make([]byte, mmsg.SlotLen)
	whole := make([]byte, mmsg.SlotLen)
	return func() {
		*n++
		copy(slot[at:], m)
		binary.BigEndian.PutUint32(slot[at:], *n&0xffffff|uint32(dhcp6.Solicit)<<24)
		a := b.heard
		got, drop := b.worker.request6(slot, at, &a, b.targets, b.now())
		if drop != None {
			tb.Fatal(drop)
		}
		tellArrived(b.worker, slot[at:], &a, b.targets, b.now(), drop)
		b.worker.send(got, b.targets, b.now())
		b.worker.sender.Clear()
		back := dhcp6.Message(reply[:copy(reply, got)])
		back[0] = byte(dhcp6.RelayReply)
		start, end := back.InnerAt()
		back[start] = byte(dhcp6.Reply)
		o, drop := reply6(b.worker, back, serverIP, b.targets, b.now())
		if drop != None {
			tb.Fatal(drop)
		}
		tellBack(b.worker, back, &o, b.targets.All[0].Addr, b.now(), drop)
		out := whole[:frame.HeaderLen6+end-start]
		copy(out[frame.HeaderLen6:], back[start:end])
		header := frame.Header6{DstMAC: o.mac, Dst: back.Peer(), SrcPort: serverPort6, DstPort: o.port}
		header.Put(out)
	}
}

// BenchmarkTransaction6 is a SOLICIT and its answer through the policy.
func BenchmarkTransaction6(tb *testing.B) {
	b := newBench6(tb, nil)
	m, n := message6(dhcp6.Solicit, 0, 8, 0, 2, 0, 0), uint32(0)
	slot := make([]byte, headroom6+frame.HeaderLen6+len(m))
	do := b.transaction(tb, slot, m, &n)
	tb.ReportAllocs()
	for tb.Loop() {
		do()
	}
}

// TestRenewalsOfAnotherServer: a server is not blamed for its silence about messages that name another one.
func TestRenewalsOfAnotherServer(t *testing.T) {
	named := dhcp6.Append(nil, dhcp6.OptionServerID, []byte{0, 3, 0, 1, 2, 0, 0, 0, 0, 9})
	for name, test := range map[string]struct {
		servers []string
		m       dhcp6.Message
		want    int64
	}{
		"renew, one server":    {servers: []string{"2001:db8::1"}, m: message6(dhcp6.Renew, named...), want: 1},
		"renew, two servers":   {servers: []string{"2001:db8::1", "2001:db8::2"}, m: message6(dhcp6.Renew, named...)},
		"solicit, two servers": {servers: []string{"2001:db8::1", "2001:db8::2"}, m: message6(dhcp6.Solicit), want: 1},
		"rebind, two servers":  {servers: []string{"2001:db8::1", "2001:db8::2"}, m: message6(dhcp6.Rebind), want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, func(c *Config) { c.Servers = test.servers })
			got, drop := b.fromClient(test.m)
			if drop != None {
				t.Fatal(drop)
			}
			b.worker.send(got, b.targets, b.now())
			for _, s := range b.servers.Servers() {
				if s.Unanswered() != test.want {
					t.Errorf("%d are unanswered, want %d", s.Unanswered(), test.want)
				}
			}
		})
	}
}
