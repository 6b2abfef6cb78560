package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/tinkerbell/stack/pkg/route"
)

// settle is how long after a change of the file it is read: an editor or a ConfigMap's update is several events.
const settle = 100 * time.Millisecond

// Reloader puts the routes file in force whenever it changes, and on request. It is a daemon.Task.
type Reloader struct {
	// Proxy gets the tables.
	Proxy *Proxy
	// Path is the file to watch; empty watches none.
	Path string
	// Load reads the table.
	Load func() (route.Table, error)
	// Requests ask for a reload: SIGHUP.
	Requests <-chan os.Signal
	// Logger may be nil.
	Logger *slog.Logger

	last []byte
}

// Run reloads until ctx is done.
func (r *Reloader) Run(ctx context.Context) error {
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	var events chan fsnotify.Event
	var failures chan error
	if r.Path != "" {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("failed to watch routes file: %w", err)
		}
		defer watcher.Close()
		// The directory, not the file: a ConfigMap's file is a link that is replaced, and so are most editors'.
		if err := watcher.Add(filepath.Dir(r.Path)); err != nil {
			return fmt.Errorf("failed to watch directory of routes file %s: %w", r.Path, err)
		}
		events, failures = watcher.Events, watcher.Errors
		r.last, _ = os.ReadFile(r.Path)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.Requests:
			r.Logger.Info("reload asked for")
			r.reload(ctx)
		case <-events:
			timer.Reset(settle)
		case err := <-failures:
			r.Logger.Warn("failed to watch routes file", "path", r.Path, "error", err)
			timer.Reset(settle)
		case <-timer.C:
			if r.changed() {
				r.reload(ctx)
			}
		}
	}
}

// changed is whether the file's text differs from the one that was read last.
func (r *Reloader) changed() bool {
	if r.Path == "" {
		return false
	}
	text, err := os.ReadFile(r.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return true // let Load say why
	}
	if err != nil || bytes.Equal(text, r.last) {
		return false
	}
	r.last = text
	return true
}

// reload reads and applies. A table that is wrong, or cannot be put in force, changes nothing.
func (r *Reloader) reload(ctx context.Context) {
	started := time.Now()
	table, err := r.Load()
	if err == nil {
		err = r.Proxy.Apply(ctx, table)
	}
	if ctx.Err() != nil {
		return
	}
	r.Proxy.metrics.reloaded(err)
	if err != nil {
		r.Logger.Error("failed to reload routes, the old ones stay in force", "error", err)
		return
	}
	r.Logger.Info("routes reloaded", "routes", len(table.Routes), "seconds", time.Since(started).Seconds())
}

// Ready implements daemon.Task: the old routes serve, whatever the file holds.
func (r *Reloader) Ready() error { return nil }

// String implements daemon.Task.
func (r *Reloader) String() string { return "reload" }
