package admission

import (
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

// add bars a client.
func (b *bars) add(addr netip.Addr, now int64) {
	known, found := (*b)[addr]
	switch {
	case now < known.until:
		return
	case found && now < known.until+int64(known.long): // again, as soon as it could
		known.long = min(2*known.long, barMost)
	default:
		known.long = barTime
	}
	if !found && len(*b) >= mostBars {
		b.sweep(now)
		if len(*b) >= mostBars {
			return
		}
	}
	if *b == nil {
		*b = bars{}
	}
	known.until = now + int64(known.long)
	(*b)[addr] = known
}

// hold is whether a client is barred.
func (b bars) hold(addr netip.Addr, now int64) bool { return len(b) > 0 && now < b[addr].until }

// sweep forgets those whose bars are long over.
func (b bars) sweep(now int64) {
	for addr, known := range b {
		if now >= known.until+int64(known.long) {
			delete(b, addr)
		}
	}
}
