package web

import (
	"context"
	"log/slog"
	"strings"
)

// handshakes is a handler for what net/http says. It alone knows of failed TLS handshakes, and tells by a line only:
// they are counted, whatever level is logged.
type handshakes struct {
	slog.Handler
	metrics *routeMetrics
}

// Enabled implements slog.Handler.
func (h handshakes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handshakes) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") {
		h.metrics.refused("tls")
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
