package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/tinkerbell/stack/internal/watch"
)

// files builds TLS of files, again whenever they change. If that fails, the TLS that was built last stays in force.
type files struct {
	watch.Files
	build   func(texts [][]byte) error
	log     *slog.Logger
	metrics *routeMetrics

	mu    sync.Mutex
	built bool
	fault error
}

// load reads the files and builds of them.
func (f *files) load() error {
	texts, _, err := f.Read()
	if err == nil {
		err = f.build(texts)
	}
	return f.conclude(err)
}

// keep notes that the TLS of a former store is in force, though the files are wrong.
func (f *files) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.built = true
}

// conclude notes, counts and logs an outcome, each fault once.
func (f *files) conclude(err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.built = true
		f.log.Info("certificates loaded", "files", f.Paths)
		f.metrics.loads.Count(nil)
	case f.fault == nil || f.fault.Error() != err.Error():
		f.log.Error("failed to load certificates", "error", err, "old_in_force", f.built)
		f.metrics.loads.Count(err)
	}
	f.fault = err
	return err
}

// run loads the files when they change, until ctx is done.
func (f *files) run(ctx context.Context) {
	f.Run(ctx, func() { _ = f.load() }) // the outcome is logged and counted
}

// ready is nil if TLS is in force.
func (f *files) ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.built:
		return nil
	case f.fault != nil:
		return f.fault
	default:
		return errors.New("certificates are not loaded yet")
	}
}

func poolOf(name string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("failed to parse %s: it has no certificate", name)
	}
	return pool, nil
}
