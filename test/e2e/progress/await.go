package progress

import (
	"context"
	"testing"
	"time"
)

// Await waits until try returns nil, and fails the test where that takes a minute. It then says the last error.
func Await(tb testing.TB, what string, try func() error) {
	tb.Helper()
	const patience, pause = time.Minute, 20 * time.Millisecond // on a busy machine
	look := func(context.Context) error { return try() }
	if err := Until(tb.Context(), Patience{Quiet: patience}, pause, look); err != nil {
		tb.Fatalf("waited in vain: %s: %v", what, err)
	}
}
