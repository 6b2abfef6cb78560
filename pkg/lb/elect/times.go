package elect

import (
	"fmt"
	"time"
)

// Times are how long a lease is held without a renewal, and how often it is renewed.
type Times struct {
	// Lease is how long a candidate waits after it has seen a renewal, in whole seconds.
	Lease time.Duration
	// Deadline is how long the holder tries to renew before it gives up.
	Deadline time.Duration
	// Retry is the time between renewals, and between tries after an error.
	Retry time.Duration
}

// Default are the times where nothing else is set.
var Default = Times{Lease: 6 * time.Second, Deadline: 4 * time.Second, Retry: time.Second}

// driftParts is one over the most by which two clocks drift apart: one in a hundred.
const driftParts = 100

// Hold is how long the holder may use what the lease allows, counted from the start of the request that renewed it: the
// lease, less what two clocks may differ by.
func (t Times) Hold() time.Duration { return t.Lease - 2*t.Lease/driftParts }

// pace is the time between renewals that are answered as late: so that the next answer is there before the deadline,
// with a third of what is left of it to spare, and no less, since each request makes a slow API slower.
func (t Times) pace(late time.Duration) time.Duration {
	return min(t.Retry, max(t.Retry/4, (t.Deadline-late)*2/3))
}

// TimesFor are the times of a lease. The holder has to have given up, and the kernel has to have taken the address away
// even if it is late by kernelDelay, before a candidate may take the lease; within that there are four tries.
func TimesFor(lease, kernelDelay time.Duration) Times {
	t := Times{Lease: lease}
	t.Deadline = (t.Hold() - kernelDelay).Truncate(time.Second)
	t.Retry = t.Deadline / 4
	return t
}

// leastDuration is that of which the kernel lets a whole second.
const leastDuration = 3 * time.Second

// CheckDuration says what is wrong with a lease's duration; nil if it can be held.
func CheckDuration(lease time.Duration) error {
	switch {
	case lease%time.Second != 0:
		return fmt.Errorf("%v is no whole number of seconds", lease)
	case lease < leastDuration:
		return fmt.Errorf("%v is less than %v", lease, leastDuration)
	case lease > maxDuration:
		return fmt.Errorf("%v is longer than %v", lease, maxDuration)
	}
	return nil
}
