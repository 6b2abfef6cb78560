package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/record"
)

// handshakes is a handler for what net/http says. It alone knows of failed TLS handshakes, and tells by a line only:
// they are counted, whatever level is logged.
type handshakes struct {
	slog.Handler
	front *Front
}

// Enabled implements slog.Handler.
func (h handshakes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h handshakes) Handle(ctx context.Context, r slog.Record) error {
	if rest, ok := strings.CutPrefix(r.Message, "http: TLS handshake error from "); ok {
		h.front.metrics.refused("tls")
		from, why, _ := strings.Cut(rest, ": ")
		client, err := netip.ParseAddrPort(from)
		// A connection that ends without a word, as one that only looks whether the port is open, says nothing.
		told := strings.Contains(why, "tls: ") || strings.Contains(why, "HTTPS server")
		if err == nil && told && h.front.config.Sink != nil {
			h.front.mistaken(client.Addr().Unmap(), boot.ReasonHandshake, h.front.explained(client, why))
		}
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// explained is why a handshake failed, with the dates of the certificate that the client was shown: an expired one, or
// a client whose clock is wrong, is the likeliest reason.
func (f *Front) explained(client netip.AddrPort, why string) string {
	if strings.Contains(why, "bad record MAC") { // OpenSSL's alert of TLS 1.3 that is not encrypted as it should be
		why = "tls: the client broke off at our certificate"
	}
	client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
	for a := range f.connections.open.All() {
		if c, ok := a.current().(*conn); ok && a.peer == client {
			if made := c.agreed.Load(); made != nil && made.shown != nil {
				const date = "2006-01-02"
				return fmt.Sprintf("%s (certificate valid from %s to %s)", why,
					made.shown.NotBefore.UTC().Format(date), made.shown.NotAfter.UTC().Format(date))
			}
		}
	}
	return why
}

// mistaken records a connection whose TLS one of the two sides does not take.
func (f *Front) mistaken(client netip.Addr, reason, why string) {
	f.config.Sink.Record(record.Exchange{
		Kind: record.Stream, Outcome: record.Refused, Route: f.current.Load().sites[0].route,
		Port: f.Addr().Port(), Client: client,
		Begin: time.Now(), Reason: reason, Message: why,
	})
}
