// Package dhcp6 looks at a DHCPv6 message where it lies, wraps it for a server and finds the answer in what the server
// sends back.
//
// A relay agent changes nothing in a client's message: it puts a RELAY-FORW around it, and takes the RELAY-REPL off the
// answer (RFC 9915 section 19). Here both happen in the memory that the message was received into: [Forward] writes in
// front of the message, [Message.Inner] is a part of it. The package knows no sockets and allocates nothing.
//
// Sections refer to RFC 9915 unless another document is named.
package dhcp6

import "encoding/binary"

// Type is a message's type (section 7.3).
type Type uint8

// The message types. Any number from 24 on is not known here, and is relayed all the same (RFC 7283 section 3).
const (
	Solicit            Type = 1
	Advertise          Type = 2
	Request            Type = 3
	Confirm            Type = 4
	Renew              Type = 5
	Rebind             Type = 6
	Reply              Type = 7
	Release            Type = 8
	Decline            Type = 9
	Reconfigure        Type = 10
	InformationRequest Type = 11
	RelayForward       Type = 12
	RelayReply         Type = 13
	Leasequery         Type = 14 // RFC 5007
	LeasequeryReply    Type = 15
	LeasequeryDone     Type = 16 // RFC 5460
	LeasequeryData     Type = 17
	ReconfigureRequest Type = 18 // RFC 6977
	ReconfigureReply   Type = 19
	DHCPv4Query        Type = 20 // RFC 7341
	DHCPv4Response     Type = 21
	Other              Type = 24 // any higher number, in tables

	// NumTypes is the number of values, for tables.
	NumTypes = 25
)

var typeNames = [NumTypes]string{
	"none", "solicit", "advertise", "request", "confirm", "renew", "rebind", "reply", "release", "decline",
	"reconfigure", "information-request", "relay-forward", "relay-reply", "leasequery", "leasequery-reply",
	"leasequery-done", "leasequery-data", "reconfigure-request", "reconfigure-reply", "dhcpv4-query",
	"dhcpv4-response", "other", "other", "other",
}

// Index is the type as an index of a table of NumTypes.
func (t Type) Index() int { return int(min(t, Other)) }

func (t Type) String() string { return typeNames[t.Index()] }

// FromServer tells a type that servers send and clients never do.
func (t Type) FromServer() bool {
	switch t {
	case Advertise, Reply, Reconfigure, RelayReply, LeasequeryReply, LeasequeryDone, LeasequeryData, ReconfigureReply,
		DHCPv4Response:
		return true
	default:
		return false
	}
}

// Lengths in bytes and bounds.
const (
	clientHeader = 4 // type and transaction (section 8)
	// RelayHeader is the length of a relay message's fixed part: type, hop count, link address and peer address
	// (section 9).
	RelayHeader = 2 + 16 + 16
	// OptionHeader is the length of an option's code and length (section 21.1).
	OptionHeader = 4
	// HopLimit is HOP_COUNT_LIMIT (section 7.6): how many relay agents a message may have passed.
	HopLimit = 8

	offXid4 = 4 // in a DHCPv4 message
	offLink = 2
	offPeer = 18
)

// Fault says why a message cannot be relayed. The zero value is a good one.
type Fault uint8

// The faults that [Message.Check] finds.
const (
	OK              Fault = iota
	Short                 // shorter than the fixed part of its type
	BadType               // type 0, which is reserved
	BadOptions            // an option claims more bytes than there are
	BadRelayMessage       // a relay message has no message inside, or several
	TooDeep               // more relay messages inside each other than are allowed
)

var faultNames = [...]string{
	"ok", "short-message", "bad-type", "bad-options", "bad-relay-message", "too-deep",
}

func (f Fault) String() string { return faultNames[f] }

// Message is a DHCPv6 message as received: the payload of a UDP datagram, or what is inside a relay message. Its
// methods other than Check need a message that Check found good.
type Message []byte

