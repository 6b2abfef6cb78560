package dhcp6

import (
	"bytes"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// solicit is a SOLICIT of 02:00:00:00:00:50 with these options, as they stand.
func solicit(options ...byte) Message {
	return append(Message{byte(Solicit), 0x12, 0x34, 0x56, 0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0x50}, options...)
}

// within puts relay messages of a type around a message, without any other option.
func within(t Type, levels int, m Message) Message {
	for n := range levels {
		b := append(make([]byte, 64), m...)
		start, ok := Forward(b, 64, Relay{Hops: uint8(n), Peer: [16]byte{0xfe, 0x80, 15: 1}}, nil)
		if !ok {
			panic("no room")
		}
		m = b[start:]
		m[0] = byte(t)
	}
	return m
}

func TestCheck(t *testing.T) {
	tests := map[string]struct {
		m    Message
		want Fault
	}{
		"solicit":                            {m: solicit()},
		"no options":                         {m: Message{1, 0, 0, 1}},
		"unknown type":                       {m: Message{200, 0, 0, 1}},
		"empty":                              {m: nil, want: Short},
		"three bytes":                        {m: Message{1, 2, 3}, want: Short},
		"type 0":                             {m: Message{0, 2, 3, 4}, want: BadType},
		"half an option header":              {m: solicit(0, 8, 0), want: BadOptions},
		"option cut off":                     {m: solicit(0, 8, 0, 2, 0), want: BadOptions},
		"option of 65,535 bytes":             {m: solicit(0, 8, 0xff, 0xff, 1), want: BadOptions},
		"option of 0 bytes":                  {m: solicit(0, 14, 0, 0)},
		"relay header cut off":               {m: within(RelayForward, 1, solicit())[:33], want: Short},
		"relay message without a message":    {m: within(RelayForward, 1, solicit())[:34], want: BadRelayMessage},
		"two messages":                       {m: append(within(RelayForward, 1, solicit()), 0, 9, 0, 4, 1, 0, 0, 1), want: BadRelayMessage},
		"message cut off":                    {m: within(RelayForward, 1, solicit(0, 8, 0, 2, 0)), want: BadOptions},
		"empty message inside":               {m: within(RelayForward, 1, nil), want: Short},
		"eight relay agents":                 {m: within(RelayForward, 8, solicit())},
		"nine relay agents":                  {m: within(RelayForward, 9, solicit()), want: TooDeep},
		"nest of 33":                         {m: within(RelayForward, 33, solicit()), want: TooDeep},
		"reply, message inside is cut":       {m: within(RelayReply, 2, solicit())[:80], want: BadOptions},
		"option longer than the inner relay": {m: within(RelayForward, 2, Message{1, 0, 0, 1, 0, 1, 0, 9}), want: BadOptions},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.m.Check(HopLimit); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestForwardReadsByTheLibrary: what is written around a message is what another implementation reads.
func TestForwardReadsByTheLibrary(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 0x50}
	link, peer := net.ParseIP("2001:db8::1"), net.ParseIP("fe80::50")
	options := Append(nil, OptionInterfaceID, []byte("macvlan0"))
	options = AppendClientLinkAddr(options, mac)
	options = AppendRelayPort(options, 5470)
	inner := solicit(0, 8, 0, 2, 0, 0)
	b := append(bytes.Repeat([]byte{0xee}, 200), inner...)
	start, ok := Forward(b, 200, Relay{Hops: 3, Link: [16]byte(link), Peer: [16]byte(peer)}, options)
	if !ok {
		t.Fatal("no room")
	}
	m, err := dhcpv6.RelayMessageFromBytes(b[start:])
	if err != nil {
		t.Fatal(err)
	}
	kind, got := m.Options.ClientLinkLayerAddress()
	if m.MessageType != dhcpv6.MessageTypeRelayForward || m.HopCount != 3 || !m.LinkAddr.Equal(link) ||
		!m.PeerAddr.Equal(peer) || string(m.Options.InterfaceID()) != "macvlan0" || kind != iana.HWTypeEthernet ||
		!bytes.Equal(got, mac[:]) {
		t.Errorf("got %s", m.LongString(0))
	}
	if diff := cmp.Diff([]byte(inner), m.Options.RelayMessage().ToBytes()); diff != "" {
		t.Errorf("the message (-want +got):\n%s", diff)
	}
	view := Message(b[start:])
	port, found := view.Option(OptionRelayPort)
	if view.Check(HopLimit) != OK || view.Hops() != 3 || view.Link() != [16]byte(link) || view.Peer() != [16]byte(peer) ||
		!found || string(port) != "\x15\x5e" {
		t.Errorf("got hops %d, link %x, peer %x, port %x", view.Hops(), view.Link(), view.Peer(), port)
	}
	if at, end := view.InnerAt(); !bytes.Equal(view[at:end], inner) || !bytes.Equal(view.Inner(), inner) {
		t.Errorf("the message is found at %d to %d", at, end)
	}
	if client, around := view.Innermost(); client.XID() != 0x123456 || client.Type() != Solicit || len(around) != len(view) {
		t.Errorf("got %x", client)
	}
}

// TestForwardNeedsRoom in front of the message, and a message that an option can hold.
func TestForwardNeedsRoom(t *testing.T) {
	b := make([]byte, 38+10)
	if start, ok := Forward(b, 38, Relay{}, nil); !ok || start != 0 {
		t.Errorf("just enough: got %d, %v", start, ok)
	}
	if _, ok := Forward(b, 37, Relay{}, nil); ok {
		t.Error("one byte less is enough")
	}
	if _, ok := Forward(make([]byte, 38+65536), 38, Relay{}, nil); ok {
		t.Error("a message of 65,536 bytes is relayed")
	}
}

// TestLargestOption: an option of 65,535 bytes is read whole. A RELAY-FORW has no option that is large enough for the
// message that holds it.
func TestLargestOption(t *testing.T) {
	value := bytes.Repeat([]byte{7}, 0xffff)
	m := Message(Append([]byte{byte(Solicit), 0, 0, 1}, OptionUserClass, value))
	m = Append(m, OptionElapsedTime, []byte{0, 1})
	if fault := m.Check(HopLimit); fault != OK {
		t.Fatal(fault)
	}
	if got, found := m.Option(OptionUserClass); !found || !bytes.Equal(got, value) {
		t.Errorf("got %d bytes", len(got))
	}
	if got, found := m.Option(OptionElapsedTime); !found || len(got) != 2 {
		t.Errorf("behind it: got %d bytes, %v", len(got), found)
	}
	if fault := m[:len(m)-7].Check(HopLimit); fault != BadOptions { // with one byte less of the large one
		t.Errorf("cut off: got %v", fault)
	}
	b := append(make([]byte, 100), m...)
	if _, ok := Forward(b, 100, Relay{}, nil); ok {
		t.Error("it is wrapped")
	}
}

func TestGrants(t *testing.T) {
	address := func(valid byte) []byte {
		return append(append([]byte{0, 5, 0, 24}, make([]byte, 20)...), 0, 0, 0, valid)
	}
	identity := func(code byte, head int, inside []byte) []byte {
		b := append([]byte{0, code, 0, byte(head + len(inside))}, make([]byte, head)...)
		return append(b, inside...)
	}
	prefix := append([]byte{0, 26, 0, 25, 0, 0, 0, 1, 0, 0, 0, 1, 64}, make([]byte, 16)...)
	status := []byte{0, 13, 0, 2, 0, 2}
	tests := map[string]struct {
		options []byte
		want    bool
	}{
		"an address":                {options: identity(3, 12, address(1)), want: true},
		"a temporary address":       {options: identity(4, 4, address(1)), want: true},
		"a prefix":                  {options: identity(25, 12, prefix), want: true},
		"behind a status":           {options: identity(3, 12, append(status[:6:6], address(1)...)), want: true},
		"second identity":           {options: append(identity(3, 12, status), identity(3, 12, address(1))...), want: true},
		"an address that has ended": {options: identity(3, 12, address(0))},
		"no addresses available":    {options: identity(3, 12, status)},
		"stateless":                 {options: []byte{0, 23, 0, 16, 15: 0, 19: 1}},
		"an identity that is cut":   {options: []byte{0, 3, 0, 4, 0, 0, 0, 0}},
		"an address that is cut":    {options: identity(3, 12, []byte{0, 5, 0, 4, 1, 1, 1, 1})},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := append(Message{byte(Reply), 0, 0, 1}, test.options...)
			if m.Check(HopLimit) != OK {
				t.Fatal("the message is bad")
			}
			if got := m.Grants(); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// TestTypes: every name once, and what servers send apart from what clients send.
func TestTypes(t *testing.T) {
	seen := map[string]bool{}
	for n := range Other {
		if name := n.String(); name == "" || name != "other" && seen[name] {
			t.Errorf("type %d is called %q", n, name)
		}
		seen[n.String()] = true
	}
	if Type(255).String() != "other" || Type(255).FromServer() {
		t.Error("an unknown type is taken for a known one")
	}
	for _, server := range []Type{Advertise, Reply, Reconfigure, RelayReply} {
		if !server.FromServer() {
			t.Errorf("%v is not a server's", server)
		}
	}
}

func TestDoesNotAllocate(t *testing.T) {
	inner := solicit(0, 8, 0, 2, 0, 0)
	b := append(make([]byte, 200), inner...)
	options := Append(nil, OptionInterfaceID, []byte("macvlan0"))
	if got := testing.AllocsPerRun(1000, func() {
		start, ok := Forward(b, 200, Relay{}, options)
		m := Message(b[start:])
		if client, _ := m.Innermost(); !ok || m.Check(HopLimit) != OK || client.Grants() {
			t.Fatal("bad")
		}
	}); got != 0 {
		t.Errorf("got %v allocations", got)
	}
}

// FuzzMessage is any bytes: never a panic, what Check finds good can be read, what the library reads alike is the same,
// and what is wrapped comes out unchanged.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(solicit()))
	f.Add([]byte(solicit(0, 3, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)))
	f.Add([]byte(within(RelayForward, 2, solicit(0, 8, 0, 2, 0, 0))))
	f.Add([]byte(within(RelayReply, 9, solicit())))
	f.Add([]byte(within(RelayForward, 33, solicit())))
	f.Add([]byte(solicit(0, 8, 0xff, 0xff)))
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := Message(b)
		fault := m.Check(HopLimit)
		if fault != OK {
			_ = fault.String()
			return
		}
		client, around := m.Innermost()
		if client.IsRelay() || (around == nil) == m.IsRelay() {
			t.Fatal("the innermost message is a relay's")
		}
		client.Grants()
		client.Option(OptionClientID)
		if around != nil {
			around.ClientLinkAddr()
			start, end := m.InnerAt()
			if !bytes.Equal(m[start:end], m.Inner()) {
				t.Fatal("the message inside is at two places")
			}
		}
		if parsed, err := dhcpv6.FromBytes(b); err == nil && !m.IsRelay() {
			message, ok := parsed.(*dhcpv6.Message)
			if !ok {
				t.Fatalf("the library reads %T", parsed)
			}
			if message.TransactionID != [3]byte{b[1], b[2], b[3]} || uint8(message.MessageType) != uint8(m.Type()) {
				t.Fatal("the library reads another message")
			}
		}
		if len(b) > 0xffff {
			return
		}
		wrapped := append(make([]byte, 100), b...)
		start, ok := Forward(wrapped, 100, Relay{Hops: 1}, AppendRelayPort(nil, 7))
		if !ok {
			t.Fatal("no room")
		}
		outer := Message(wrapped[start:])
		if fault := outer.Check(HopLimit + 1); fault != OK {
			t.Fatalf("what was wrapped is bad: %v", fault)
		}
		if !bytes.Equal(outer.Inner(), b) {
			t.Fatal("what was wrapped changed")
		}
	})
}

func BenchmarkForward(b *testing.B) {
	m := append(make([]byte, 200), solicit(0, 8, 0, 2, 0, 0)...)
	options := Append(nil, OptionInterfaceID, []byte("macvlan0"))
	b.ReportAllocs()
	for b.Loop() {
		Forward(m, 200, Relay{}, options)
	}
}

func BenchmarkCheck(b *testing.B) {
	m := within(RelayForward, 2, solicit(0, 8, 0, 2, 0, 0))
	b.ReportAllocs()
	for b.Loop() {
		if m.Check(HopLimit) != OK {
			b.Fatal("bad")
		}
	}
}
