package feed

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Merger hands the events of all programs to one recorder, in the order of their times. It is a daemon.Task.
//
// An event waits for [Patience], since what another program has told of an earlier time may still be on its way: the
// ACK that gives an address comes from dhcp-relay, and the transfer to that address from stack-proxy. Whoever brings
// more than there is room for waits until the older half is recorded, and so do programs for their answers: nothing is
// dropped here, and no program's flood costs another one's events.
type Merger struct {
	record func(*boot.Event)
	tick   func(time.Time)

	mu      sync.Mutex
	waiting []*boot.Event
	spare   sync.Pool
}

const (
	// Patience is how long an event waits for earlier ones: a sender looks into its queue each tenth of a second, and a
	// busy node takes its time.
	Patience = 500 * time.Millisecond
	// quietStart is how long nothing is recorded at first: the programs come back one after the other, each with what it
	// has kept of the time when nobody heard.
	quietStart = 2 * time.Second
	// mostWaiting is how many events wait; with more, the older half goes at once.
	mostWaiting = 4096
	// tickEvery is how often the recorder is told the time.
	tickEvery = time.Second
)

// NewMerger makes a merger. Record is called with every event, and tick every second, one at a time.
func NewMerger(record func(*boot.Event), tick func(time.Time)) *Merger {
	return &Merger{record: record, tick: tick, spare: sync.Pool{New: func() any { return new(boot.Event) }}}
}

// Event takes an event, which it does not keep. It may be called by several goroutines.
func (m *Merger) Event(e *boot.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == mostWaiting {
		m.sort()
		m.recordFirst(mostWaiting / 2)
	}
	own := m.spare.Get().(*boot.Event)
	own.Assign(e)
	m.waiting = append(m.waiting, own)
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
		if now.Sub(begin) >= quietStart {
			m.recordUntil(now.Add(-Patience).UnixNano())
		}
		if now.Sub(ticked) >= tickEvery {
			ticked = now
			m.mu.Lock()
			m.tick(now)
			m.mu.Unlock()
		}
	}
	m.recordUntil(1<<63 - 1)
	return nil
}

// sort puts those that wait in the order of their times; those of one time stay as they came.
func (m *Merger) sort() {
	slices.SortStableFunc(m.waiting, func(a, b *boot.Event) int { return cmp.Compare(a.At, b.At) })
}

// recordUntil records the events whose times are not after until.
func (m *Merger) recordUntil(until int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sort()
	n := len(m.waiting)
	for n > 0 && m.waiting[n-1].At > until {
		n--
	}
	m.recordFirst(n)
}

// recordFirst records the first n of those that wait.
func (m *Merger) recordFirst(n int) {
	for _, e := range m.waiting[:n] {
		m.record(e)
		e.Reset()
		m.spare.Put(e)
	}
	m.waiting = slices.Delete(m.waiting, 0, n)
}
