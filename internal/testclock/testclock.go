// Package testclock sets the wall clock, in virtual machines that tests have to themselves.
package testclock

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Add sets the wall clock forward by d, or back if d is negative, until the test ends. It skips the test where the
// clock is other programs' as well: test/e2e/kernels runs it.
func Add(t *testing.T, d time.Duration) {
	t.Helper()
	if os.Getenv("GUEST") == "" { //nolint:forbidigo // test/e2e/guest sets it for tests
		t.Skip("sets the wall clock: runs in a virtual machine only")
	}
	set := func(d time.Duration) {
		to := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
		if err := unix.Settimeofday(&to); err != nil {
			t.Fatal(err)
		}
	}
	set(d)
	t.Cleanup(func() { set(-d) })
}
