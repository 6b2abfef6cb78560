package boot

import (
	"net/netip"
	"time"
)

// Kind is what an event tells.
type Kind uint8

// The kinds of events, and which program makes them.
const (
	DHCPRequest Kind = 1 + iota // dhcp-relay: a machine's message, passed on or dropped
	DHCPReply                   // dhcp-relay: a server's message to a machine, passed on or dropped
	TFTP                        // stack-proxy: a transfer has begun or ended
	HTTP                        // stack-proxy: an exchange has begun or ended; files of the proxy's own included
	Stream                      // stack-proxy: a TCP connection, or a gRPC call, has begun or ended
	Syslog                      // stack-proxy: a line
)

// Outcome is how far the matter of an event got.
type Outcome uint8

// The outcomes.
const (
	Passed   Outcome = iota // a message was passed on; a line was forwarded; the zero value
	Began                   // it goes on
	Done                    // it ended in order, an error status included: see Status
	Torn                    // it ended before all of it was there
	Refused                 // this pod refused it: see Reason
	NoServer                // no endpoint took it
	Dropped                 // the packet was dropped: see Reason
)

// Field is one of an event's texts.
type Field uint8

// The texts. Which of them an event has depends on its kind.
const (
	VendorClass Field = iota // DHCP option 60
	UserClass                // DHCP option 77
	HostName                 // DHCP option 12
	File                     // DHCP boot file (field or option 67), TFTP file, path of HTTP, gRPC method (TCP has none)
	Agent                    // User-Agent; a syslog line's tag; options of a TFTP transfer, asked for or agreed
	Message                  // text of a TFTP error or of a syslog line; grpc-message
	Method                   // of an HTTP request
	Where                    // it was heard: the relay's listener, or the proxy's route
	Reason                   // a drop reason's or refusal's name
	fields
)

// TextRoom is how many bytes all texts of an event have together; what does not fit is cut at the end.
const TextRoom = 384

// Event is one thing that a program heard of a machine. It has a fixed size and no pointers, so that a queue of events
// is one block of memory that the garbage collector does not look into. Addresses are 16 bytes, IPv4 mapped; all zero
// means none.
type Event struct {
	At   int64         // when it ended (or was seen): nanoseconds since 1970
	Took time.Duration // since it began; of a reply: since the request

	Kind    Kind
	Outcome Outcome
	DHCP    uint8 // message type: option 53, or that of DHCPv6 with V6 set
	V6      bool

	XID  uint32
	MAC  [6]byte  // chaddr, or from option 79 and the frame; zero where it is not known
	Arch uint16   // option 93 (RFC 4578, RFC 5970), with HasArch: see iana.Arch of insomniacslk/dhcp
	UUID [16]byte // option 97 without its type; zero where there is none

	Client    [16]byte // source address of the machine; ciaddr in DHCP
	Given     [16]byte // yiaddr
	Requested [16]byte // option 50
	Server    [16]byte // server identifier, option 54
	Next      [16]byte // siaddr
	Relay     [16]byte // giaddr that the message came with: a router before this relay
	Endpoint  [16]byte // backend that answered, or server that was asked

	Bytes     uint64 // that went to the machine
	Expected  uint64 // that were announced by tsize or Content-Length; 0 unknown
	Offset    uint64 // where the range that was asked for begins
	Lease     uint32 // seconds, option 51
	Resent    uint32 // TFTP blocks that were sent again
	Port      uint16 // of Endpoint
	AskedPort uint16 // port of the proxy; the route's name is the text Where
	Status    uint16 // HTTP status, gRPC code, TFTP error code plus 1 (0: no error)
	Secs      uint16 // of a DHCP request's header
	Block     uint16 // TFTP block size agreed
	Window    uint16 // TFTP window size agreed
	HasArch   bool
	Priority  uint8 // syslog: facility*8 + severity

	ends [fields]uint16
	text [TextRoom]byte
}

// SetText sets a text, cut to most bytes and to the room that is left. Texts are set once each, in the order of Field:
// a text whose Field is before one that was set already is left out.
func SetText[T string | []byte](e *Event, f Field, most int, text T) {
	begin := e.ends[f]
	if e.ends[fields-1] != begin {
		return
	}
	n := copy(e.text[begin:], text[:min(len(text), most)])
	for i := f; i < fields; i++ {
		e.ends[i] = begin + uint16(n)
	}
}

// Assign makes e say what another event does.
func (e *Event) Assign(other *Event) { *e = *other }

// Reset empties an event.
func (e *Event) Reset() { *e = Event{} }

// Text returns a text, as the machine or server sent it: anything may be in it.
func (e *Event) Text(f Field) []byte {
	begin := uint16(0)
	if f > 0 {
		begin = e.ends[f-1]
	}
	return e.text[begin:e.ends[f]]
}

// Addr returns an event's address; the zero Addr where there is none.
func Addr(b [16]byte) netip.Addr {
	if b == ([16]byte{}) {
		return netip.Addr{}
	}
	return netip.AddrFrom16(b).Unmap()
}

// Bytes is an address as events have it: all zero where it is no address, or the unspecified one.
func Bytes(a netip.Addr) [16]byte {
	if !a.IsValid() || a.IsUnspecified() {
		return [16]byte{}
	}
	return a.As16()
}

// Bytes4 is the same for an IPv4 address.
func Bytes4(a [4]byte) [16]byte {
	if a == ([4]byte{}) {
		return [16]byte{}
	}
	return [16]byte{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}
