package web

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// frontLoop is a front's share of a loop: its acceptor, and the engine in which connections begin.
type frontLoop struct {
	front    *Front
	loop     *loop.Loop
	engine   *http1.Engine
	acceptor *sock.Acceptor
}

func (f *Front) loopsOf(loops []*loop.Loop) (made []*frontLoop) {
	for _, each := range loops {
		in := &frontLoop{front: f, loop: each, engine: http1.New(each)}
		in.acceptor = sock.NewAcceptor(each, f.connections.socket, in)
		made = append(made, in)
	}
	return made
}

// Failed implements sock.Owner.
func (in *frontLoop) Failed(err error, pause time.Duration) {
	in.front.metrics.refused("resources")
	in.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
}

// Admit implements sock.Owner: it begins to serve an accepted connection, within the limits.
func (in *frontLoop) Admit(fd int, peer netip.AddrPort) {
	l := in.front.connections
	c := &loopConn{accepted: &accepted{connections: l, peer: peer}, http1: in.engine.NewConn(fd, peer.Addr())}
	s := l.settings.Load()
	c.header = slices.ContainsFunc(s.AcceptProxy, func(p netip.Prefix) bool { return p.Contains(peer.Addr()) })
	if !l.register(c) { // which gives c its server, too
		sock.Reset(fd)
		return
	}
	c.http1.Add(c, http1.Limits{Header: c.server.ReadHeaderTimeout, Idle: c.server.idle, Stall: l.stall()})
	if why := l.account.Admit(&c.charge, c.accepted, peer.Addr(), costOf(s)); why != admission.Admitted {
		l.metrics.refused(why.String())
		c.http1.Refuse()
		return
	}
	switch {
	case c.header:
		c.awaited = sock.AwaitHeader(in.loop, fd, c.headerCame)
	case c.Route() == nil:
		c.http1.HandOff()
	default:
		c.http1.Read() // most clients have sent their request by now
	}
}

// headerCame counts and charges the connection for the client in its PROXY header, and hands it off. After a header
// without a client (a load balancer's own check) the peer counts as the client.
func (c *loopConn) headerCame(client, _ netip.AddrPort, err error) {
	if client.IsValid() {
		c.peer = client
	}
	if err != nil {
		c.connections.metrics.refused("proxy_header")
		if c.connections.lines.Allow(c.peer.Addr(), "PROXY header") {
			c.connections.log.Info("PROXY header refused", "peer", c.peer, "error", err)
		}
	}
	if err != nil || !c.countFor(c.peer.Addr()) {
		c.http1.Refuse()
		return
	}
	c.http1.HandOff()
}
