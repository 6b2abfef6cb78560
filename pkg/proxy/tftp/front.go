// Package tftp is a TFTP-aware NAT: machines talk to one address and port for the whole of a transfer, whatever
// port the server behind answers from (RFC 1350, 2347, 2348, 2349, 7440). Boot files it serves itself.
//
// Options, blocks and errors of a server pass untouched. docs/design/decisions.md has the decisions,
// docs/tftp.md the metrics and the log.
package tftp

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/loader"
	"github.com/tinkerbell/stack/pkg/record"
)

const (
	linger           = 3 * time.Second
	troublePerSecond = 20  // log lines of each message
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
	// Idle ends a silent transfer; zero is [datagram.DefaultIdle].
	Idle time.Duration
	// MaxSessions and MaxSessionsPerClient bound the table; zero is [datagram.DefaultMaxSessions] and
	// [datagram.DefaultMaxClient].
	MaxSessions, MaxSessionsPerClient int
	// Transparent sends to endpoints from the machine's address, and from its port where that is free. It needs
	// CAP_NET_ADMIN or CAP_NET_RAW, and answers that the network brings to us (see [datagram.CatchAnswers]).
	Transparent bool
	// Boot is where boot files are, which are served without asking an endpoint. Its Logger is this one's.
	Boot bootfile.Config
	// Loaders is the port and the path by which endpoints have loaders by HTTP that are kept in memory (":7171/ipxe/");
	// empty keeps none, and neither does Transparent: such servers may choose files by the machine's address.
	Loaders string
	// Sink gets each transfer when it begins and when it ends, and each request that is refused. It may be nil.
	Sink record.Sink
	// Logger names the route already. It may be nil, Metrics too.
	Logger  *slog.Logger
	Metrics *Metrics

	patience time.Duration // of tests
}

func (c Config) bounds() datagram.Bounds {
	return datagram.Bounds{
		Idle: c.Idle, Linger: linger, Drain: c.DrainTimeout,
		MaxSessions: c.MaxSessions, MaxSessionsPerClient: c.MaxSessionsPerClient,
	}
}

func (c Config) boot() bootfile.Config {
	boot := c.Boot
	boot.Logger = c.Logger
	return boot
}

// Front is an open route.
type Front struct {
	*datagram.Front[transfer]
	handler *handler
}

// Serve passes datagrams, and serves boot files, until ctx is done, then those of known transfers for at most
// DrainTimeout.
func (f *Front) Serve(ctx context.Context) error {
	files, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { f.handler.files.Run(files) })
	running.Go(func() { f.handler.loaders.Run(files) })
	defer running.Wait()
	defer stop()
	return f.Front.Serve(ctx)
}

// Listen binds the port. Serve or Close has to follow.
func Listen(c Config) (*Front, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	h := &handler{
		config:       c,
		meters:       c.Metrics.of(c.Route),
		troubleLines: loglimit.New(c.Logger, troublePerSecond, time.Second),
		endLines:     loglimit.New(c.Logger, endedPerSecond, time.Second),
		patience:     cmp.Or(c.patience, defaultPatience),
		files:        bootfile.New(c.boot()),
		loaders:      loader.New(loader.Config{At: c.Loaders, Pick: c.Pick, Logger: c.Logger}),
	}
	front, err := datagram.NewFront(datagram.FrontConfig[transfer]{
		Route: "tftp route " + c.Route, Listen: c.Listen, Pick: c.Pick, Bounds: c.bounds(), Handler: h,
		Transparent: c.Transparent,
	})
	if err != nil {
		return nil, err
	}
	h.port = front.Addr().Port()
	return &Front{front, h}, nil
}

// Update takes over c's DrainTimeout, Idle, MaxSessions, MaxSessionsPerClient, Boot and Loaders while the front
// serves. Its other fields cannot change.
func (f *Front) Update(c Config) {
	f.handler.files.Set(c.Boot)
	f.handler.loaders.Set(c.Loaders)
	f.SetBounds(c.bounds())
}
