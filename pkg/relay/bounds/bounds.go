// Package bounds has the settings of a relay that are the same for DHCPv4 and DHCPv6: bounds of its memory, rates and
// times, and the key of its tokens.
package bounds

import (
	"time"

	"github.com/tinkerbell/stack/pkg/relay/fault"
)

// MinTokenKey is the least length of a token key in bytes.
const MinTokenKey = 16

// The largest values of the settings.
const (
	maxPending = 1 << 24
	maxTrace   = 1 << 16
)

// Bounds are those settings. Zero is the default, which is in brackets.
type Bounds struct {
	// ResolveInterval is how long an answer about a server's name is used at most, if its records live longer (10 s).
	ResolveInterval time.Duration
	// Pending is the most requests that are remembered for their replies (32,768).
	Pending int
	// PendingExpiry is how long (10 s).
	PendingExpiry time.Duration
	// ClientRate is how many requests a second one chaddr may send on a listener, and in unicasts of one sender, over two
	// seconds; of DHCPv6 one MAC address, and one DUID (10). Negative: no limit.
	ClientRate int
	// TotalRate is how many requests a second are relayed of all listeners, and as many unicasts (50,000). Negative: no
	// limit.
	TotalRate int
	// NewcomerRate is how many requests a second of machines that were never served go to the servers from each
	// listener, and of unicasts, beyond those that the servers answer (100). Negative: no limit.
	NewcomerRate int
	// ServersOptional has the relay be ready while no server's name exists.
	ServersOptional bool
	// DeadAfter is how many requests in a row a server leaves unanswered, for at least 5 s, until it is taken for
	// dead: its name is looked up again, and its next address or another source port is tried (20).
	DeadAfter int
	// TracePackets is how many packets are kept for the trace (512). Negative: none.
	TracePackets int
	// TokenKey, if set, signs a token that a server repeats: in option 82, of DHCPv6 behind the name in the Interface-Id.
	// By it a reply is recognised even when the request was relayed by another replica or before a restart. A reply to a
	// request that took a token with it has to bring it back. Replicas share the key, of at least MinTokenKey bytes.
	TokenKey []byte
}

// WithDefaults sets the fields that are zero to their defaults.
func (b Bounds) WithDefaults() Bounds {
	unset(&b.ResolveInterval, 10*time.Second)
	unset(&b.Pending, 32768)
	unset(&b.PendingExpiry, 10*time.Second)
	unset(&b.ClientRate, 10)
	unset(&b.TotalRate, 50000)
	unset(&b.NewcomerRate, 100)
	unset(&b.DeadAfter, 20)
	unset(&b.TracePackets, 512)
	return b
}

func unset[T int | time.Duration](value *T, otherwise T) {
	if *value == 0 {
		*value = otherwise
	}
}

// Faults returns the faults of the settings.
func (b Bounds) Faults() (faults []error) {
	add := func(field, format string, args ...any) { faults = append(faults, fault.New(field, format, args...)) }
	if b.TracePackets > maxTrace {
		add("TracePackets", "%d: at most %d", b.TracePackets, maxTrace)
	}
	if b.DeadAfter < 0 {
		add("DeadAfter", "%d: not a positive number", b.DeadAfter)
	}
	if b.Pending < 0 || b.Pending > maxPending {
		add("Pending", "%d: not within 1 and %d", b.Pending, maxPending)
	}
	if b.ResolveInterval < 0 {
		add("ResolveInterval", "%s: below 0", b.ResolveInterval)
	}
	if b.PendingExpiry < 0 {
		add("PendingExpiry", "%s: below 0", b.PendingExpiry)
	}
	if n := len(b.TokenKey); n > 0 && n < MinTokenKey {
		add("TokenKey", "%d bytes, at least %d are needed", n, MinTokenKey)
	}
	return faults
}
