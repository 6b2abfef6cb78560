// Package tftp is a TFTP-aware NAT: machines talk to one address and port for the whole of a transfer, whatever
// port the server behind answers from (RFC 1350, 2347, 2348, 2349, 7440).
//
// Options, blocks and errors pass untouched. docs/design/datagrams.md has the decisions, docs/tftp.md the
// metrics and the log.
package tftp

import (
	"cmp"
	"context"
	"errors"
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

	linger           = 3 * time.Second
	troublePerSecond = 20  // log lines
	endedPerSecond   = 500 // log lines
)

// Config describes a route.
type Config struct {
	// Route names it in logs and metrics.
	Route string
	// Listen is the address and port that machines ask. The zero address is all, IPv4 and IPv6 alike.
	Listen netip.AddrPort
	// Pick chooses the endpoint (address and port of requests, usually 69) for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Report may be nil; see [datagram.Report].
	Report datagram.Report
	// DrainTimeout is how long live transfers may go on after shutdown began.
	DrainTimeout time.Duration
	// Idle ends a silent transfer; zero is DefaultIdle.
	Idle time.Duration
	// MaxSessions and MaxSessionsPerClient bound the table; zero is DefaultMaxSessions and DefaultMaxClient.
	MaxSessions, MaxSessionsPerClient int
	// Workers is the number of sockets and loops that share the port; zero is one.
	Workers int
	// AllowWrite passes write requests on; else they are answered with ERROR 2.
	AllowWrite bool
	// Logger names the route already. It may be nil, Metrics too.
	Logger  *slog.Logger
	Metrics *Metrics

	patience time.Duration // of tests
}

func (c Config) withDefaults() Config {
	or := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	or(&c.MaxSessions, DefaultMaxSessions)
	or(&c.MaxSessionsPerClient, DefaultMaxClient)
	or(&c.Workers, 1)
	if c.Idle <= 0 {
		c.Idle = DefaultIdle
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Front is an open route.
type Front struct {
	config  Config
	local   netip.AddrPort
	limits  *datagram.Limits
	timing  *datagram.Timing
	handler *handler
	workers []*worker
	serving atomic.Bool
}

// Listen binds the port. Serve or Close has to follow.
func Listen(c Config) (*Front, error) {
	if c.Pick == nil {
		return nil, errors.New("failed to open tftp route " + c.Route + ": it has no backend")
	}
	c = c.withDefaults()
	sockets, err := datagram.Listen(c.Listen, c.Workers)
	if err != nil {
		return nil, err
	}
	f := &Front{
		config: c,
		local:  sockets[0].Local(),
		limits: datagram.NewLimits(c.MaxSessions, c.MaxSessionsPerClient),
	}
	f.timing = datagram.NewTiming(c.Idle, min(linger, c.Idle), c.DrainTimeout)
	f.handler = &handler{
		config:   c,
		log:      c.Logger,
		meters:   c.Metrics.of(c.Route),
		trouble:  datagram.NewGate(troublePerSecond),
		ended:    datagram.NewGate(endedPerSecond),
		patience: cmp.Or(c.patience, defaultPatience),
	}
	f.handler.allowWrite.Store(c.AllowWrite)
	f.workers, err = datagram.NewWorkers(sockets, f.handler, datagram.Options{
		Limits: f.limits,
		Pick:   c.Pick,
		Timing: f.timing,
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Update takes over c's DrainTimeout, Idle, MaxSessions, MaxSessionsPerClient and AllowWrite while the front
// serves. Its other fields cannot change.
func (f *Front) Update(c Config) {
	c = c.withDefaults()
	f.limits.Set(c.MaxSessions, c.MaxSessionsPerClient)
	f.handler.allowWrite.Store(c.AllowWrite)
	f.timing.Set(c.Idle, min(linger, c.Idle), c.DrainTimeout)
	for _, w := range f.workers {
		w.Wake()
	}
}

// Addr is the bound address and port.
func (f *Front) Addr() netip.AddrPort { return f.local }

// Sessions is the number of sessions in the table, those included that ended a moment ago.
func (f *Front) Sessions() int { return f.limits.Len() }

// Serve passes transfers until ctx is done, then lets those that live end for at most DrainTimeout.
func (f *Front) Serve(ctx context.Context) error {
	f.serving.Store(true)
	defer f.serving.Store(false)
	return datagram.RunAll(ctx, f.workers)
}

// Ready tells whether requests are served now.
func (f *Front) Ready() error {
	if !f.serving.Load() {
		return errors.New("tftp route " + f.config.Route + " is not being served")
	}
	return nil
}

// Close gives up a front that was never served.
func (f *Front) Close() {
	for _, w := range f.workers {
		w.Close()
	}
}
