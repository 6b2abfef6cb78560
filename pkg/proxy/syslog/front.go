// Package syslog forwards syslog datagrams one way, and tells the receiver their senders.
//
// There are no sessions: a worker takes a batch from the port, writes each message anew with its
// sender, and sends the batch. docs/design/decisions.md has the decisions, docs/syslog.md the forms.
package syslog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
)

// Config describes a route.
type Config struct {
	// Route names it in logs and metrics.
	Route string
	// Listen is the address and port. The zero address is all, IPv4 and IPv6 alike.
	Listen netip.AddrPort
	// Pick chooses the endpoint for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Report may be nil; see [datagram.Report].
	Report datagram.Report
	// DrainTimeout bounds how long datagrams in the receive buffer are forwarded after shutdown began.
	DrainTimeout time.Duration
	// Sink gets each line. It may be nil.
	Sink record.Sink
	// Logger names the route already. It may be nil, Metrics too.
	Logger  *slog.Logger
	Metrics *Metrics
}

// Front is an open route.
type Front struct {
	route   string
	local   netip.AddrPort
	worker  *worker
	serving atomic.Bool
}

// Listen binds the port. Serve or Close has to follow.
func Listen(c Config) (*Front, error) {
	if c.Pick == nil {
		return nil, fmt.Errorf("failed to open syslog route %s: it has no backend", c.Route)
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	socket, err := datagram.Listen(c.Listen)
	if err != nil {
		return nil, err
	}
	f := &Front{route: c.Route, local: socket.Local()}
	limiter := loglimit.New(c.Logger, troublePerSecond, time.Second)
	if f.worker, err = newWorker(c, socket, c.Metrics.of(c.Route), limiter); err != nil {
		socket.Close()
		return nil, err
	}
	return f, nil
}

// troublePerSecond bounds the log lines of each message.
const troublePerSecond = 5

// Addr is the bound address and port.
func (f *Front) Addr() netip.AddrPort { return f.local }

// Serve forwards until ctx is done, and then the datagrams that have arrived before.
func (f *Front) Serve(ctx context.Context) error {
	f.serving.Store(true)
	defer f.serving.Store(false)
	return f.worker.run(ctx)
}

// Ready tells whether messages are forwarded now.
func (f *Front) Ready() error {
	if !f.serving.Load() {
		return errors.New("syslog route " + f.route + " is not being served")
	}
	return nil
}

// Close gives up a front that was never served.
func (f *Front) Close() { f.worker.close() }
