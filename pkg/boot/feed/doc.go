// Package feed brings events to the journal: those of dhcp-relay by a Unix datagram socket in a volume that both
// containers of the pod mount, and those of stack-proxy itself, in the order of their times.
//
// Neither end ever waits for the other. What finds no room is counted and dropped; what is not an event of dhcp-relay
// is refused and counted. Nothing comes back by the socket: whoever could write to it could confuse what is shown, and
// nothing else.
package feed

import "time"

const (
	// datagramMost is how long a datagram with events may be, in bytes.
	datagramMost = 16 << 10
	// Every is how often queues are looked into: no packet wakes their readers.
	Every = 100 * time.Millisecond
)
