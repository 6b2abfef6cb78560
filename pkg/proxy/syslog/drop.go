package syslog

import "github.com/tinkerbell/stack/internal/metric"

// Drop is the reason for which a datagram was lost.
type Drop uint8

// Reasons. docs/syslog.md has a row for each.
const (
	NotDropped     Drop = iota
	DropEmpty           // no payload
	DropTruncated       // longer than any UDP datagram may be
	DropNoEndpoint      // no backend is known
	DropLoop            // the backend resolves to ourselves
	DropUnsent          // the kernel did not take the datagram
	DropOverflow        // lost in the full receive buffer
	DropRefused         // forwarded, but no program listens at the endpoint, as ICMP tells
)

var drops = metric.Enum[Drop]{
	"none", "empty", "truncated", "no_endpoint", "loop", "unsent", "overflow",
	"refused",
}

// String is the reason as a metric's label.
func (d Drop) String() string { return drops.Name(d) }
