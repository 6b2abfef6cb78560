package admission

import (
	"context"
	"math"
	"net/netip"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// busyPart is the part of the memory that has to be in use for the keeper to look more often, as a divisor.
	busyPart = 16
	// busyTick is the time between two looks then: at 10 Gbit/s, 25 MB arrive in it. idleTick is the time otherwise.
	busyTick, idleTick = 20 * time.Millisecond, 250 * time.Millisecond

	// shedAt is the use of the container's memory, in percent, above which connections are evicted: the rest is for what
	// comes between two looks. nearly is how far below it memory counts as short, in percent: large buffers are taken
	// back before connections are evicted.
	shedAt, nearly = 66, 10
	// settle is the time in which the memory of evicted connections becomes free, and none are evicted.
	settle = 3 * busyTick
	// goTarget is the use of the container's memory, in percent, to which Go's memory limit is tuned: garbage is
	// collected before memory counts as short. goLeast is the least that Go has, for its live memory, which the charges
	// bound.
	goTarget, goLeast = 54, 25
	// busyCollector is the part of the processor time that Go's collector may have from one collection to the next. If it
	// has more, twice in a row, and more than liveAt percent of Go's limit are in use after a collection, connections are
	// evicted, down to an overworkRoom-th of the memory: the collector would run all the time, and all goroutines wait
	// for it. A rack of a thousand machines that load files has less than that, and on a busy node a collector that
	// seems to have too much to do. Newcomers do not wait then, but are refused, for refuseFor.
	busyCollector, liveAt, overworkRoom = .2, 65, 2
	refuseFor                           = time.Second
	// leastRoom is the part of the memory that is not shed, as a divisor: a machine that boots must find room.
	leastRoom = 32

	logEvery = time.Minute
)

// Gauge measures the container.
type Gauge interface {
	// Used is the memory that is used and cannot be taken back, in bytes.
	Used() (int64, error)
	// Limit is how much of it there may be.
	Limit() int64
}

// Run keeps the account's clock, and keeps the container's memory, which includes what the charges do not cover, below
// its limit. A nil gauge is no limit.
func (a *Account) Run(ctx context.Context, g Gauge) {
	if a == nil {
		return
	}
	k := newKeeper(a, g)
	// One timer is allocated, and nothing else: while the collector is behind, a goroutine that allocates waits for it.
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, wake := idleTick, a.wake
		if a.busy() {
			wait, wake = busyTick, nil
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		now := time.Since(a.began)
		a.now.Store(int64(now))
		k.look(now, k.read())
		a.tell(now)
	}
}

// hurry has the keeper look now if it waits for idleTick.
func (a *Account) hurry() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// SmallBuffers reports whether so much is in use that the buffers of new connections have to be small from the start: a
// bound of what a socket receives is for good, since its window is agreed on when it connects.
func (r *Charges) SmallBuffers() bool {
	if r == nil {
		return false
	}
	a := r.account
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used > a.memory/busyPart || a.short.Load()
}

func (a *Account) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used > a.memory/busyPart || a.room < a.memory
}

// keeper compares the container's use of memory with its limit.
type keeper struct {
	account *Account
	gauge   Gauge
	most    int64 // Go's memory limit at the start
	now     int64 // Go's memory limit now
	sample  []metrics.Sample
	shed    time.Duration // the time of the last eviction
	refuse  time.Duration // until then newcomers do not wait
	last    reading       // after the last collection
	// overBusy is that the collector had too much to do until the last collection.
	overBusy bool
}

// The order of a keeper's samples.
const (
	sampleTotal = iota
	sampleReleased
	sampleLive
	sampleStacks
	sampleCollector
	sampleProcessor
)

func newKeeper(a *Account, g Gauge) *keeper {
	k := &keeper{account: a, gauge: g, most: debug.SetMemoryLimit(-1), shed: -settle}
	k.now = k.most
	k.sample = []metrics.Sample{
		sampleTotal:    {Name: "/memory/classes/total:bytes"},
		sampleReleased: {Name: "/memory/classes/heap/released:bytes"},
		sampleLive:     {Name: "/gc/heap/live:bytes"},
		sampleStacks:   {Name: "/memory/classes/heap/stacks:bytes"},
		// Go updates both at the end of a collection.
		sampleCollector: {Name: "/cpu/classes/gc/total:cpu-seconds"},
		sampleProcessor: {Name: "/cpu/classes/total:cpu-seconds"},
	}
	return k
}

// reading is what Go says of its memory, in bytes, and of the processor time of its collector and of the process until
// the last collection, in seconds.
type reading struct {
	own, live            int64
	collector, processor float64
}

