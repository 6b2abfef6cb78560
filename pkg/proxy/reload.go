package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/tinkerbell/stack/internal/watch"
	"github.com/tinkerbell/stack/pkg/route"
)

// Reloader puts the routes file in force whenever it changes, and on request. It is a daemon.Task.
type Reloader struct {
	// Proxy is the one whose table is replaced.
	Proxy *Proxy
	// File is the table's, which was made before the first table was loaded.
	File *watch.Files
	// Load reads the table.
	Load func() (route.Table, error)
	// Logger may be nil.
	Logger *slog.Logger
}

// Run reloads until ctx is done.
func (r *Reloader) Run(ctx context.Context) error {
	r.Logger = cmp.Or(r.Logger, slog.New(slog.DiscardHandler))
	r.File.Run(ctx, func() { r.reload(ctx) })
	return nil
}

// reload reads and applies the table. A table that is wrong, or cannot be put in force, changes nothing.
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

// Ready implements daemon.Task. It is nil: with a wrong file the old routes go on serving.
func (r *Reloader) Ready() error { return nil }

// String implements daemon.Task.
func (r *Reloader) String() string { return "reload" }
