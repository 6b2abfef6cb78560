// Package page shows the journal of boots by HTTP: pages for people, an API for programs, and live events for both. With
// several replicas it shows the other pods' machines as well. It belongs on the admin port, and nowhere else.
package page

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Journal is what is shown: a [journal.Journal].
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
	options Options
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
	return &Server{options: o}
}

// Handlers are the pages by pattern, as http.ServeMux takes it: for the admin port.
func (s *Server) Handlers() map[string]http.Handler { return map[string]http.Handler{} }

// Run implements daemon.Task.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready implements daemon.Task: a pod that cannot show boots does its work all the same.
func (s *Server) Ready() error { return nil }

// String implements daemon.Task.
func (s *Server) String() string { return "boots page" }
