package forward

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"syscall"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
	"github.com/tinkerbell/stack/pkg/proxy/udp"
)

// Bounds of a UDP port. A session is a socket and some kilobytes; one client is perhaps a site behind a NAT.
const sessions, sessionsPerClient = 16384, 4096

// port is one listener, its pool, and what is wrong with it. The manager's mu guards it.
type port struct {
	route     string // its name in logs and metrics
	want      service.Listener
	pool      *endpoint.Pool
	stream    *tcp.Front // one of them is open; none with a fault
	datagrams *udp.Front
	stop      context.CancelFunc
	done      chan struct{} // closed when it has ended; nil where it is not open
	fault     *reason.Error
}

// newPort makes a listener that is not open yet. The caller holds mu.
func (m *Manager) newPort(l service.Listener) *port {
	p := &port{route: l.String(), want: l}
	p.pool = endpoint.NewPool(endpoint.Config{
		Route: p.route, Logger: m.log.With("route", p.route), Metrics: m.pools,
	})
	m.feed(p)
	return p
}

// feed tells the pool what the EndpointSlices say, and ends the sessions of endpoints that are gone. The caller holds
// mu.
func (m *Manager) feed(p *port) {
	members := m.state.Plan.Endpoints(p.want, m.state.Slices(p.want.Service), m.state.Node)
	p.pool.Set(members, p.want.Forward.Affinity > 0)
	if p.datagrams != nil {
		known := map[netip.AddrPort]bool{}
		for _, each := range members {
			known[each.Addr] = true
		}
		p.datagrams.CloseTo(func(e netip.AddrPort) bool { return !known[e] })
	}
}

// open binds a listener and serves it, or says what is wrong. The caller holds mu.
func (m *Manager) open(p *port) {
	serve, err := m.listen(p)
	if err != nil {
		m.failed(p, err)
		return
	}
	ctx, cancel := context.WithCancel(m.life)
	done := make(chan struct{})
	p.stop, p.done, p.fault = cancel, done, nil
	m.log.Info("listening", "route", p.route)
	m.group.Go(func() {
		err := serve(ctx)
		close(done)
		if ctx.Err() != nil {
			return // it was shut
		}
		m.log.Error("failed to serve a port", "route", p.route, "error", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		if p.done == done {
			p.shut()
			m.failed(p, err)
		}
	})
}

// shut ends a listener and its connections. The caller holds mu.
func (p *port) shut() {
	if p.done == nil {
		return
	}
	p.stop()
	<-p.done
	p.done, p.stream, p.datagrams = nil, nil, nil
}

// remove ends a listener that is not wanted any more. The caller holds mu.
func (m *Manager) remove(p *port) {
	delete(m.ports, p.route)
	p.shut()
	for _, metrics := range []interface{ Forget(string) }{m.pools, m.tcp, m.udp, m.o.Bounds.Account} {
		metrics.Forget(p.route)
	}
	m.log.Info("closed", "route", p.route)
}

// listen binds a listener. The caller holds mu.
func (m *Manager) listen(p *port) (serve func(context.Context) error, err error) {
	if p.want.Port.Protocol == core.ProtocolUDP {
		c := p.udpConfig()
		c.Route, c.Listen, c.Freebind = p.route, p.want.AddrPort(), true
		c.Metrics, c.Logger, c.Pick, c.Report = m.udp, m.log.With("route", p.route), p.pool.Pick, p.pool.Report
		front, err := udp.Listen(c)
		if err != nil {
			return nil, err
		}
		p.datagrams = front
		return front.Serve, nil
	}
	front, err := tcp.Listen(tcp.Config{
		Route: p.route, Listen: p.want.AddrPort(), Freebind: true, Loops: m.loops, Settings: p.settings(),
		Account: m.o.Bounds.Account, Metrics: m.tcp, Logger: m.log.With("route", p.route),
	})
	if err != nil {
		return nil, err
	}
	p.stream = front
	return front.Serve, nil
}

func (p *port) settings() tcp.Settings {
	return tcp.Settings{Pool: p.pool, Sources: p.want.Forward.Sources, SendProxy: p.want.Forward.Header}
}

func (p *port) udpConfig() udp.Config {
	return udp.Config{Sources: p.want.Forward.Sources, MaxSessions: sessions, MaxSessionsPerClient: sessionsPerClient}
}

// update hands a listener what the Service asks for now. The caller holds mu.
func (m *Manager) update(p *port, next service.Listener) {
	before := p.want
	p.want = next
	m.feed(p)
	switch {
	case reflect.DeepEqual(before.Forward, next.Forward):
	case p.stream != nil:
		p.stream.Update(p.settings())
	case p.datagrams != nil:
		p.datagrams.Update(p.udpConfig())
	}
}

// failed notes why a listener is not open; it is tried again. The caller holds mu.
func (m *Manager) failed(p *port, err error) {
	taken := errors.Is(err, syscall.EADDRINUSE)
	if p.fault != nil && taken == (p.fault.Reason == reason.PortInUse) {
		return // that was said
	}
	name := "port " + strings.ToLower(string(p.want.Port.Protocol)) + " " + p.want.AddrPort().String() + " of Service " +
		service.NameOf(p.want.Service).String()
	p.fault = reason.Errorf(reason.KernelRefused, "%s cannot be listened at (ports below 1024 need the capability "+
		"NET_BIND_SERVICE): %v", name, err)
	if taken {
		p.fault = reason.Errorf(reason.PortInUse, "%s is taken by another program of this node (ss -lntup names it): "+
			"stop that, or have it listen at addresses of its own, or change the Service's port", name)
	}
	m.log.Error("failed to listen", "route", p.route, "cause", p.fault.Text)
}
