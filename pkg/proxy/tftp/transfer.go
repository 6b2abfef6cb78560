package tftp

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
)

// transfer is the state of one transfer, as the proxy observes it.
type transfer struct {
	record.Exchange // what is recorded of it

	request          []byte    // as the client sent it, to recognise a repetition
	first            []byte    // the server's first answer, to repeat it
	requestedOptions string    // options as requested
	agreedOptions    string    // options as confirmed
	recordedAt       time.Time // when it was recorded how far it got
	requestedAt      time.Time // when the present endpoint got the request

	server       datagram.Peer // the server's TID, once it has answered
	filesAwaited bool          // boot files were awaited when the request was passed on: the file may be one of them
	answered     bool
	reacted      bool // the client has reacted to an answer
	oacked       bool // the server has answered with an OACK
	agreed       negotiated

	high     uint64 // the highest block sent, unwrapped; Bytes is the payload up to it
	acked    uint64 // the highest of them that was acknowledged
	last     uint64 // the number of the final, short block
	complete bool   // last is known

	served *served // where the proxy itself serves the file; else nil

	newest []byte    // the block of number high, where it is kept
	sentAt time.Time // when the client was last sent it

	ended bool
	code  uint16 // of an ERROR; Message is its text
}

func newTransfer(b []byte, r request) transfer {
	return transfer{
		request:          bytes.Clone(b),
		requestedOptions: optionText(r.options),
		agreed:           negotiated{blockSize: defaultBlock, window: 1},
	}
}

// repeats reports whether b is the transfer's own request, sent again before the client has reacted to an endpoint's
// answer. Such a request of a transfer that the proxy serves is repeatedToServed's.
func (t *transfer) repeats(b []byte) bool {
	return t.served == nil && !t.reacted && !t.ended && bytes.Equal(b, t.request)
}

// expects reports whether a datagram with op belongs to this transfer, if it comes from that side.
func (t *transfer) expects(op uint16, from datagram.Direction) bool {
	switch op {
	case opError:
		return true
	case opData, opOack:
		return from == datagram.FromServer
	case opAck:
		return from == datagram.FromClient
	}
	return false
}

// unwrap finds the 64-bit number nearest to high whose low 16 bits are n.
func unwrap(high uint64, n uint16) uint64 {
	delta := int64(int16(n - uint16(high)))
	if delta < 0 && uint64(-delta) > high {
		return 0 // before the beginning
	}
	return high + uint64(delta)
}

// isStep reports whether a client's datagram proves that the client has got the last answer: it is the first ACK of a
// block that was sent, or of the OACK. The datagram has passed [transfer.expects]; [transfer.observe] comes after.
func (t *transfer) isStep(op uint16, b []byte) bool {
	n, _ := blockNumber(b)
	at := unwrap(t.high, n)
	switch {
	case op != opAck:
		return false
	case at == 0:
		return n == 0 && t.oacked && !t.reacted
	}
	return t.acked < at && at <= t.high
}

// observe takes the state from a datagram of either side that has passed [transfer.expects].
func (t *transfer) observe(op uint16, b []byte) (completed bool) {
	switch op {
	case opData:
		n, _ := blockNumber(b)
		at := unwrap(t.high, n)
		if at <= t.high {
			t.Resent++
			return false
		}
		t.high = at
		t.Bytes = (at-1)*uint64(t.agreed.blockSize) + uint64(len(b)-headerSize) // all but the last are full
		if len(b)-headerSize < t.agreed.blockSize {
			t.last, t.complete = at, true
		}
	case opAck:
		n, _ := blockNumber(b)
		if at := unwrap(t.high, n); at <= t.high {
			t.acked = max(t.acked, at)
		}
		return t.complete && n == uint16(t.last)
	case opOack:
		t.oacked = true
		t.agreed = parseOack(b)
		t.agreedOptions = optionText(b[2:])
	}
	return false
}

// fail takes the code and the text of an ERROR.
func (t *transfer) fail(b []byte) {
	t.code = binary.BigEndian.Uint16(b[2:])
	text, _, _ := bytes.Cut(b[headerSize:], []byte{0})
	t.Message, t.Code = string(clip(text)), min(t.code, 1<<16-2)+1
}

// endingOf is the outcome of a transfer whose session is closed for the reason why.
func (t *transfer) endingOf(why datagram.End) Ending {
	switch {
	case why == datagram.EndReplaced:
		return EndingReplaced
	case why == datagram.EndDrained:
		return EndingDrained
	case why == datagram.EndEvicted:
		return EndingEvicted
	case !t.answered:
		return EndingNoAnswer
	}
	return EndingTimeout
}
