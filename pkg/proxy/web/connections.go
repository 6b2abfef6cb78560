package web

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// connections has a front's open connections, and the limits on them.
type connections struct {
	socket   *sock.Listener
	settings atomic.Pointer[Settings]
	server   func() *server // of new connections
	metrics  *routeMetrics
	log      *slog.Logger
	lines    *loglimit.Clients
	account  *admission.Charges

	tls *tls.Config // whose GetConfigForClient asks the front for the route's TLS

	open sock.Conns[*accepted]

	reaping atomic.Bool // a timer is set to close what was given up
}

// register counts a connection that was accepted, and gives it its server; false where there are too many.
func (l *connections) register(c *loopConn) bool {
	s, client := l.settings.Load(), c.peer.Addr()
	if c.header { // which tells the client later
		client = netip.Addr{}
	}
	c.by = c // the engine serves it; nobody else knows c yet
	// The server is read while open is locked: once a drain has counted those of a server that was replaced, no further
	// connection is that server's.
	err := l.open.Add(c.accepted, client, s.MaxConnections, s.MaxPerClient, func() { c.server = l.server() })
	switch {
	case errors.Is(err, sock.ErrFull):
		l.metrics.refused("limit")
		return false
	case err != nil:
		l.metrics.refused("client_limit")
		return false
	}
	l.metrics.opened()
	return true
}

// countFor counts and charges a connection for the client of its PROXY header; false where that has too many.
func (c *accepted) countFor(client netip.Addr) bool {
	l := c.connections
	if !l.open.Count(c, client, l.settings.Load().MaxPerClient) {
		l.metrics.refused("client_limit")
		return false
	}
	why := c.charge.Move(client)
	if why != admission.Admitted {
		l.metrics.refused(why.String())
	}
	return why == admission.Admitted
}

// stall is how long a client may take nothing of an answer.
func (l *connections) stall() time.Duration { return l.settings.Load().Stall }
