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

// Ending is the end of a session.
type Ending uint8

// Endings. docs/tftp.md has a row for each.
const (
	EndingIdle        Ending = iota // silence after an answer
	EndingNoAnswer                  // the endpoint never answered, as in one-way protocols
	EndingUnreachable               // no program listens at the endpoint
	EndingDrained                   // cut off by the shutdown
	EndingEvicted                   // evicted from a full table: its client had not reacted to an answer
)

var endings = metric.Enum[Ending]{"idle", "no_answer", "refused", "drained", "evicted"}

// String is the outcome as a metric's label.
func (e Ending) String() string { return endings.Name(e) }
