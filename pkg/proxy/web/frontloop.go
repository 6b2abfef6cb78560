package web

import (
	"net/netip"
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
	f := in.front
	entered := in.engine.NewConn(fd, peer.Addr())
	c := f.listener.admit(entered, peer)
	if c == nil {
		sock.Reset(fd)
		return
	}
	s := f.listener.settings.Load()
	if s.Pace > 0 {
		f.listener.pace(fd, s.Pace)
	}
	entered.Begin(c, http1.Limits{Header: c.server.ReadHeaderTimeout, Idle: c.server.idle, Stall: c.stall.most})
	if why := f.listener.room.Admit(&c.lease, c, peer.Addr(), costOf(s)); why != admission.Admitted {
		f.metrics.refused(why.String())
		entered.Refuse()
		return
	}
	if c.Route() == nil {
		entered.HandOff()
		return
	}
	entered.Read() // most clients have sent their request by now
}
