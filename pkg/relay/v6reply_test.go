package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// TestReplies is what happens to each kind of answer to one SOLICIT.
func TestReplies(t *testing.T) {
	trust := func(c *Config) { c.TrustedServers = []netip.Prefix{netip.MustParsePrefix("2001:db8:244::/64")} }
	elsewhere := netip.MustParseAddr("2001:db8:96::1")
	without := func(m dhcp6.Message) dhcp6.Message { // the Interface-Id
		return around(dhcp6.RelayReply, 0, m.Link(), m.Peer(), m.Inner())
	}
	tests := map[string]struct {
		reply  func(request dhcp6.Message) dhcp6.Message
		change func(*Config)
		from   netip.Addr
		want   Drop
	}{
		"advertise":                     {reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Advertise) }},
		"reply":                         {reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Reply) }},
		"unknown type (RFC 7283)":       {reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, 99) }},
		"through a Service":             {from: elsewhere, reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Reply) }},
		"trusted server":                {change: trust, reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Reply) }},
		"untrusted server":              {change: trust, from: elsewhere, reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Reply) }, want: UntrustedServer},
		"missing Interface-Id":          {reply: func(m dhcp6.Message) dhcp6.Message { return without(answered(m, dhcp6.Reply)) }},
		"solicit inside":                {reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Solicit) }, want: NotAReply},
		"RELAY-FORW inside":             {reply: func(m dhcp6.Message) dhcp6.Message { return around(dhcp6.RelayReply, 0, m.Link(), m.Peer(), m) }, want: NotAReply},
		"RELAY-FORW as it was":          {reply: func(m dhcp6.Message) dhcp6.Message { return m }, want: NotAReply},
		"RECONFIGURE":                   {reply: func(m dhcp6.Message) dhcp6.Message { return answered(m, dhcp6.Reconfigure) }, want: NotAReply},
		"no relay message":              {reply: func(dhcp6.Message) dhcp6.Message { return message6(dhcp6.Reply) }, want: NotAReply},
		"cut off":                       {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); return m[:len(m)-1] }, want: BadOptions},
		"another transaction":           {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m.Inner()[3]++; return m }, want: Unsolicited},
		"another client identifier":     {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m.Inner()[17]++; return m }, want: Unsolicited},
		"without the client identifier": {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m.Inner()[5] = 99; return m }, want: Unsolicited},
		"another peer":                  {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m[33]++; return m }, want: Unsolicited},
		"spoofed link address":          {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m[17]++; return m }, want: WrongLink},
		"spoofed Interface-Id":          {reply: func(m dhcp6.Message) dhcp6.Message { m = answered(m, dhcp6.Reply); m[45]++; return m }, want: WrongLink},
		"longer Interface-Id": {reply: func(m dhcp6.Message) dhcp6.Message {
			id := dhcp6.Append(nil, dhcp6.OptionInterfaceID, []byte("macvlan01"))
			m = answered(m, dhcp6.Reply)
			return around(dhcp6.RelayReply, 0, m.Link(), m.Peer(), m.Inner(), id...)
		}, want: WrongLink},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, test.change)
			request, drop := b.fromClient(message6(dhcp6.Solicit))
			if drop != None {
				t.Fatal(drop)
			}
			from := test.from
			if !from.IsValid() {
				from = serverIP
			}
			if _, drop := reply6(b.worker, test.reply(request), from, b.targets, b.now()); drop != test.want {
				t.Errorf("got %v, want %v", drop, test.want)
			}
		})
	}
}

// TestAnswerOfEachServer: there may be one of every server, and none when the request has expired.
func TestAnswerOfEachServer(t *testing.T) {
	b := newBench6(t, nil)
	request, _ := b.fromClient(message6(dhcp6.Solicit))
	for range 3 {
		if _, drop := reply6(b.worker, answered(request, dhcp6.Advertise), serverIP, b.targets, b.now()); drop != None {
			t.Error(drop)
		}
	}
	late := b.now() + int64(11*time.Second)
	if _, drop := reply6(b.worker, answered(request, dhcp6.Advertise), serverIP, b.targets, late); drop != Unsolicited {
		t.Errorf("an answer that comes too late: got %v", drop)
	}
}

