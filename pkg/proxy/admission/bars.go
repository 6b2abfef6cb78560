package admission

import (
	"math"
	"net/netip"
	"time"
)

const (
	// barTime is how long a client gets no new connections when one of its requests was refused: to accept a connection,
	// read fifty requests and refuse them costs a hundred times what it costs to refuse the connection. It doubles each
	// time that the same happens soon after, up to barMost: what is longer would be felt by machines behind the same
	// address.
	barTime, barMost = time.Second, 8 * time.Second
	// mostBars are remembered for a route; further clients are not barred.
	mostBars = 4096
)

// bars are the clients of a route that get no new connections now, and those that got none lately.
type bars map[netip.Addr]bar

type bar struct {
	until int64 // by the account's clock
	long  time.Duration
}

// left is how long a client's bar still lasts. A clock that was set back makes none longer.
func (k bar) left(now int64) int64 {
	if left := k.until - now; left <= int64(barMost) {
		return left
	}
	return math.MinInt64
}

// recent is whether the bar lasts, or ended no longer ago than it lasted.
func (k bar) recent(now int64) bool { return k.left(now) > -int64(k.long) }

// add bars a client.
func (b *bars) add(addr netip.Addr, now int64) {
	known, found := (*b)[addr]
	switch {
	case known.left(now) > 0:
		return
	case found && known.recent(now): // again, as soon as it could
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

// hold is whether a client is barred.
func (b bars) hold(addr netip.Addr, now int64) bool { return len(b) > 0 && b[addr].left(now) > 0 }

// sweep forgets those whose bars are long over.
func (b bars) sweep(now int64) {
	for addr, known := range b {
		if !known.recent(now) {
			delete(b, addr)
		}
	}
}
