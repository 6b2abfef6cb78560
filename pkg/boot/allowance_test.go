package boot

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestAllowance(t *testing.T) {
	var a Allowance
	for second := range int64(3) {
		var told atomic.Int64
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				for range AllowanceRate {
					if a.Take(second*int64(time.Second) + 7) {
						told.Add(1)
					}
				}
			})
		}
		group.Wait()
		if n := told.Load(); n < AllowanceRate || n > 2*AllowanceRate {
			t.Errorf("second %d: told of %d", second, n)
		}
	}
	if a.Take(2*int64(time.Second) + 8) {
		t.Error("one more in the same second")
	}
}