// TestToken: another replica knows the answer, and where it goes; none that was changed, is late, or answers another
// client.
func TestToken(t *testing.T) {
	key := func(c *Config) { c.TokenKey = []byte("0123456789abcdef") }
	request, drop := newBench6(t, key).fromClient(message6(dhcp6.Solicit))
	if drop != None {
		t.Fatal(drop)
	}
	id, _ := request.Option(dhcp6.OptionInterfaceID)
	if string(id[:8]) != "macvlan0" || len(id) != 8+tokenLen6 {
		t.Fatalf("got Interface-Id %q", id)
	}
	at := dhcp6.RelayHeader + dhcp6.OptionHeader + 8 // of the token
	tests := map[string]struct {
		change func(m dhcp6.Message) dhcp6.Message
		config func(*Config)
		late   time.Duration
		want   Drop
	}{
		"by another replica":        {},
		"listener changed":          {change: flip(at + 1), want: Unsolicited},
		"port changed":              {change: flip(at + 3), want: Unsolicited},
		"MAC address changed":       {change: flip(at + 5), want: Unsolicited},
		"time changed":              {change: flip(at + 29), want: Unsolicited},
		"code changed":              {change: flip(at + tokenLen6 - 1), want: Unsolicited},
		"peer changed":              {change: flip(33), want: Unsolicited},
		"link address changed":      {change: flip(17), want: Unsolicited},
		"another name":              {change: flip(at - 1), want: WrongLink},
		"another key":               {config: func(c *Config) { c.TokenKey = []byte("fedcba9876543210") }, want: Unsolicited},
		"too late":                  {late: time.Minute, want: Unsolicited},
		"too early":                 {late: -time.Minute, want: Unsolicited},
		"another client identifier": {change: func(m dhcp6.Message) dhcp6.Message { m.Inner()[17]++; return m }, want: Unsolicited},
		"another transaction":       {change: func(m dhcp6.Message) dhcp6.Message { m.Inner()[3]++; return m }, want: Unsolicited},
		"a replica with no such listener": {want: Unsolicited, config: func(c *Config) {
			c.TokenKey, c.Listeners = []byte("0123456789abcdef"), nil
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.config == nil {
				test.config = key
			}
			b := newBench6(t, test.config)
			reply := answered(request, dhcp6.Advertise)
			if test.change != nil {
				reply = test.change(reply)
			}
			o, drop := reply6(b.worker, reply, serverIP, b.targets, b.now()+int64(test.late))
			if drop != test.want {
				t.Fatalf("got %v, want %v", drop, test.want)
			}
			if drop == None && (o.listener != 0 || o.mac != clientMAC || o.port != clientPort6) {
				t.Errorf("got %+v", o)
			}
		})
	}
}

// flip changes a byte.
func flip(at int) func(dhcp6.Message) dhcp6.Message {
	return func(m dhcp6.Message) dhcp6.Message {
		m[at] ^= 1
		return m
	}
}

// TestTokenIsRequired where there is a key: peer address and transaction of a pending message can be guessed.
func TestTokenIsRequired(t *testing.T) {
	b := newBench6(t, func(c *Config) { c.TokenKey = []byte("0123456789abcdef") })
	request, _ := b.fromClient(message6(dhcp6.Solicit))
	reply := answered(request, dhcp6.Reply)
	plain := dhcp6.Append(nil, dhcp6.OptionInterfaceID, []byte("macvlan0"))
	for name, test := range map[string]struct {
		m    dhcp6.Message
		want Drop
	}{
		"no Interface-Id":   {around(dhcp6.RelayReply, 0, reply.Link(), reply.Peer(), reply.Inner()), TokenMissing},
		"name without code": {around(dhcp6.RelayReply, 0, reply.Link(), reply.Peer(), reply.Inner(), plain...), BadToken},
	} {
		if _, drop := reply6(b.worker, test.m, serverIP, b.targets, b.now()); drop != test.want {
			t.Errorf("%s: got %v, want %v", name, drop, test.want)
		}
	}
	if _, drop := reply6(b.worker, reply, serverIP, b.targets, b.now()); drop != None {
		t.Errorf("with its token: got %v", drop)
	}
}

// TestListenerGone: the reply has no place to go, which is no crash.
func TestListenerGone(t *testing.T) {
	b := newBench6(t, nil)
	b.vlans[0].SetOpened((*listener.Opened[link])(nil))
	if b.own6(ourLink) {
		t.Error("a listener that is not open has an address")
	}
}

