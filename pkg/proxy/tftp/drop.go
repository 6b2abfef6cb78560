package tftp

import (
	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
)

// Drop is the reason for which a datagram is not passed on.
type Drop uint8

// Reasons. docs/tftp.md has a row for each.
const (
	DropNot          Drop = iota
	DropMalformed         // no opcode, no file name, no block number
	DropTruncated         // longer than any UDP datagram may be
	DropPortZero          // from port 0, which cannot be answered
	DropNoSession         // not a request, and of no known transfer
	DropUnexpected        // an opcode that this side does not send in this transfer
	DropWriteRefused      // a write request on a route that allows none
	DropStranger          // from another address or port than the transfer's server
	DropTableFull         // the route has as many transfers as it may
	DropClientLimit       // the client has as many transfers as it may
	DropNoEndpoint        // no backend is known
	DropLoop              // from one of our own sockets: the backend resolves to ourselves
	DropDraining          // a new request during shutdown
	DropSocket            // the kernel gave no socket
	DropUnsent            // the kernel did not take the datagram
	DropOverflow          // lost in the full receive buffer
	DropHeld              // repeated while the window that follows waits for the route's rate
)

var drops = metric.Enum[Drop]{
	"none", "malformed", "truncated", "port_zero", "no_session", "unexpected", "write_refused", "stranger",
	"table_full", "client_limit", "no_endpoint", "loop", "draining", "socket", "unsent", "overflow",
	"held",
}

// String is the reason as a metric's label.
func (d Drop) String() string { return drops.Name(d) }

var refusals = map[datagram.Refusal]Drop{
	datagram.RefusedTableFull:   DropTableFull,
	datagram.RefusedClientLimit: DropClientLimit,
	datagram.RefusedNoEndpoint:  DropNoEndpoint,
	datagram.RefusedLoop:        DropLoop,
	datagram.RefusedDraining:    DropDraining,
	datagram.RefusedSocket:      DropSocket,
}

// Outcome is the end of a transfer.
type Outcome uint8

// Outcomes. docs/tftp.md has a row for each.
const (
	OutcomeCompleted   Outcome = iota // the last block was acknowledged
	OutcomeServerError                // the server sent an ERROR: no such file, mostly
	OutcomeClientError                // the client sent an ERROR: firmware that only asked for the size
	OutcomeReplaced                   // the client began another transfer from the same port
	OutcomeRefused                    // no program listens at the endpoint
	OutcomeNoAnswer                   // the server never answered
	OutcomeTimeout                    // both sides became silent
	OutcomeDrained                    // cut off by the shutdown
	OutcomeEvicted                    // evicted from a full table: its client had not reacted to an answer
)

var outcomes = metric.Enum[Outcome]{
	"completed", "server_error", "client_error", "replaced", "refused", "no_answer", "timeout", "drained",
	"evicted",
}

// String is the outcome as a metric's label.
func (o Outcome) String() string { return outcomes.Name(o) }

// recorded is the outcome as it is recorded.
func (o Outcome) recorded() record.Outcome {
	switch o {
	case OutcomeCompleted, OutcomeServerError, OutcomeClientError:
		return record.Done
	case OutcomeRefused, OutcomeNoAnswer:
		return record.NoServer
	default:
		return record.Torn
	}
}
