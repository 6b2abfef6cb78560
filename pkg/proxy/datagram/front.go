package datagram

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
)

// Defaults of [Bounds].
const (
	DefaultIdle        = 90 * time.Second
	DefaultMaxSessions = 4096
	DefaultMaxClient   = 64
)

// Bounds are the settings of a front that may change while it serves.
type Bounds struct {
	// Idle ends a silent session; zero is DefaultIdle. Linger is how long a finished one stays, at most Idle.
	Idle, Linger time.Duration
	// Drain is how long sessions may go on after shutdown began.
	Drain time.Duration
	// MaxSessions and MaxSessionsPerClient bound the table; zero is DefaultMaxSessions and DefaultMaxClient.
	MaxSessions, MaxSessionsPerClient int
}

func (b *Bounds) setDefaults() {
	if b.Idle <= 0 {
		b.Idle = DefaultIdle
	}
	if b.MaxSessions <= 0 {
		b.MaxSessions = DefaultMaxSessions
	}
	if b.MaxSessionsPerClient <= 0 {
		b.MaxSessionsPerClient = DefaultMaxClient
	}
	b.Linger = min(b.Linger, b.Idle)
}

// Front is an open route: a port, and the worker that serves it. A protocol embeds it.
type Front[T any] struct {
	route   string
	local   netip.AddrPort
	limits  *Limits
	worker  *Worker[T]
	serving atomic.Bool
}

// FrontConfig makes a [Front].
type FrontConfig[T any] struct {
	// Route names it in errors, with its protocol: "tftp route pxe".
	Route string
	// Listen is the address and port that clients ask. The zero address is all, IPv4 and IPv6 alike.
	Listen netip.AddrPort
	// Freebind listens at an address that this host does not have yet (IP_FREEBIND, ip(7)).
	Freebind bool
	Handler  Handler[T]
	// Pick chooses the endpoint for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Transparent is [Options.Transparent]. It needs CAP_NET_ADMIN or CAP_NET_RAW.
	Transparent bool
	Bounds
}

// NewFront binds the port. Serve or Close has to follow.
func NewFront[T any](c FrontConfig[T]) (*Front[T], error) {
	if c.Pick == nil {
		return nil, fmt.Errorf("failed to open %s: it has no backend", c.Route)
	}
	if c.Transparent {
		if err := mayBeTransparent(); err != nil {
			return nil, fmt.Errorf("failed to keep the source of %s (source: transparent needs CAP_NET_ADMIN or "+
				"CAP_NET_RAW): %w", c.Route, err)
		}
	}
	socket, err := listen(c.Listen, c.Freebind)
	if err != nil {
		return nil, err
	}
	f := &Front[T]{route: c.Route, local: socket.Local(), limits: NewLimits(c.Bounds)}
	f.worker, err = NewWorker(socket, c.Handler, Options{
		Limits: f.limits, Pick: c.Pick, Transparent: c.Transparent,
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// SetBounds changes the bounds while the front serves.
func (f *Front[T]) SetBounds(b Bounds) {
	f.limits.Set(b)
	f.worker.Wake()
}

// CloseTo ends the sessions towards endpoints that are gone, soon. Their clients' next datagrams begin others.
func (f *Front[T]) CloseTo(gone func(endpoint netip.AddrPort) bool) {
	f.worker.Do(func() { f.worker.closeTo(gone) })
}

// Addr is the bound address and port.
func (f *Front[T]) Addr() netip.AddrPort { return f.local }

// Sessions is the number of sessions in the table, those included that ended a moment ago.
func (f *Front[T]) Sessions() int { return f.limits.Len() }

// Serve passes datagrams until ctx is done, then those of known sessions for at most Drain. It opens the sessions'
// sockets in the network namespace of the calling goroutine's thread.
func (f *Front[T]) Serve(ctx context.Context) error {
	f.serving.Store(true)
	defer f.serving.Store(false)
	return f.worker.Run(ctx)
}

// Ready tells whether datagrams are passed now.
func (f *Front[T]) Ready() error {
	if !f.serving.Load() {
		return fmt.Errorf("%s is not being served", f.route)
	}
	return nil
}

// Close closes a front that was never served.
func (f *Front[T]) Close() { f.worker.Close() }