// TestTrace has a client's packets of both sides, and the codes of no tokens: whoever is handed a trace cannot answer
// what is pending in it.
func TestTrace(t *testing.T) {
	b := newBench6(t, func(c *Config) { c.TokenKey = []byte("0123456789abcdef") })
	request, drop := b.fromClient(message6(dhcp6.Solicit))
	if drop != None {
		t.Fatal(drop)
	}
	id, _ := request.Option(dhcp6.OptionInterfaceID)
	code := id[len(id)-tokenCode:]
	here, there := netip.AddrPortFrom(ourAddress, 547), netip.AddrPortFrom(serverIP, 547)
	heard := make([]byte, frame.HeaderLen6, 200)
	heard = append(heard, message6(dhcp6.Solicit)...)
	(&frame.Header6{SrcMAC: clientMAC, Src: clientIP, SrcPort: 546, DstPort: 547}).Put(heard)
	b.trace.Frame(1, heard)
	b.trace.Payload(2, here, there, request)
	b.trace.Payload(3, there, here, answered(request, dhcp6.Advertise)) // without option 79
	other := clientMAC
	other[5]++
	for name, test := range map[string]struct {
		mac  []byte
		want int
	}{
		"everybody": {want: 3}, "the client": {mac: clientMAC[:], want: 3}, "another": {mac: other[:]},
		"no Ethernet": {mac: []byte("InfiniBd")},
	} {
		var pcap bytes.Buffer
		if err := trace.Write(&pcap, test.mac, b.Trace()); err != nil {
			t.Fatal(err)
		}
		found := 0
		for rest := pcap.Bytes()[24:]; len(rest) > 0; found++ {
			n := binary.LittleEndian.Uint32(rest[8:])
			if _, fault := frame.Parse6(rest[16:16+n], frame.Verify); fault != frame.OK {
				t.Errorf("%s: packet %d is bad: %v", name, found, fault)
			}
			rest = rest[16+n:]
		}
		if found != test.want {
			t.Errorf("%s: got %d packets, want %d", name, found, test.want)
		}
		if bytes.Contains(pcap.Bytes(), code) {
			t.Errorf("%s: the code of a token is in the trace", name)
		}
	}
}

// TestRepeatedRepliesAreBounded6: four of a server and sixteen in all for each message that was relayed.
func TestRepeatedRepliesAreBounded6(t *testing.T) {
	b := newBench6(t, nil)
	for servers, want := range map[int]int{1: 4, 3: 12, 200: 16} {
		request, drop := b.fromClient(message6(dhcp6.Solicit))
		if drop != None {
			t.Fatal(drop)
		}
		passed := 0
		for n := range 10000 {
			from := serverIP.As16()
			from[15] = byte(n % servers)
			switch _, drop := reply6(b.worker, answered(request, dhcp6.Advertise), netip.AddrFrom16(from), b.targets, b.now()); drop {
			case None:
				passed++
			case ReplyLimit:
			default:
				t.Fatal(drop)
			}
		}
		if passed != want {
			t.Errorf("%d servers: %d replies passed, want %d", servers, passed, want)
		}
	}
	request, _ := b.fromClient(message6(dhcp6.Request))
	if _, drop := reply6(b.worker, answered(request, dhcp6.Reply), serverIP, b.targets, b.now()); drop != None {
		t.Errorf("the next message's answer: %v", drop)
	}
}

// TestDHCPv4Query: what stands in the place of the transaction is flags, which the answer does not repeat (RFC 7341).
func TestDHCPv4Query(t *testing.T) {
	for _, token := range []string{"", "0123456789abcdef"} {
		b := newBench6(t, func(c *Config) { c.TokenKey = []byte(token) })
		inside := func(xid byte) []byte {
			m := make([]byte, 240)
			m[0], m[7] = 1, xid
			return append([]byte{0, 87, 0, 240}, m...)
		}
		query := func(flags, xid byte) dhcp6.Message {
			return append(dhcp6.Message{byte(dhcp6.DHCPv4Query), flags, 0, 0}, inside(xid)...)
		}
		var requests []dhcp6.Message
		for xid, flags := range []byte{0x80, 0} {
			m := query(flags, byte(xid+1))
			request, drop := b.fromClient(m)
			if drop != None || !bytes.Equal(request.Inner(), query(flags, byte(xid+1))) {
				t.Fatalf("got %v", drop)
			}
			requests = append(requests, bytes.Clone(request))
		}
		for xid, request := range requests {
			reply := bytes.Clone(request)
			start, _ := request.InnerAt()
			reply[0], reply[start], reply[start+1] = byte(dhcp6.RelayReply), byte(dhcp6.DHCPv4Response), 0 // flags
			if o, drop := reply6(b.worker, reply, serverIP, b.targets, b.now()); drop != None || o.mac != clientMAC {
				t.Errorf("response %d: got %v, for %v", xid+1, drop, o.mac)
			}
			reply[start+4+4+7] = 77 // another DHCPv4 transaction
			if _, drop := reply6(b.worker, reply, serverIP, b.targets, b.now()); drop != Unsolicited {
				t.Errorf("unasked: got %v", drop)
			}
		}
	}
}
