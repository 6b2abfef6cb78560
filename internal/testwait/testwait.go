// Package testwait waits in tests for what another goroutine or the kernel brings about.
package testwait

import (
	"testing"
	"time"
)

const (
	patience = 30 * time.Second // for a busy machine
	interval = 5 * time.Millisecond
)

// Until waits until ok is true, and fails the test where that takes half a minute.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(interval) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

// Success waits until try returns nil, and fails the test where that takes half a minute. It then says the last error.
func Success(t testing.TB, what string, try func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(interval) {
		if err = try(); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain: %s: %v", patience, what, err)
		}
	}
}
