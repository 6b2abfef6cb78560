package hardware

import (
	"iter"
	"net"
	"sync"

	"golang.org/x/time/rate"
)

const (
	// far is how many digits may differ between two MACs that have to do with each other: a third. Cards of one maker
	// share six.
	far = 4
	// maxRemembered is how many answers about unknown MACs are kept.
	maxRemembered = 4096
	// searchesPerSecond is how often the closest MAC is searched for.
	searchesPerSecond, searchesAtOnce = 20, 200
)

// closest finds the MAC that is most like one that no object has. It remembers answers until an object changes.
type closest struct {
	mu       sync.Mutex
	answers  map[[6]byte]string
	change   uint64 // that they hold for
	searches *rate.Limiter
}

// of is the most similar of some MACs, the lowest of several; "" where all are far, or too many are asked for.
func (c *closest) of(mac [6]byte, change uint64, macs iter.Seq[string]) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil || c.change != change || len(c.answers) >= maxRemembered {
		c.answers, c.change = map[[6]byte]string{}, change
	}
	best, known := c.answers[mac]
	if known || !c.searches.Allow() {
		return best
	}
	least := far + 1
	for other := range macs {
		if n := differing(mac, [6]byte([]byte(other))); n < least || n == least && other < best {
			least, best = n, other
		}
	}
	c.answers[mac] = best
	return best
}

// differing counts the hexadecimal digits in which two MACs differ.
func differing(a, b [6]byte) (n int) {
	for i := range a {
		x := a[i] ^ b[i]
		if x>>4 != 0 {
			n++
		}
		if x&15 != 0 {
			n++
		}
	}
	return n
}

// macText is a MAC of an index as people read it.
func macText(key string) string { return net.HardwareAddr(key).String() }
