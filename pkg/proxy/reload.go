package proxy

import (
	"context"
	"time"

	"github.com/tinkerbell/stack/pkg/route"
)

// Reload reads a table and puts it in force. A table that is wrong, or cannot be put in force, changes nothing.
func (p *Proxy) Reload(ctx context.Context, load func() (route.Table, error)) {
	started := time.Now()
	table, err := load()
	if err == nil {
		err = p.Apply(ctx, table)
	}
	if ctx.Err() != nil {
		return
	}
	p.metrics.reloaded(err)
	if err != nil {
		p.log.Error("failed to reload routes, the old ones stay in force", "error", err)
		return
	}
	p.log.Info("routes reloaded", "routes", len(table.Routes), "seconds", time.Since(started).Seconds())
}
