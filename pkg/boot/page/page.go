// Package page shows the journal of boots by HTTP: live pages for people, an API for programs. It
// belongs on the admin port, and nowhere else.
package page

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Journal is shown: a [journal.Journal]. Its values are the caller's own.
type Journal interface {
	// Machines are all machines, in any order, without answers and lines.
	Machines() []journal.MachineView
	// Machine is all that is known of one machine, by its ID.
	Machine(id string) (journal.MachineView, bool)
	// Version is another one whenever something has changed.
	Version() uint64
}

// Options are what a [Server] needs.
type Options struct {
	Journal Journal
	// Sources are the programs that tell of boots; nil where that is not known.
	Sources func() []feed.Source
	// Lines shows syslog lines, which may hold secrets, to everybody: else only to requests from the loopback interface,
	// as those through kubectl port-forward are.
	Lines bool
	// Logger may be nil.
	Logger *slog.Logger
	// Now may be nil.
	Now func() time.Time
}

// Server serves the pages, and is the [daemon.Task] that ends their streams.
type Server struct {
	options Options
	look    look
	streams atomic.Int64

	begun time.Time
	end   chan struct{} // closed when streams are to end
}

// New makes a server.
func New(o Options) *Server {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sources == nil {
		o.Sources = func() []feed.Source { return nil }
	}
	return &Server{options: o, look: look{journal: o.Journal}, begun: time.Now(), end: make(chan struct{})}
}

// Handlers are the pages by pattern, as http.ServeMux takes it: for the admin port.
func (s *Server) Handlers() map[string]http.Handler {
	handlers := make(map[string]http.Handler)
	for pattern, serve := range map[string]http.HandlerFunc{
		"GET /boots":                  s.serveListPage,
		"GET /boots/live":             filtered(s.serveListLive),
		"GET /boots/{id}":             s.serveMachinePage,
		"GET /boots/{id}/live":        s.serveMachineLive,
		"GET /boots/static/boots.css": s.serveStatic,
		"GET /boots/static/boots.js":  s.serveStatic,
		"GET /boots/static/boots.svg": s.serveStatic,
		"GET /api/v1/boots":           filtered(s.serveList),
		"GET /api/v1/boots/{id}":      filtered(s.serveMachine),
		"GET /api/v1/openapi.yaml":    s.serveOpenAPI,
	} {
		handlers[pattern] = confined(serve)
	}
	return handlers
}

// contentPolicy lets a page load its own style sheet, script and pictures, speak with its own server, and nothing else.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// confined says what a browser may do with an answer.
func confined(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next(w, r)
	})
}

// Run implements daemon.Task.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.end)
	ticker := time.NewTicker(linger)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			s.look.forget(now)
		}
	}
}

// isLocal reports whether a request comes through the loopback interface, as by kubectl port-forward and exec: whoever
// may do that may do more in the cluster than this port offers. The rest of 127/8 does not count: a service mesh hands
// over other pods' requests from there.
func isLocal(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	addr := peer.Addr().Unmap()
	return err == nil && (addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback())
}

// showsLines reports whether a request's sender may see syslog lines.
func (s *Server) showsLines(r *http.Request) bool { return s.options.Lines || isLocal(r) }

// machine is the part of a machine that a request's sender may see.
func (s *Server) machine(r *http.Request, id string) (journal.MachineView, bool) {
	m, found := s.options.Journal.Machine(id)
	if !s.showsLines(r) {
		m.Lines = nil
	}
	return m, found
}

// ended tells whether Run has.
func (s *Server) ended() bool {
	select {
	case <-s.end:
		return true
	default:
		return false
	}
}

// Ready implements daemon.Task.
func (s *Server) Ready() error { return nil }

// String implements daemon.Task.
func (s *Server) String() string { return "boots page" }