// Check looks at the message, and at all messages inside of it, for what no relay agent can handle: more than a
// number of relay messages inside each other, among others. It does not look into options other than the Relay Message.
func (m Message) Check(deepest int) Fault {
	for depth := 0; ; depth++ {
		if len(m) < clientHeader {
			return Short
		}
		if m[0] == 0 {
			return BadType
		}
		relay := m.IsRelay()
		switch {
		case relay && len(m) < RelayHeader:
			return Short
		case depth > deepest:
			return TooDeep
		}
		var inner Message
		messages := 0
		options := m.options()
		for len(options) > 0 {
			code, value, rest, ok := next(options)
			if !ok {
				return BadOptions
			}
			if code == OptionRelayMessage {
				inner = value
				messages++
			}
			options = rest
		}
		if !relay {
			return OK
		}
		if messages != 1 {
			return BadRelayMessage
		}
		m = inner
	}
}

// Type is the message's type.
func (m Message) Type() Type { return Type(m[0]) }

// IsRelay tells a message between relay agents and servers.
func (m Message) IsRelay() bool { return m.Type() == RelayForward || m.Type() == RelayReply }

// XID is the transaction that the client chose, of 24 bits (section 8). A relay message has none. DHCPV4-QUERY and
// DHCPV4-RESPONSE have flags in its place, which differ (RFC 7341 sections 6.2 and 6.3): theirs is that of the DHCPv4
// message inside, of 32 bits, 0 where there is none.
func (m Message) XID() uint32 {
	if t := m.Type(); t != DHCPv4Query && t != DHCPv4Response {
		return binary.BigEndian.Uint32(m) & 0xffffff
	}
	inside, _ := m.Option(OptionDHCPv4Message)
	if len(inside) < offXid4+4 {
		return 0
	}
	return binary.BigEndian.Uint32(inside[offXid4:])
}

// Hops is how many relay agents have wrapped a relay message before its sender (section 9).
func (m Message) Hops() uint8 { return m[1] }

// Link is a relay message's link address: it tells the server the link that the client is on (section 9.1).
func (m Message) Link() [16]byte { return [16]byte(m[offLink:]) }

// Peer is a relay message's peer address: the client or relay agent whose message is inside.
func (m Message) Peer() [16]byte { return [16]byte(m[offPeer:]) }

// Inner is the message inside a relay message. It shares the memory.
func (m Message) Inner() Message {
	value, _ := m.Option(OptionRelayMessage)
	return value
}

// InnerAt is where the message inside a relay message begins and ends.
func (m Message) InnerAt() (start, end int) {
	for options := m.options(); ; {
		code, value, rest, ok := next(options)
		if !ok {
			return 0, 0
		}
		if code == OptionRelayMessage {
			end = len(m) - len(rest)
			return end - len(value), end
		}
		options = rest
	}
}

// Innermost is the message of, or for, the client, and the relay message right around it: nil if there is none.
func (m Message) Innermost() (client, around Message) {
	for m.IsRelay() {
		around, m = m, m.Inner()
	}
	return m, around
}

// Relay is the fixed part of a relay message, and where its message goes.
type Relay struct {
	Hops       uint8
	Link, Peer [16]byte
}

// Forward puts a RELAY-FORW around the message b[at:], with these options before the Relay Message, and returns where
// it begins. There must be room in front of the message; ok is false where there is not, or where the message is longer
// than an option can be.
func Forward(b []byte, at int, r Relay, options []byte) (start int, ok bool) {
	inner := len(b) - at
	start = at - OptionHeader - len(options) - RelayHeader
	if start < 0 || inner > 0xffff {
		return 0, false
	}
	b[start], b[start+1] = byte(RelayForward), r.Hops
	copy(b[start+offLink:], r.Link[:])
	copy(b[start+offPeer:], r.Peer[:])
	n := start + RelayHeader
	n += copy(b[n:], options)
	binary.BigEndian.PutUint16(b[n:], OptionRelayMessage)
	binary.BigEndian.PutUint16(b[n+2:], uint16(inner))
	return start, true
}
