package loglimit

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Of each kind of line a client may have clientBurst at once, and one more each clientEach; all clients together
// totalBurst, and one more each totalEach.
const (
	clientBurst, clientEach = 20, time.Second
	totalBurst, totalEach   = 200, time.Second / 5
)

const (
	// clientSlots is how many clients are told apart, of each kind. Two that share a place, which nobody can foresee,
	// share what they may have.
	clientSlots = 1024
	// mostKinds is how many kinds are told apart. An endpoint may answer with many codes.
	mostKinds = 32
	// leftOutPeriod is how often is told what was left out.
	leftOutPeriod = 10 * time.Second
)

// Clients bounds lines that clients cause, such as those about requests that failed. A flood of one kind, or of one
// client, hides no line of another. What was left out is told each 10 s, in one line.
type Clients struct {
	logger *slog.Logger
	seed   maphash.Seed
	start  time.Time

	mu      sync.Mutex
	kinds   map[string]*kind
	telling *time.Timer // nil while nothing was left out
}

// kind is of one kind of line.
type kind struct {
	all     time.Duration              // until when the lines of all clients are paid for, since the start
	clients [clientSlots]time.Duration // those of each client
	leftOut int
}

// NewClients makes a limiter that tells logger what was left out.
func NewClients(logger *slog.Logger) *Clients {
	return &Clients{logger: logger, seed: maphash.MakeSeed(), start: time.Now(), kinds: map[string]*kind{}}
}

// Allow reports whether a line of a kind may be logged about a client: an address or, of IPv6, its /64.
func (c *Clients) Allow(client netip.Addr, name string) bool {
	if client.Is6() && !client.Is4In6() {
		if prefix, err := client.Prefix(64); err == nil {
			client = prefix.Addr()
		}
	}
	bytes := client.As16()
	place := maphash.Bytes(c.seed, bytes[:]) % clientSlots
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[name]
	if k == nil {
		if len(c.kinds) >= mostKinds {
			name = "other"
		}
		if k = c.kinds[name]; k == nil {
			k = &kind{}
			c.kinds[name] = k
		}
	}
	now := time.Since(c.start)
	if pay(&k.clients[place], now, clientBurst, clientEach) && pay(&k.all, now, totalBurst, totalEach) {
		return true
	}
	k.leftOut++
	if c.telling == nil {
		c.telling = time.AfterFunc(leftOutPeriod, c.Flush)
	}
	return false
}

// pay takes a line's price from what is left of a burst.
func pay(paid *time.Duration, now time.Duration, burst int, each time.Duration) bool {
	next := max(*paid, now) + each
	if next-now > time.Duration(burst)*each {
		return false
	}
	*paid = next
	return true
}

// Flush tells at once what was left out, if anything was. Whoever made the limiter calls it at the end.
func (c *Clients) Flush() {
	c.mu.Lock()
	if c.telling == nil {
		c.mu.Unlock()
		return
	}
	c.telling.Stop()
	c.telling = nil
	lines, names := 0, []string{}
	for _, name := range slices.Sorted(maps.Keys(c.kinds)) {
		if k := c.kinds[name]; k.leftOut > 0 {
			lines += k.leftOut
			names = append(names, fmt.Sprintf("%s: %d", name, k.leftOut))
			k.leftOut = 0
		}
	}
	c.mu.Unlock()
	c.logger.LogAttrs(context.Background(), slog.LevelWarn, "lines about clients were left out",
		slog.Int("lines", lines), slog.String("kinds", strings.Join(names, ", ")))
}
