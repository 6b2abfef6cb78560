package loop

import (
	"runtime"
	"time"
)

// turn is how long a goroutine goes on until it asks Go's scheduler for another turn.
const turn = 8 * time.Millisecond

// Turn is for a goroutine that blocks in system calls of its own instead of the scheduler. One that is not scheduled
// anew for 10 ms counts as hogging a processor, though it sleeps in the kernel most of the time: the runtime's monitor
// then wakes every 20 us to preempt it and to take the processor from it, which it has to get back behind each wait.
type Turn struct{ begun time.Time }

// End lets others have a turn, where this one has been long enough.
func (t *Turn) End(now time.Time) {
	if now.Sub(t.begun) >= turn {
		t.begun = now
		runtime.Gosched()
	}
}
