// Package record has one value for what became of an exchange between a client and a route. The protocol fills it in
// while the exchange goes on, counts and logs by it, and hands it to a [Sink]. [Boots] is the one for stack-boots.
package record

import (
	"net/netip"
	"time"
	"unsafe"
)

// Kind is what an exchange is.
type Kind uint8

// The kinds.
const (
	HTTP   Kind = iota // a request and its answer
	Stream             // a TCP connection, or a gRPC call
	TFTP               // a transfer
	Syslog             // a line
)

// Outcome is how far an exchange got.
type Outcome uint8

// The outcomes.
const (
	Done     Outcome = iota // it ended in order, with an error or without: see Code; the zero value, also before the end
	Began                   // it goes on; what takes long is recorded at its beginning and on its way, too
	Torn                    // it ended before all of it was there
	Refused                 // this proxy refused it
	NoServer                // no endpoint took it
)

// An exchange that goes on is recorded when its endpoint has not answered for Waits, and then each Progress, with how
// far it got.
const (
	Waits    = time.Second
	Progress = 5 * time.Second
)

// Exchange is what became of an exchange, or how far it got by now.
type Exchange struct {
	Kind     Kind
	Outcome  Outcome
	Route    string
	Port     uint16         // of the route
	Client   netip.Addr     // behind a trusted proxy: the one that the proxy names
	Endpoint netip.AddrPort // that was asked last; invalid if none was
	Begin    time.Time
	Took     time.Duration // to its end, or to now; 0 of what has just begun
	Reason   string        // why it did not end in order; those that the journal knows are in package boot

	Code     uint16 // HTTP's or gRPC's status; TFTP's error code plus 1; the priority of a line
	Bytes    uint64 // that went to the client, or that its line has
	Expected uint64 // that were announced, by Content-Length or tsize; 0 if that is not known
	Offset   uint64 // where the range begins that was asked for

	Method   string // of HTTP; "write" if a machine sends a file by TFTP
	Name     string // HTTP path, gRPC method, TFTP file
	Software string // by which the client's is known: User-Agent, a line's tag, the options of a TFTP transfer
	Message  string // a line's text, TFTP's error message, gRPC's status message, HTTP's Location

	Resent            uint32 // TFTP blocks that were sent again
	BlockSize, Window uint16 // as TFTP's options agree on
}

// Sink takes exchanges that have begun, go on or have ended. It is called by many goroutines and must not wait. The
// texts of an exchange may be valid during the call only. A nil Sink takes none.
type Sink func(Exchange)

// Record hands an exchange to the sink.
func (s Sink) Record(x Exchange) {
	if s != nil {
		s(x)
	}
}

// Text is a view of bytes as the text of an exchange. It is valid as long as the bytes do not change.
func Text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
