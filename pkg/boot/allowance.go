package boot

import (
	"sync/atomic"
	"time"
)

// Allowance bounds the events of what is refused or dropped. A flood is refused; what is told of it must not take the
// place of what is told of machines that boot. The metrics count all of it. It may be used by several goroutines, and
// its zero value is ready.
type Allowance struct{ second, told atomic.Int64 }

// AllowanceRate is how many events a second an allowance has.
const AllowanceRate = 200

// Take is whether one more may be told of at a time, in nanoseconds of any clock. Where two goroutines begin a second
// together, a few more may be.
func (a *Allowance) Take(at int64) bool {
	second := at / int64(time.Second)
	if a.second.Load() != second {
		a.second.Store(second)
		a.told.Store(0)
	}
	return a.told.Add(1) <= AllowanceRate
}
