package watch

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tinkerbell/stack/internal/testwait"
)

// write gives a file a text, as a ConfigMap and editors do it: a new file takes the name.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestChangesAreTold: also one between the first loading of the file and Run, once each, and requests without a change.
func TestChangesAreTold(t *testing.T) {
	path, requests := filepath.Join(t.TempDir(), "settings"), make(chan os.Signal)
	write(t, path, "first")
	f := New(path, requests, nil)
	write(t, path, "before Run")
	var told atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, func() { told.Add(1) }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	reloads := func(n int32) {
		t.Helper()
		testwait.Until(t, "a reload", func() bool { return told.Load() == n })
	}
	reloads(1)
	write(t, path, "while it runs")
	reloads(2)
	write(t, path, "while it runs") // no change
	requests <- syscall.SIGHUP
	reloads(3)
	write(t, path, "again")
	reloads(4)
}

// TestNoFile: requests alone.
func TestNoFile(t *testing.T) {
	requests := make(chan os.Signal, 1)
	requests <- syscall.SIGHUP
	ctx, cancel := context.WithCancel(t.Context())
	if err := New("", requests, nil).Run(ctx, cancel); err != nil {
		t.Error(err)
	}
}
