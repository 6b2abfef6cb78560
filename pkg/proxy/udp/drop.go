package udp

import (
	"slices"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Drop is the reason for which a datagram is not passed on.
type Drop = datagram.Drop

// DropSource is a reason beside those of [datagram.Drop]: a client that is in none of the route's sources.
const DropSource = datagram.Drops

var drops = append(slices.Clip(datagram.DropNames), "source")

// Outcome is the end of a session.
type Outcome uint8

// Outcomes. docs/tftp.md has a row for each.
const (
	OutcomeIdle        Outcome = iota // silence after an answer
	OutcomeNoAnswer                   // the endpoint never answered, as in one-way protocols
	OutcomeUnreachable                // no program listens at the endpoint
	OutcomeDrained                    // cut off by the shutdown
	OutcomeEvicted                    // evicted from a full table: its client had not reacted to an answer
)

var outcomes = metric.Enum[Outcome]{"idle", "no_answer", "refused", "drained", "evicted"}

// String is the outcome as a metric's label.
func (o Outcome) String() string { return outcomes.Name(o) }
