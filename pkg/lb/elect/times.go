package elect

import (
	"errors"
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

// Validate names every fault of the times. The holder has to have given up, and the kernel has to have taken the
// address away even if it is late by kernelDelay, before a candidate may take the lease.
func (t Times) Validate(kernelDelay time.Duration) error {
	var faults []error
	if t.Lease%time.Second != 0 || t.Lease <= 0 {
		faults = append(faults, fmt.Errorf("LEASE_DURATION: %v is no whole number of seconds", t.Lease))
	}
	if t.Lease > maxDuration {
		faults = append(faults, fmt.Errorf("LEASE_DURATION: %v is longer than %v", t.Lease, maxDuration))
	}
	lifetime := (t.Hold() - kernelDelay).Truncate(time.Second)
	if t.Deadline > lifetime {
		faults = append(faults, fmt.Errorf(
			"RENEW_DEADLINE: %v is longer than the address of a lease of %v lives (%v): less, or a longer LEASE_DURATION",
			t.Deadline, t.Lease, max(lifetime, 0)))
	}
	if t.Retry <= 0 || 2*t.Retry > t.Deadline {
		faults = append(faults, fmt.Errorf(
			"RETRY_PERIOD: %v leaves no second try before RENEW_DEADLINE (%v): at most half of it", t.Retry, t.Deadline))
	}
	return errors.Join(faults...)
}
