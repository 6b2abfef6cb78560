// Package dhcp looks at a DHCP or BOOTP message and changes it where it lies.
//
// A relay agent may touch three things of a request: hops, an empty giaddr, and option 82. Decoding a message
// and encoding it again changes many more (the order of options, pads, split options, overloaded fields), so
// this package never does: [Message] is a view of the bytes that were received, and the editing functions move
// no byte that they need not.
//
// Sections refer to RFC 2131 unless another document is named.
package dhcp

import (
	"encoding/binary"
	"net/netip"
)

// Op is the message's direction.
type Op uint8

// The two directions (section 2).
const (
	OpRequest Op = 1
	OpReply   Op = 2
)

// HTypeInfiniBand is the hardware type whose clients have no room for their address in chaddr and always ask for
// broadcast replies (RFC 4390 section 2.1).
const HTypeInfiniBand = 32

// Offsets of the fixed fields (section 2).
const (
	offOp      = 0
	offHtype   = 1
	offHlen    = 2
	offHops    = 3
	offXid     = 4
	offSecs    = 8
	offFlags   = 10
	offCiaddr  = 12
	offYiaddr  = 16
	offSiaddr  = 20
	offGiaddr  = 24
	offChaddr  = 28
	offSname   = 44
	offFile    = 108
	offOptions = 236
	offFirst   = 240 // behind the magic cookie
)

const (
	flagBroadcast = 0x8000
	cookie        = 0x63825363
	maxHlen       = 16

	// MinLen is the length in bytes of the fixed part.
	MinLen = offOptions
	// PaddedLen is the least length of a message on the wire (RFC 1542 section 2.1).
	PaddedLen = 300
)

// Fault says why a message is no DHCP or BOOTP message. The zero value is a good one.
type Fault uint8

// The faults that [Message.Check] finds.
const (
	OK      Fault = iota
	Short         // shorter than the fixed part
	BadOp         // neither a request nor a reply
	BadHlen       // a hardware address longer than its field
)

var faultNames = [...]string{"ok", "short-message", "bad-op", "bad-hlen"}

func (f Fault) String() string { return faultNames[f] }

// Message is a DHCP message as received: the payload of a UDP datagram. Its methods other than Check need a
// message that Check found good; Option and Type find nothing in a shorter one.
type Message []byte

// Check looks for what no relay can handle. A message without options (no cookie, or that of another vendor: BOOTP, RFC
// 951 section 3) is good, and so are options without an end, which relays must not mind.
func (m Message) Check() Fault {
	switch {
	case len(m) < MinLen:
		return Short
	case m[offOp] != byte(OpRequest) && m[offOp] != byte(OpReply):
		return BadOp
	case m[offHlen] > maxHlen:
		return BadHlen
	}
	return OK
}

// Op is the direction.
func (m Message) Op() Op { return Op(m[offOp]) }

// HType is the type of the client's hardware address (1 is Ethernet).
func (m Message) HType() uint8 { return m[offHtype] }

// HLen is the length in bytes of the client's hardware address.
func (m Message) HLen() uint8 { return m[offHlen] }

// Hops counts the relay agents on the way so far.
func (m Message) Hops() uint8 { return m[offHops] }

// XID is the transaction that the client chose.
func (m Message) XID() uint32 { return binary.BigEndian.Uint32(m[offXid:]) }

// Secs is the time in seconds that the client says it has tried for.
func (m Message) Secs() uint16 { return binary.BigEndian.Uint16(m[offSecs:]) }

// Broadcast tells that the client cannot receive unicast before it has an address (section 4.1).
func (m Message) Broadcast() bool {
	return binary.BigEndian.Uint16(m[offFlags:])&flagBroadcast != 0
}

// Ciaddr is the address that the client has.
func (m Message) Ciaddr() [4]byte { return [4]byte(m[offCiaddr:]) }

// Yiaddr is the address that the client is to have.
func (m Message) Yiaddr() [4]byte { return [4]byte(m[offYiaddr:]) }

// Siaddr is the next server to boot from.
func (m Message) Siaddr() [4]byte { return [4]byte(m[offSiaddr:]) }

// Giaddr is the relay agent that the server answers to.
func (m Message) Giaddr() [4]byte { return [4]byte(m[offGiaddr:]) }

// Chaddr is the client's hardware address with its padding: HLen says how much of it counts.
func (m Message) Chaddr() [16]byte { return [16]byte(m[offChaddr:]) }

// HasOptions tells DHCP (and BOOTP with RFC 1497 extensions) from plain BOOTP.
func (m Message) HasOptions() bool {
	return len(m) >= offFirst && binary.BigEndian.Uint32(m[offOptions:]) == cookie
}

// File is the boot file's name as it stands in its field; it may be overloaded with options (option 52), so it is
// for logs only.
func (m Message) File() []byte {
	file := m[offFile:offOptions]
	for i, c := range file {
		if c == 0 {
			return file[:i]
		}
	}
	return file
}

// StampRelay counts this relay agent and, where the message has none, makes it the one that the server answers to
// (RFC 1542 section 4.1.1). The caller has checked the hop limit.
func (m Message) StampRelay(giaddr [4]byte) {
	m[offHops]++
	if m.Giaddr() == ([4]byte{}) {
		m.SetGiaddr(giaddr)
	}
}

// SetGiaddr replaces the relay agent's address.
func (m Message) SetGiaddr(giaddr [4]byte) { copy(m[offGiaddr:], giaddr[:]) }

// Pad lengthens a message to the least length with zeroes, within its capacity: memory behind a received message
// holds earlier ones.
func Pad(m Message) Message {
	if len(m) >= PaddedLen || cap(m) < PaddedLen {
		return m
	}
	n := len(m)
	m = m[:PaddedLen]
	clear(m[n:])
	return m
}

// Addr is an address field as a netip.Addr.
func Addr(a [4]byte) netip.Addr { return netip.AddrFrom4(a) }
