package udp

import (
	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Drop is the reason for which a datagram is not passed on.
type Drop uint8

// Reasons. docs/tftp.md has a row for each.
const (
	DropNot         Drop = iota
	DropTruncated        // longer than any UDP datagram may be
	DropPortZero         // from port 0, which cannot be answered
	DropStranger         // to a session's socket, but not from its endpoint
	DropTableFull        // the route has as many sessions as it may
	DropClientLimit      // the client has as many sessions as it may
	DropNoEndpoint       // no backend is known
	DropLoop             // from one of our own sockets: the backend resolves to ourselves
	DropDraining         // a new client during shutdown
	DropSocket           // the kernel gave no socket
	DropUnsent           // the kernel did not take the datagram
	DropOverflow         // lost in the full receive buffer
	DropSource           // a client that is in none of the route's sources
)

var drops = metric.Enum[Drop]{
	"none", "truncated", "port_zero", "stranger", "table_full", "client_limit", "no_endpoint", "loop", "draining",
	"socket", "unsent", "overflow", "source",
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

// Outcome is the end of a session.
type Outcome uint8

// Outcomes. docs/tftp.md has a row for each.
const (
	OutcomeIdle     Outcome = iota // silence after an answer
	OutcomeNoAnswer                // the endpoint never answered, as in one-way protocols
	OutcomeRefused                 // no program listens at the endpoint
	OutcomeDrained                 // cut off by the shutdown
	OutcomeEvicted                 // evicted from a full table: its client had not reacted to an answer
)

var outcomes = metric.Enum[Outcome]{"idle", "no_answer", "refused", "drained", "evicted"}

// String is the outcome as a metric's label.
func (o Outcome) String() string { return outcomes.Name(o) }
