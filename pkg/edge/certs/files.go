package certs

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tinkerbell/stack/internal/watch"
)

// files keeps TLS that is built of files, anew whenever they change. If that fails, the TLS that was built last stays
// in force.
type files[TLS any] struct {
	watched watch.Files
	build   func(texts [][]byte) (*TLS, error)
	log     *slog.Logger
	metrics *routeMetrics
	current atomic.Pointer[TLS]

	mu    sync.Mutex
	fault error
}

func newFiles[TLS any](o Options, build func(texts [][]byte) (*TLS, error), paths ...string) *files[TLS] {
	f := &files[TLS]{build: build, metrics: o.Metrics.route(o.Route)}
	f.log = cmp.Or(o.Logger, slog.New(slog.DiscardHandler)).With("route", o.Route)
	for _, path := range paths {
		if path != "" {
			f.watched.Paths = append(f.watched.Paths, path)
		}
	}
	return f
}

// load reads the files and builds of them. It logs and counts a fault once.
func (f *files[TLS]) load() {
	texts, _, err := f.watched.Read()
	var built *TLS
	if err == nil {
		built, err = f.build(texts)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.current.Store(built)
		f.log.Info("certificates loaded", "files", f.watched.Paths)
		f.metrics.loads.Count(nil)
	case f.fault == nil || f.fault.Error() != err.Error():
		f.log.Error("failed to load certificates", "error", err, "old_in_force", f.current.Load() != nil)
		f.metrics.loads.Count(err)
	}
	f.fault = err
}

// takeOver takes over what others with the same settings have in force, if these could not be loaded.
func (f *files[TLS]) takeOver(old *files[TLS]) {
	if now := old.current.Load(); now != nil {
		f.current.CompareAndSwap(nil, now)
	}
}

// Run loads the files again when they change, until ctx is done.
func (f *files[TLS]) Run(ctx context.Context) error {
	f.watched.Run(ctx, f.load)
	return nil
}

// Ready is nil if there are certificates, even if a later change of the files could not be loaded.
func (f *files[TLS]) Ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.current.Load() != nil:
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

// ReadPool reads a file of certificates to trust, in PEM.
func ReadPool(name string) (*x509.CertPool, error) {
	text, err := watch.Read(name)
	if err != nil {
		return nil, err
	}
	return poolOf(name, text)
}
