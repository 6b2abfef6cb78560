package admission

import (
	"math"
	"net/netip"
	"time"
)

const (
	// barTime is how long a client gets no new connections after one of its requests was refused: to accept a connection
	// and refuse fifty requests on it costs a hundred times as much as to refuse the connection. The time doubles if the
	// client is refused again soon after, up to barMost: machines behind the same address would feel a longer one.
	barTime, barMost = time.Second, 8 * time.Second
	// mostBars is the number of clients that a route bars at a time; further clients are not barred.
	mostBars = 4096
)

// bars are the clients of a route that are barred from new connections, or were until lately.
type bars map[netip.Addr]bar

type bar struct {
	until int64 // by the account's clock
	long  time.Duration
}

// left is how long a client's bar still lasts, in nanoseconds. A clock that is set back makes no bar longer.
func (k bar) left(now int64) int64 {
	if left := k.until - now; left <= int64(barMost) {
		return left
	}
	return math.MinInt64
}

// recent reports whether the bar lasts, or ended no longer ago than it lasted.
func (k bar) recent(now int64) bool { return k.left(now) > -int64(k.long) }

// add bars a client.
func (b *bars) add(addr netip.Addr, now int64) {
	known, found := (*b)[addr]
	switch {
	case known.left(now) > 0:
		return
	case found && known.recent(now): // refused again soon after
		known.long = min(2*known.long, barMost)
	case !found && len(*b) >= mostBars:
		return
	default:
		known.long = barTime
	}
	if *b == nil {
		*b = bars{}
	}
	known.until = now + int64(known.long)
	(*b)[addr] = known
}

// hold reports whether a client is barred.
func (b bars) hold(addr netip.Addr, now int64) bool { return len(b) > 0 && b[addr].left(now) > 0 }

// sweep forgets the bars that ended long ago.
func (b bars) sweep(now int64) {
	for addr, known := range b {
		if !known.recent(now) {
			delete(b, addr)
		}
	}
}
