// Package udp is a NAT for any UDP protocol: a session for each client address and port, answered from the
// address and port that the client asked, until both sides are silent.
package udp

import (
	"cmp"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

const troublePerSecond = 20 // log lines of each message

// Config describes a route.
type Config struct {
	// Route names it in metrics and errors.
	Route string
	// Listen is the address and port that clients ask. The zero address is all, IPv4 and IPv6 alike.
	Listen netip.AddrPort
	// Freebind listens at an address that this host does not have yet (IP_FREEBIND, ip(7)).
	Freebind bool
	// Sources are the prefixes of clients that may begin a session; none is all.
	Sources []netip.Prefix
	// Pick chooses the endpoint for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Report may be nil; see [datagram.Report].
	Report datagram.Report
	// DrainTimeout is how long sessions may go on after shutdown began.
	DrainTimeout time.Duration
	// Idle ends a silent session; zero is [datagram.DefaultIdle].
	Idle time.Duration
	// MaxSessions and MaxSessionsPerClient bound the table; zero is [datagram.DefaultMaxSessions] and
	// [datagram.DefaultMaxClient].
	MaxSessions, MaxSessionsPerClient int
	// Logger names the route already. It may be nil, Metrics too.
	Logger  *slog.Logger
	Metrics *Metrics
}

func (c Config) bounds() datagram.Bounds {
	return datagram.Bounds{
		Idle: c.Idle, Linger: time.Second, Drain: c.DrainTimeout,
		MaxSessions: c.MaxSessions, MaxSessionsPerClient: c.MaxSessionsPerClient,
	}
}

// Front is an open route.
type Front struct {
	*datagram.Front[state]
	handler *handler
}

// Listen binds the port. Serve or Close has to follow.
func Listen(c Config) (*Front, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	h := &handler{
		meters:  c.Metrics.of(c.Route),
		trouble: loglimit.New(c.Logger, troublePerSecond, time.Second),
		report:  c.Report,
	}
	h.sources.Store(&c.Sources)
	front, err := datagram.NewFront(datagram.FrontConfig[state]{
		Route: "udp route " + c.Route, Listen: c.Listen, Freebind: c.Freebind, Pick: c.Pick,
		Bounds: c.bounds(), Handler: h,
	})
	if err != nil {
		return nil, err
	}
	return &Front{front, h}, nil
}

// Update takes over c's Sources, DrainTimeout, Idle, MaxSessions and MaxSessionsPerClient while the front serves. Its
// other fields cannot change.
func (f *Front) Update(c Config) {
	f.handler.sources.Store(&c.Sources)
	f.SetBounds(c.bounds())
}
