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

	// shedAt is the use of the container's memory, in percent, above which connections are evicted. The memory of evicted
	// connections becomes free after a while: below urgentAt the keeper waits for settle before it evicts more.
	shedAt, urgentAt = 66, 72
	settle           = 3 * busyTick
	// nearly is how far below shedAt memory counts as short, in percent.
	nearly = 10
	// goTarget is the use of the container's memory, in percent, to which Go's memory limit is tuned.
	goTarget = 54
	// goLeast is the least memory limit of Go, in percent of the container's.
	goLeast = 25
	// busyCollector is the part of the processor time that Go's collector may have from one collection to the next. If it
	// has more, and more than liveAt percent of Go's limit are in use after a collection, connections are evicted: the
	// collector would run all the time.
	busyCollector, liveAt = .2, 65
	// refuseAfterOverwork is how long newcomers are refused, instead of waiting, after the collector had too much to do.
	refuseAfterOverwork = time.Second
	// pace is the part of the free memory below shedAt that may be charged until the next look, as a divisor: the socket
	// buffers of a connection can grow to so many times its charge.
	pace = 64
	// plenty is the part of the container's memory that has to be free below shedAt for newcomers to wait for the next
	// look instead of being refused, as a divisor. waits is the number of looks that a newcomer waits for at most.
	plenty, waits = 8, 8
	// leavingPart is the part of the memory that evicted connections may still use before newcomers wait, as a divisor.
	leavingPart = 8
	// leastRoom is the part of the memory that stays room under pressure, as a divisor, and overworkRoom under the
	// pressure of an overworked collector alone: a machine that boots must find room.
	leastRoom, overworkRoom = 32, 4

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
		now := time.Now()
		a.now.Store(now.UnixNano())
		k.look(now)
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

// Crowded reports whether so much is in use that the buffers of new connections have to be small from the start.
func (r *Route) Crowded() bool { return r != nil && r.account.busy() }

func (a *Account) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used > a.memory/busyPart || a.room < a.memory || a.leaving > a.memory/leavingPart
}

// keeper compares the container's use of memory with its limit.
type keeper struct {
	account      *Account
	gauge        Gauge
	most         int64 // Go's memory limit at the start
	now          int64 // Go's memory limit now
	sample       []metrics.Sample
	shed         time.Time // the time of the last eviction
	overworkedAt time.Time // the last time that the collector had too much to do
	// collector and processor are the processor time of the collector, and of the process, until the last collection,
	// in seconds.
	collector, processor float64
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
	k := &keeper{account: a, gauge: g, most: debug.SetMemoryLimit(-1)}
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

// look measures the container, sets the room, and evicts connections.
func (k *keeper) look(now time.Time) {
	defer k.account.wakeWaiting()
	if k.gauge == nil {
		return
	}
	used, err := k.gauge.Used()
	if err != nil {
		return // no cgroup to be read: the charges have to do
	}
	limit := k.gauge.Limit()
	metrics.Read(k.sample)
	k.tune(used, limit)
	overworked := k.overworked()
	a, free := k.account, limit/100*shedAt-used
	a.short.Store(free < limit/100*nearly)
	shed := int64(0)
	a.mu.Lock()
	switch {
	case free >= 0 && overworked > 0:
		a.room = max(a.used-max(overworked, a.used/16), a.memory/overworkRoom)
		shed = a.used - a.room
	case free >= 0:
		a.room = min(a.used+free/pace, a.memory)
	case used > limit/100*urgentAt || now.Sub(k.shed) > settle:
		// The connections use more than their charges: room shrinks by several times the excess.
		k.shed = now
		a.room = a.used - max(-4*free, a.used/8)
		shed = a.used - max(a.room, a.memory/leastRoom)
	default:
		a.room = min(a.room, a.used)
	}
	a.room = max(a.room, a.memory/leastRoom)
	if overworked > 0 {
		k.overworkedAt = now
	}
	a.plenty = free >= limit/plenty && now.Sub(k.overworkedAt) > refuseAfterOverwork
	a.mu.Unlock()
	a.shed(shed)
}

// wakeWaiting wakes the connections that have waited for the next look.
func (a *Account) wakeWaiting() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.looked != nil {
		close(a.looked)
		a.looked = nil
	}
}

// tune lowers Go's memory limit as the kernel's buffers grow, so that garbage is collected before connections are
// evicted.
func (k *keeper) tune(used, limit int64) {
	own := int64(k.sample[sampleTotal].Value.Uint64() - k.sample[sampleReleased].Value.Uint64())
	want := max(limit/100*goTarget-max(used-own, 0), limit/100*goLeast)
	want = min(want, k.most)
	if math.Abs(float64(want-k.now)) > float64(limit)/64 {
		debug.SetMemoryLimit(want)
		k.now = want
	}
}

// overworked is the number of bytes in use above those that the collector can keep up with; 0 if there are none, or if
// there was no collection since the last call.
func (k *keeper) overworked() int64 {
	collector, processor := k.sample[sampleCollector].Value.Float64(), k.sample[sampleProcessor].Value.Float64()
	if processor <= k.processor {
		return 0
	}
	share := (collector - k.collector) / (processor - k.processor)
	k.collector, k.processor = collector, processor
	live := int64(k.sample[sampleLive].Value.Uint64() + k.sample[sampleStacks].Value.Uint64())
	if share < busyCollector {
		return 0
	}
	return max(live-k.now/100*liveAt, 0)
}

// loggedCounts are a route's counters in its last log line, and the time of that.
type loggedCounts struct {
	at               time.Time
	evicted, refused uint64
}

// tell logs the evictions and refusals of each route, once a minute at most, and forgets old bars.
func (a *Account) tell(now time.Time) {
	type line struct {
		route            string
		evicted, refused uint64
		client           netip.Addr
		used             int64
		room, memory     int64
	}
	var lines []line
	a.mu.Lock()
	if now.Sub(a.swept) > barMost {
		a.swept = now
		for _, r := range a.routes {
			r.bars.sweep(now.UnixNano())
		}
	}
	for _, r := range a.routes {
		refused := uint64(0)
		for _, n := range r.refused[Memory:] {
			refused += n
		}
		if now.Sub(r.logged.at) < logEvery || r.evicted == r.logged.evicted && refused == r.logged.refused {
			continue
		}
		l := line{
			route: r.name, evicted: r.evicted - r.logged.evicted, refused: refused - r.logged.refused, room: a.room,
			memory: a.memory,
		}
		if len(r.largest) > 0 {
			l.client, l.used = r.largest[0].addr, r.largest[0].used
		}
		lines, r.logged = append(lines, l), loggedCounts{now, r.evicted, refused}
	}
	a.mu.Unlock()
	for _, l := range lines {
		a.log.Warn("no room for all connections", "route", l.route, "given_up", l.evicted, "refused", l.refused,
			"largest_client", l.client, "largest_client_bytes", l.used, "room_bytes", l.room, "limit_bytes", l.memory)
	}
}
