package journal

import (
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Journal keeps machines and their boots, within its limits. One goroutine records and ticks, any number reads.
type Journal struct {
	options Options

	mu sync.RWMutex
}

// New makes an empty journal.
func New(o Options) *Journal {
	o.Limits, o.Waits = o.Limits.withDefaults(), o.Waits.withDefaults()
	return &Journal{options: o}
}

// Record takes an event, in the order of arrival. The time is the event's.
func (j *Journal) Record(*boot.Event) {}

// Tick tells the time, so that silence can mean something. It is to be called about once a second, by the goroutine
// that records.
func (j *Journal) Tick(time.Time) {}

// Machines lists all machines without answers and lines: the stuck ones first, then those that boot, and among equals
// those first that were heard last. What it returns is shared, and not to be changed.
func (j *Journal) Machines() []MachineView { return nil }

// Machine is all that is known of one machine, by its ID or by any of its MACs or its address.
func (j *Journal) Machine(string) (MachineView, bool) { return MachineView{}, false }

// Counts tells how many machines are in which state at which step.
func (j *Journal) Counts() []Count { return nil }

// Watch delivers the IDs of machines that changed, until stop is called. A reader that is too slow gets "" in place of
// the IDs that it missed.
func (j *Journal) Watch() (changes <-chan string, stop func()) {
	return make(chan string), func() {}
}
