package loop

import (
	"runtime"
	"time"
)

// yieldAfter is how long a goroutine runs before it yields to Go's scheduler.
const yieldAfter = 8 * time.Millisecond

// Yielder is for a goroutine that blocks in system calls of its own instead of the scheduler. One that is not scheduled
// anew for 10 ms counts as hogging a processor, though it sleeps in the kernel most of the time: the runtime's monitor
// then wakes every 20 us to preempt it and to take the processor from it, which it has to get back behind each wait.
type Yielder struct{ last time.Time }

// Yield lets other goroutines run, where this one has run for long enough.
func (y *Yielder) Yield(now time.Time) {
	if now.Sub(y.last) >= yieldAfter {
		y.last = now
		runtime.Gosched()
	}
}
