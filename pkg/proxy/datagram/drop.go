package datagram

import "github.com/tinkerbell/stack/internal/metric"

// Drop is the reason for which a datagram of a protocol with sessions is not passed on. The protocols' own reasons
// begin at [Drops].
type Drop uint8

// Reasons. docs/tftp.md has a row for each.
const (
	NotDropped      Drop = iota
	DropTruncated        // longer than any UDP datagram may be
	DropPortZero         // from port 0, which cannot be answered
	DropStranger         // to a session's socket, but not from its endpoint
	DropTableFull        // the route has as many sessions as it may
	DropClientLimit      // the client, or its IPv6 network, has as many sessions as it may
	DropNoEndpoint       // no backend is known
	DropLoop             // from one of our own sockets: the backend resolves to ourselves
	DropDraining         // a new client during shutdown
	DropSocket           // the kernel gave no socket
	DropUnsent           // the kernel did not take the datagram
	DropOverflow         // lost in the full receive buffer
	Drops
)

// DropNames are the values of the metrics' labels. A protocol appends its own.
var DropNames = metric.Enum[Drop]{
	metric.None, "truncated", "port_zero", "stranger", "table_full", "client_limit", "no_endpoint", "loop", "draining",
	"socket", "unsent", "overflow",
}
