package certs

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// pollEvery is how often files are looked at. They are small; reading them sees every way of replacing one, the
// renamed directory link of a Secret as well as a file written in place.
const pollEvery = 2 * time.Second

const maxFile = 1 << 20

// files reads some files, and builds something of them whenever they change. What could be built last stays when
// the files are wrong.
type files struct {
	names   []string
	build   func(texts [][]byte) error
	log     *slog.Logger
	metrics *routeMetrics

	mu    sync.Mutex
	sum   [sha256.Size]byte
	built bool
	fault error
}

// load reads the files, and builds if they are others than before.
func (f *files) load() error {
	texts := make([][]byte, len(f.names))
	sum := sha256.New()
	for i, name := range f.names {
		text, err := readFile(name)
		if err != nil {
			return f.conclude(false, err)
		}
		texts[i] = text
		own := sha256.Sum256(text)
		sum.Write(own[:])
	}
	f.mu.Lock()
	same := f.built && [sha256.Size]byte(sum.Sum(nil)) == f.sum
	f.mu.Unlock()
	if same {
		return f.conclude(false, nil)
	}
	if err := f.build(texts); err != nil {
		return f.conclude(false, err)
	}
	f.mu.Lock()
	f.built, f.sum = true, [sha256.Size]byte(sum.Sum(nil))
	f.mu.Unlock()
	return f.conclude(true, nil)
}

// keep says that there is something to go on with, though the files are wrong.
func (f *files) keep() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.built = true
}

// conclude notes, counts and logs an outcome, each fault once.
func (f *files) conclude(changed bool, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err != nil && (f.fault == nil || f.fault.Error() != err.Error()):
		f.log.Error("failed to load certificates", "error", err, "old_in_force", f.built)
		f.metrics.loaded(err)
	case changed:
		f.log.Info("certificates loaded", "files", f.names)
		f.metrics.loaded(nil)
	}
	f.fault = err
	return err
}

// watch loads again and again until ctx is done.
func (f *files) watch(ctx context.Context) {
	ticks := time.NewTicker(pollEvery)
	defer ticks.Stop()
	for {
		_ = f.load() // it has been noted
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

// ready is nil when something could be built, ever.
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

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("failed to open certificates: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("failed to read certificates: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("failed to read certificates: %s is larger than %d bytes", name, maxFile)
	}
	return text, nil
}

func poolOf(name string, text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("failed to parse %s: it has no certificate", name)
	}
	return pool, nil
}
