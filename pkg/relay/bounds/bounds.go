// Package bounds has what bounds a relay, the same for DHCPv4 and DHCPv6: its memory, rates and times, and the key of
// its tokens.
package bounds

import (
	"time"

	"github.com/tinkerbell/stack/pkg/relay/fault"
)

// MinTokenKey is the least length of a token key in bytes.
const MinTokenKey = 16

// Bounds are those bounds. Zero is the default, which is in brackets; nobody can choose better than that, so that only
// tests do.
type Bounds struct {
	// ResolveInterval is how long an answer about a server's name is used at most, if its records live longer (10 s: the
	// cluster's DNS caches for as long, and a server that has moved is found before firmware gives up).
	ResolveInterval time.Duration
	// Pending is the most requests that are remembered for their replies (32,768: those of 3,000 machines a second for
	// PendingExpiry; 4 MiB when all are used).
	Pending int
	// PendingExpiry is how long (10 s: no server answers later, and firmware has asked again by then).
	PendingExpiry time.Duration
	// ClientRate is how many requests a second one chaddr may send on a listener, and in unicasts of one sender, over two
	// seconds; of DHCPv6 one MAC address, and one DUID (10: of 520 captured clients none sends more than 5). Negative: no
	// limit.
	ClientRate int
	// TotalRate is how many requests a second are relayed of all listeners, and as many unicasts (50,000: more than any
	// server answers, and a tenth of a processor here). Negative: no limit.
	TotalRate int
	// NewcomerRate is how many requests a second of machines that were never served go to the servers from each
	// listener, and of unicasts, beyond those that the servers answer (100: what Smee answers from the Kubernetes API).
	// Negative: no limit.
	NewcomerRate int
	// ServersOptional has the relay be ready while no server's name exists.
	ServersOptional bool
	// DeadAfter is how many requests in a row a server leaves unanswered, for at least 5 s, until it is taken for
	// dead: its name is looked up again, and its next address or another source port is tried (20: two machines' boots).
	DeadAfter int
	// TracePackets is how many packets are kept for the trace (512: what twenty boots send, less than 1 MiB).
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
	if n := len(b.TokenKey); n > 0 && n < MinTokenKey {
		faults = append(faults, fault.New("TokenKey", "%d bytes, at least %d are needed", n, MinTokenKey))
	}
	return faults
}
