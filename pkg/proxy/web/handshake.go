package web

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/record"
)

// handshakes is a handler for what net/http says. It alone knows of failed TLS handshakes, and tells by a line only:
// they are counted, whatever level is logged.
type handshakes struct {
	slog.Handler
	metrics *routeMetrics
	tell    func(client netip.Addr, why string)
}

// Enabled implements slog.Handler.
func (h handshakes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handshakes) Handle(ctx context.Context, r slog.Record) error {
	if rest, ok := strings.CutPrefix(r.Message, "http: TLS handshake error from "); ok {
		h.metrics.refused("tls")
		from, why, _ := strings.Cut(rest, ": ")
		if client, err := netip.ParseAddrPort(from); err == nil {
			h.tell(client.Addr().Unmap().WithZone(""), why)
		}
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// tellHandshake records a TLS handshake that failed by what either side said. A client that only hangs up looks
// whether somebody is there.
func (f *Front) tellHandshake(client netip.Addr, why string) {
	if why != "EOF" {
		f.config.Sink.Record(record.Exchange{
			Kind: record.Stream, Outcome: record.Refused, Reason: record.Handshake, Message: why, Client: client,
			Port: f.Addr().Port(), Begin: time.Now(), Took: 1, // net/http does not tell how long it took
		})
	}
}
