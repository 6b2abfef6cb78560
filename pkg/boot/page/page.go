// Package page shows the journal of boots by HTTP: pages for people, an API for programs, live events for both. With
// several replicas it shows the other pods' machines as well. It belongs on the admin port, and nowhere else.
package page

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Journal is what is shown: a [journal.Journal]. What it returns is the caller's own.
type Journal interface {
	// Machines are all machines, the stuck ones first, without answers and lines.
	Machines() []journal.MachineView
	// Machine is all that is known of one machine, by its ID.
	Machine(id string) (journal.MachineView, bool)
	// Watch delivers the IDs of machines that changed, or "" where some were left out, until stop is called.
	Watch() (changes <-chan string, stop func())
}

// Options are what a [Server] needs.
type Options struct {
	Journal Journal
	// Pod is the name of this replica.
	Pod string
	// Replicas finds the admin ports of all replicas, this one's included; nil shows this one's machines only.
	Replicas func(context.Context) ([]netip.AddrPort, error)
	// ReplicaTimeout is how long another replica may take to answer; 0 means [DefaultReplicaTimeout].
	ReplicaTimeout time.Duration
	// Relay is host and port of the pod's dhcp-relay's admin port, for packets of a machine; empty where there is none.
	Relay string
	// Local tells a request from within the pod, as through kubectl port-forward: only those may have packets, because a
	// rogue server needs no more than these. Nil refuses them to all.
	Local func(*http.Request) bool
	// Logger may be nil.
	Logger *slog.Logger
	// Now may be nil.
	Now func() time.Time
}

// DefaultReplicaTimeout is how long another replica may take to answer.
const DefaultReplicaTimeout = time.Second

// Server serves the pages, and is the [daemon.Task] that owns the connections to other replicas.
type Server struct {
	options  Options
	instance string
	fleet    *fleet
	streams  atomic.Int64
	end      chan struct{} // closed when streams are to end
}

// New makes a server. Its pages answer at once; [Server.Run] has to run for those of other replicas.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.ReplicaTimeout == 0 {
		o.ReplicaTimeout = DefaultReplicaTimeout
	}
	o.Pod = Clean(o.Pod, nameLength)
	s := &Server{options: o, instance: rand.Text(), end: make(chan struct{})}
	s.fleet = newFleet(&s.options, s.instance)
	return s
}

// Handlers are the pages by pattern, as http.ServeMux takes it: for the admin port.
func (s *Server) Handlers() map[string]http.Handler {
	handlers := make(map[string]http.Handler)
	for pattern, serve := range map[string]http.HandlerFunc{
		"GET /boots":                  s.serveListPage,
		"GET /boots/live":             s.serveListLive,
		"GET /boots/{id}":             s.serveMachinePage,
		"GET /boots/{id}/live":        s.serveMachineLive,
		"GET /boots/{id}/pcap":        s.servePackets,
		"GET /boots/static/boots.css": s.serveStatic,
		"GET /boots/static/boots.js":  s.serveStatic,
		"GET /boots/static/boots.svg": s.serveStatic,
		"GET /api/v1/boots":           s.serveList,
		"GET /api/v1/boots/{id}":      s.serveMachine,
		"GET /api/v1/events":          s.serveEvents,
		"GET /api/v1/openapi.yaml":    s.serveOpenAPI,
	} {
		handlers[pattern] = s.guard(serve)
	}
	return handlers
}

// contentPolicy lets a page load its own style sheet, script and pictures, speak with its own server, and nothing else.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard says what a browser may do with an answer, and recognizes a request of this very process.
func (s *Server) guard(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(instanceHeader) == s.instance {
			w.WriteHeader(http.StatusNoContent)
			return
		}
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
	s.fleet.run(ctx)
	return nil
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

// Ready implements daemon.Task: a pod that cannot show boots does its work all the same.
func (s *Server) Ready() error { return nil }

// String implements daemon.Task.
func (s *Server) String() string { return "boots page" }
