package http1

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestResult has who ended an answer: the client, or a timer, the kernel's TCP_USER_TIMEOUT among them.
func TestResult(t *testing.T) {
	for failure, stalled := range map[unix.Errno]bool{unix.ECONNRESET: false, unix.ETIMEDOUT: true} {
		if r := new(Exchange).result(failure); !r.Gone || r.Stalled != stalled {
			t.Errorf("%v: got %+v, want stalled %t", failure, r, stalled)
		}
	}
}
