package record

import (
	"hash/maphash"
	"net/http"
	"net/netip"
	"sync/atomic"
)

// A machine asks for some fifty things in a boot. A client that asks for hundreds in a second is a load test, or reads
// a disk piece by piece: more of what it asks for tells nothing more, and to tell it is not free. So each client has a
// budget of ordinary requests. What failed, what is long, calls, DHCP, TFTP and syslog have none: the queues bound
// them.
const (
	clientRate  = 32  // ordinary requests of one client in a second
	clientBurst = 128 // that it may be ahead
	clientSlots = 4096
	// LongAnswer is how long an answer is that is no longer ordinary, in bytes.
	LongAnswer = 64 << 10
)

// budgets are of clients by address. Two that share a place, which nobody can foresee, share a budget. They may be used
// by several goroutines.
type budgets struct {
	seed   maphash.Seed
	spared atomic.Uint64
	slots  [clientSlots]atomic.Int64 // until when a client's requests are paid for: nanoseconds
}

// allow reports whether a request that ended in order is to be told of. At is when it ended, in nanoseconds.
func (b *budgets) allow(client netip.Addr, at int64, status uint16, bytes uint64) bool {
	if status >= http.StatusBadRequest || bytes >= LongAnswer {
		return true
	}
	const each = int64(1e9 / clientRate)
	address := client.As16()
	slot := &b.slots[maphash.Bytes(b.seed, address[:])%clientSlots]
	paid := slot.Load()
	if paid < at || paid-at > clientBurst*each { // no client is further ahead, unless the clock was set back
		paid = at
	}
	paid += each
	if paid-at > clientBurst*each {
		b.spared.Add(1)
		return false
	}
	slot.Store(paid) // of two at once one may be free
	return true
}
