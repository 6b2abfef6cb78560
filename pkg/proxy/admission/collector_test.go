package admission

import (
	"net/netip"
	"runtime/debug"
	"testing"
	"time"
)

type evictee struct {
	Charge
	evicted int
}

func (e *evictee) Evict() { e.evicted++ }

type halfUsed struct{}

func (halfUsed) Used() (int64, error) { return 1 << 29, nil }
func (halfUsed) Limit() int64         { return 1 << 30 }

// What Go's collector cannot keep up with is given up, although the container has memory: not below a half, so that a
// rack that loads its files on a busy node loses none.
func TestCollectorKeepsUp(t *testing.T) {
	const live, little = 1 << 29, 1 << 20 // of a limit for Go of 54 % of the container's memory
	type round struct {
		collector, processor float64 // seconds since the round before
		live                 int64
	}
	busy, idle := round{.5, 1, live}, round{.1, 1, live}
	for name, c := range map[string]struct {
		rounds []round
		want   int // evicted of 650, of which 500 are a half of the memory
	}{
		"twice in a row":         {[]round{busy, busy}, 150},
		"and later":              {[]round{idle, busy, busy, busy, busy}, 150},
		"once":                   {[]round{busy}, 0},
		"not in a row":           {[]round{busy, idle, busy, idle}, 0},
		"without collection":     {[]round{busy, {}, {}}, 0},
		"collection after pause": {[]round{busy, {}, busy}, 150},
		"little is live":         {[]round{{.5, 1, little}, {.5, 1, little}}, 0},
		"keeps up":               {[]round{idle, idle, idle}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
			a := New(Limits{Memory: 1000, Descriptors: 1000}, nil)
			r := a.Route("web")
			all := make([]evictee, 650)
			for i := range all {
				from := netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 2)})
				if why := r.Admit(&all[i].Charge, &all[i], from, Cost{Memory: 1}); why != Admitted {
					t.Fatalf("connection %d: %s", i, why)
				}
			}
			k, now := newKeeper(a, halfUsed{}), reading{own: 1 << 29}
			for i, r := range c.rounds {
				now.collector, now.processor, now.live = now.collector+r.collector, now.processor+r.processor, r.live
				k.look(time.Duration(i)*time.Second, now)
			}
			got := 0
			for i := range all {
				got += all[i].evicted
			}
			if got != c.want {
				t.Errorf("%d were given up, want %d", got, c.want)
			}
		})
	}
}
