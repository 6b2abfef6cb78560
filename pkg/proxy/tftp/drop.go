package tftp

import (
	"slices"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
)

// Drop is the reason for which a datagram is not passed on.
type Drop = datagram.Drop

// Reasons beside those of [datagram.Drop]. docs/tftp.md has a row for each.
const (
	DropMalformed    = datagram.Drops + iota // no opcode, no file name, no block number
	DropNoSession                            // not a request, and of no known transfer
	DropUnexpected                           // an opcode that this side does not send in this transfer
	DropWriteRefused                         // a write request
	DropMode                                 // a boot file in another mode than octet
	DropNotReady                             // a server has no such file, and boot files are still awaited
	DropUnanswered                           // a boot file, and too many first answers to the network are open
	DropWhileWaiting                         // repeated while the window that follows waits for the disk
)

var drops = slices.Concat(datagram.DropNames, metric.Enum[Drop]{
	"malformed", "no_session", "unexpected", "write_refused", "mode",
	"not_ready", "unanswered", "while_waiting",
})

// Ending is the end of a transfer.
type Ending uint8

// Endings. docs/tftp.md has a row for each.
const (
	EndingCompleted   Ending = iota // the last block was acknowledged
	EndingServerError               // the server sent an ERROR: no such file, mostly
	EndingClientError               // the client sent an ERROR: firmware that only asked for the size
	EndingReplaced                  // the client began another transfer from the same port
	EndingUnreachable               // no program listens at the endpoint
	EndingNoAnswer                  // the server never answered
	EndingTimeout                   // both sides became silent
	EndingDrained                   // cut off by the shutdown
	EndingEvicted                   // evicted from a full table: its client had not reacted to an answer
)

var endings = metric.Enum[Ending]{
	"completed", "server_error", boot.ReasonClientError, boot.ReasonReplaced, "refused", "no_answer", boot.ReasonTimeout,
	boot.ReasonDrained, boot.ReasonEvicted,
}

// String is the outcome as a metric's label.
func (e Ending) String() string { return endings.Name(e) }

// recorded is the outcome as it is recorded.
func (e Ending) recorded() record.Outcome {
	switch e {
	case EndingCompleted, EndingServerError, EndingClientError:
		return record.Done
	case EndingUnreachable, EndingNoAnswer:
		return record.NoServer
	default:
		return record.Torn
	}
}
