// Package udp is a NAT for any UDP protocol: a session for each client address and port, answered from the
// address and port that the client asked, until both sides are silent.
package udp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Defaults of [Config].
const (
	DefaultIdle        = 90 * time.Second
	DefaultMaxSessions = 4096
	DefaultMaxClient   = 64

	troublePerSecond = 20 // log lines
)

// Config describes a route.
type Config struct {
	// Route names it in metrics and errors.
	Route string
	// Listen is the address and port that clients ask. The zero address is all, IPv4 and IPv6 alike.
	Listen netip.AddrPort
	// Pick chooses the endpoint for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Report may be nil; see [datagram.Report].
	Report datagram.Report
	// DrainTimeout is how long sessions may go on after shutdown began.
	DrainTimeout time.Duration
	// Idle ends a silent session; zero is DefaultIdle.
	Idle time.Duration
	// MaxSessions and MaxSessionsPerClient bound the table; zero is DefaultMaxSessions and DefaultMaxClient.
	MaxSessions, MaxSessionsPerClient int
	// Workers is the number of sockets and loops that share the port; zero is one.
	Workers int
	// Logger names the route already. It may be nil, Metrics too.
	Logger  *slog.Logger
	Metrics *Metrics
}

// Front is an open route.
type Front struct {
	route   string
	local   netip.AddrPort
	limits  *datagram.Limits
	timing  *datagram.Timing
	meters  *meters
	workers []*worker
	serving atomic.Bool
}

// Listen binds the port. Serve or Close has to follow.
func Listen(c Config) (*Front, error) {
	if c.Pick == nil {
		return nil, fmt.Errorf("failed to open udp route %s: it has no backend", c.Route)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	sockets, err := datagram.Listen(c.Listen, max(c.Workers, 1))
	if err != nil {
		return nil, err
	}
	f := &Front{
		route:  c.Route,
		meters: c.Metrics.of(c.Route),
		local:  sockets[0].Local(),
		limits: datagram.NewLimits(c.maxSessions()),
		timing: datagram.NewTiming(positive(c.Idle, DefaultIdle), time.Second, c.DrainTimeout),
	}
	h := &handler{
		log:     c.Logger,
		meters:  f.meters,
		trouble: datagram.NewGate(troublePerSecond),
		report:  c.Report,
	}
	f.workers, err = datagram.NewWorkers(sockets, h, datagram.Options{
		Limits: f.limits,
		Pick:   c.Pick,
		Timing: f.timing,
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (c Config) maxSessions() (total, perClient int) {
	return positive(c.MaxSessions, DefaultMaxSessions), positive(c.MaxSessionsPerClient, DefaultMaxClient)
}

func positive[T int | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}

// Update takes over c's DrainTimeout, Idle, MaxSessions and MaxSessionsPerClient while the front serves. Its other
// fields cannot change.
func (f *Front) Update(c Config) {
	f.limits.Set(c.maxSessions())
	f.timing.Set(positive(c.Idle, DefaultIdle), time.Second, c.DrainTimeout)
	for _, w := range f.workers {
		w.Wake()
	}
}

// Addr is the bound address and port.
func (f *Front) Addr() netip.AddrPort { return f.local }

// Sessions is the number of sessions in the table.
func (f *Front) Sessions() int { return f.limits.Len() }

// Serve passes datagrams until ctx is done, then those of known sessions for at most DrainTimeout.
func (f *Front) Serve(ctx context.Context) error {
	f.serving.Store(true)
	defer f.serving.Store(false)
	return datagram.RunAll(ctx, f.workers)
}

// Ready tells whether datagrams are passed now.
func (f *Front) Ready() error {
	if !f.serving.Load() {
		return errors.New("udp route " + f.route + " is not being served")
	}
	return nil
}

// Close gives up a front that was never served.
func (f *Front) Close() {
	for _, w := range f.workers {
		w.Close()
	}
}
