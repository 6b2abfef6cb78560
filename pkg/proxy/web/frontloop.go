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
	engine   *http1.Engine
	acceptor *sock.Acceptor
}

func (f *Front) loopsOf(loops []*loop.Loop) (made []*frontLoop) {
	for _, l := range loops {
		in := &frontLoop{front: f, engine: http1.New(l)}
		in.acceptor = sock.NewAcceptor(l, f.listener.socket, in)
		made = append(made, in)
	}
	return made
}

// stopAccepting leaves new connections to the kernel. It is called from outside of the loop, and waits.
func (in *frontLoop) stopAccepting() {
	done := make(chan struct{})
	in.engine.Soon(func() {
		in.acceptor.Stop()
		close(done)
	})
	<-done
	in.acceptor.Wait()
}

// Held implements sock.Owner.
func (in *frontLoop) Held() bool {
	l := in.front.listener
	return l.room.Held(costOf(l.settings.Load()))
}

// Failed implements sock.Owner.
func (in *frontLoop) Failed(err error, pause time.Duration) {
	in.front.metrics.refused("resources")
	in.front.log.Error("failed to accept connection", "error", err, "retry_ms", pause.Milliseconds())
}

// Admit implements sock.Owner: it begins with a connection that was accepted.
func (in *frontLoop) Admit(fd int, peer netip.AddrPort) {
	l := in.front.listener
	c := &plainConn{charge: &charge{listener: l, peer: peer}, in: in.engine.NewConn(fd, peer.Addr())}
	s := l.settings.Load()
	c.header = slices.ContainsFunc(s.AcceptProxy, func(p netip.Prefix) bool { return p.Contains(peer.Addr()) })
	if !l.count(c) {
		sock.Reset(fd)
		return
	}
	if s.Pace > 0 {
		l.pace(fd, s.Pace)
	}
	c.in.Begin(c, http1.Limits{Header: c.server.ReadHeaderTimeout, Idle: c.server.idle, Stall: l.stall()})
	if why := l.room.Admit(&c.lease, c.charge, peer.Addr(), costOf(s)); why != admission.Admitted {
		l.metrics.refused(why.String())
		c.in.Refuse()
		return
	}
	if c.Route() == nil {
		c.in.HandOff()
		return
	}
	c.in.Read() // most clients have sent their request by now
}