func (k *keeper) read() reading {
	metrics.Read(k.sample)
	return reading{
		own:       int64(k.sample[sampleTotal].Value.Uint64() - k.sample[sampleReleased].Value.Uint64()),
		live:      int64(k.sample[sampleLive].Value.Uint64() + k.sample[sampleStacks].Value.Uint64()),
		collector: k.sample[sampleCollector].Value.Float64(),
		processor: k.sample[sampleProcessor].Value.Float64(),
	}
}

// look measures the container, sets the room, and evicts connections.
func (k *keeper) look(now time.Duration, r reading) {
	if k.gauge == nil {
		return
	}
	used, err := k.gauge.Used()
	if err != nil {
		return // no cgroup to be read: the charges have to do
	}
	limit := k.gauge.Limit()
	k.tune(used, limit, r.own)
	overworked := k.overworked(r)
	a, free, shed := k.account, limit/100*shedAt-used, int64(0)
	short := free < limit/100*nearly
	if began := !a.short.Swap(short) && short; began {
		k.shed = now // streams give large buffers back first
	}
	if overworked > 0 {
		k.refuse = now + refuseFor
	}
	a.mu.Lock()
	a.full = free <= 0 || now < k.refuse
	a.room = a.memory
	if a.full {
		a.room = min(a.used, a.memory)
	}
	if free < 0 && now-k.shed >= settle {
		// A byte that is charged stands for used/a.used bytes: above all the kernel's buffers are not in the charges.
		shed = int64(float64(-free) * float64(a.used) / float64(used))
		shed = min(shed, a.used-a.memory/leastRoom)
		k.shed = now
	}
	if overworked > 0 {
		shed = max(shed, min(max(overworked, a.used/16), a.used-a.memory/overworkRoom))
	}
	a.room -= max(shed, 0)
	a.mu.Unlock()
	a.shed(shed)
}

// tune lowers Go's memory limit as the kernel's buffers grow, so that garbage is collected before connections are
// evicted (TestMachineBootsBesideSlowAttacks: without it unfinished headers end the process). Go counts memory that was
// never touched, too, such as buffers of net/http: that is not used, and added.
func (k *keeper) tune(used, limit, own int64) {
	want := max(limit/100*goTarget-(used-own), limit/100*goLeast)
	want = min(want, k.most)
	if math.Abs(float64(want-k.now)) > float64(limit)/64 {
		debug.SetMemoryLimit(want)
		k.now = want
	}
}

// overworked is the number of bytes in use above those that the collector can keep up with; 0 if there are none, or if
// there was no collection since the last call. Without it, 4 machines boot beside a flood of HTTP/2 streams, not 64.
func (k *keeper) overworked(r reading) int64 {
	if r.processor <= k.last.processor {
		return 0
	}
	share := (r.collector - k.last.collector) / (r.processor - k.last.processor)
	k.last = r
	before := k.overBusy
	if k.overBusy = share >= busyCollector; !k.overBusy || !before {
		return 0 // or many that go on at one moment, as when a disk is back, would be taken for a flood
	}
	return max(r.live-k.now/100*liveAt, 0)
}

// loggedCounts are a route's counters in its last log line, and the time of that.
type loggedCounts struct {
	once             bool
	at               time.Duration
	evicted, refused uint64
}

// tell logs the evictions and refusals of each route, once a minute at most.
func (a *Account) tell(now time.Duration) {
	type line struct {
		route            string
		evicted, refused uint64
		client           netip.Addr
		used             int64
		room, memory     int64
	}
	var lines []line
	a.mu.Lock()
	for _, r := range a.routes {
		refused := uint64(0)
		for _, n := range r.refused[Memory:] {
			refused += n
		}
		if r.logged.once && now-r.logged.at < logEvery || r.evicted == r.logged.evicted && refused == r.logged.refused {
			continue
		}
		l := line{
			route: r.name, evicted: r.evicted - r.logged.evicted, refused: refused - r.logged.refused, room: a.room,
			memory: a.memory,
		}
		for _, c := range a.largest {
			if c.route == r && c.used > l.used {
				l.client, l.used = c.addr, c.used
			}
		}
		lines, r.logged = append(lines, l), loggedCounts{true, now, r.evicted, refused}
	}
	a.mu.Unlock()
	for _, l := range lines {
		a.log.Warn("no room for all connections", "route", l.route, "given_up", l.evicted, "refused", l.refused,
			"largest_client", l.client, "largest_client_bytes", l.used, "room_bytes", l.room, "limit_bytes", l.memory)
	}
}
