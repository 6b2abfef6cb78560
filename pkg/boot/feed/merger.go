package feed

import (
	"context"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Merger hands the events of several queues to one recorder, in the order of their times. It is a daemon.Task.
//
// Events of DHCP, of requests and of syslog have a queue each, so that a flood of one kind costs the others nothing. An
// event waits for [Patience], since what another program has told of an earlier time may still be on its way: the ACK
// that gives an address comes from dhcp-relay, and the transfer to that address from stack-proxy.
type Merger struct {
	record func(*boot.Event)
	tick   func(time.Time)
	queues []*boot.Queue
	batch  []boot.Event

	held  []boot.Event // memory of the events that wait
	free  []int32      // places in held
	order []int32      // places of those that wait, by time
}

const (
	// Patience is how long an event waits for earlier ones: a sender and we ourselves look into queues each tenth of a
	// second, and a busy node takes its time.
	Patience = 500 * time.Millisecond
	// settle is how long nothing is recorded at first: the programs come back one after the other, each with what it has
	// kept of the time when nobody heard.
	settle = 2 * time.Second
	// heldMost is how many events wait; with more, the older half goes at once.
	heldMost = 4096
	// tickEvery is how often the recorder is told the time.
	tickEvery = time.Second
	// turnMost is how many events of one queue are taken before the next one's.
	turnMost = 64
)

// NewMerger makes a merger. Record is called with every event, and tick every second, by one goroutine.
func NewMerger(record func(*boot.Event), tick func(time.Time), queues ...*boot.Queue) *Merger {
	m := &Merger{
		record: record, tick: tick, queues: queues, batch: make([]boot.Event, turnMost),
		held: make([]boot.Event, heldMost), free: make([]int32, heldMost), order: make([]int32, 0, heldMost),
	}
	for i := range m.free {
		m.free[i] = int32(i)
	}
	return m
}

// Ready implements daemon.Task.
func (m *Merger) Ready() error { return nil }

// String implements daemon.Task.
func (m *Merger) String() string { return "journal of boots" }

// Run implements daemon.Task. What there is when ctx is done is still recorded.
func (m *Merger) Run(ctx context.Context) error {
	ticker := time.NewTicker(PollEvery)
	defer ticker.Stop()
	begin := time.Now()
	ticked := begin
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		now := time.Now()
		m.collect()
		if now.Sub(begin) >= settle {
			m.release(now.Add(-Patience).UnixNano())
		}
		if now.Sub(ticked) >= tickEvery {
			ticked = now
			m.tick(now)
		}
	}
	m.collect()
	m.release(1<<63 - 1)
	return nil
}

// collect empties the queues, one after the other, so that none has to wait for the end of another.
func (m *Merger) collect() {
	for more := true; more; {
		more = false
		for _, q := range m.queues {
			n := q.Take(m.batch)
			more = more || n == len(m.batch)
			for i := range m.batch[:n] {
				m.hold(&m.batch[i])
			}
		}
	}
}

// hold has an event wait.
func (m *Merger) hold(e *boot.Event) {
	if len(m.free) == 0 {
		m.sort()
		m.recordFirst(heldMost / 2)
	}
	last := len(m.free) - 1
	place := m.free[last]
	m.free = m.free[:last]
	m.held[place].Assign(e)
	m.order = append(m.order, place)
}

// sort puts those that wait in the order of their times; those of one time stay as they came.
func (m *Merger) sort() {
	slices.SortStableFunc(m.order, func(a, b int32) int {
		switch x, y := m.held[a].At, m.held[b].At; {
		case x < y:
			return -1
		case x > y:
			return 1
		default:
			return 0
		}
	})
}

// release records the events whose times are not after until.
func (m *Merger) release(until int64) {
	if len(m.order) == 0 {
		return
	}
	m.sort()
	n := len(m.order)
	for n > 0 && m.held[m.order[n-1]].At > until {
		n--
	}
	m.recordFirst(n)
}

// recordFirst records the first n of those that wait.
func (m *Merger) recordFirst(n int) {
	for _, place := range m.order[:n] {
		m.record(&m.held[place])
	}
	m.free = append(m.free, m.order[:n]...)
	m.order = slices.Delete(m.order, 0, n)
}
