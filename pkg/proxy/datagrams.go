package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/syslog"
	"github.com/tinkerbell/stack/pkg/proxy/tftp"
	"github.com/tinkerbell/stack/pkg/proxy/udp"
	"github.com/tinkerbell/stack/pkg/route"
)

type datagramMetrics struct {
	tftp   *tftp.Metrics
	syslog *syslog.Metrics
	udp    *udp.Metrics
}

func newDatagramMetrics(r prometheus.Registerer) datagramMetrics {
	return datagramMetrics{tftp: tftp.NewMetrics(r), syslog: syslog.NewMetrics(r), udp: udp.NewMetrics(r)}
}

// datagramFront is a front of the datagram packages with a pool that can be exchanged.
type datagramFront struct {
	socket
	pool   atomic.Pointer[endpoint.Pool]
	active func() int
}

// socket has the common methods of the datagram packages' fronts.
type socket interface {
	Serve(ctx context.Context) error
	Ready() error
}

// Ready is nil if the socket is open and there is an endpoint.
func (f *datagramFront) Ready() error {
	if err := f.socket.Ready(); err != nil {
		return err
	}
	return f.pool.Load().Ready()
}

// Active is the number of sessions.
func (f *datagramFront) Active() int { return f.active() }

func (f *datagramFront) pick(client netip.Addr) (netip.AddrPort, error) {
	return f.pool.Load().Pick(client)
}

func (f *datagramFront) report(endpoint netip.AddrPort, err error) {
	f.pool.Load().Report(endpoint, err)
}

// listenDatagram opens a route's front at one address.
func (p *Proxy) listenDatagram(r route.Route, l route.Listen, backend *pool, log *slog.Logger) (front, error) {
	f := &datagramFront{active: func() int { return 0 }}
	f.pool.Store(backend.Pool)
	switch r.Protocol {
	case route.TFTP:
		c := tftpConfig(r)
		c.Listen, c.Pick, c.Report, c.Logger, c.Metrics = l.AddrPort(), f.pick, f.report, log, p.metrics.tftp
		c.Sink = p.options.Sink
		if c.Transparent && p.options.CatchAnswers {
			if err := datagram.CatchAnswers(); err != nil {
				return nil, fmt.Errorf("failed to open tftp route %s: %w", r.Name, err)
			}
		}
		opened, err := tftp.Listen(c)
		if err != nil {
			return nil, err
		}
		f.socket, f.active = opened, opened.Sessions
	case route.Syslog:
		opened, err := syslog.Listen(syslog.Config{
			Route: r.Name, Listen: l.AddrPort(), Pick: f.pick, Report: f.report,
			DrainTimeout: r.Timeouts.Drain.D(),
			Logger:       log, Metrics: p.metrics.syslog,
			Sink: p.options.Sink,
		})
		if err != nil {
			return nil, err
		}
		f.socket = opened
	case route.UDP:
		c := udpConfig(r)
		c.Listen, c.Pick, c.Report, c.Logger, c.Metrics = l.AddrPort(), f.pick, f.report, log, p.metrics.udp
		opened, err := udp.Listen(c)
		if err != nil {
			return nil, err
		}
		f.socket, f.active = opened, opened.Sessions
	default:
		return nil, fmt.Errorf("failed to listen for route %s: no such protocol as %q", r.Name, r.Protocol)
	}
	return f, nil
}

// update puts the next version of its route in force on an open front. The caller has asked [sameDatagram].
func (f *datagramFront) update(r route.Route, backend *pool) {
	f.pool.Store(backend.Pool)
	switch opened := f.socket.(type) {
	case *tftp.Front:
		opened.Update(tftpConfig(r))
	case *udp.Front:
		opened.Update(udpConfig(r))
	}
}

// tftpConfig has the settings of a tftp route that may change while it is open.
func tftpConfig(r route.Route) tftp.Config {
	var boot bootfile.Config
	boot.Directory, boot.Path = r.TFTP.BootFiles()
	return tftp.Config{
		Route: r.Name, DrainTimeout: r.Timeouts.Drain.D(), Idle: r.Timeouts.Idle.D(),
		Transparent: r.TFTP.Source == "transparent", Boot: boot, Loaders: r.TFTP.Loaders,
	}
}

// udpConfig is the same for a udp route.
func udpConfig(r route.Route) udp.Config {
	return udp.Config{Route: r.Name, DrainTimeout: r.Timeouts.Drain.D(), Idle: r.Timeouts.Idle.D()}
}

// sameDatagram reports whether an open datagram front can serve the next version of its route. A syslog front has no
// sessions, so it is simply opened again.
func sameDatagram(a, b route.Route) bool {
	return a.TFTP.Source == b.TFTP.Source && (a.Protocol != route.Syslog || a.Timeouts == b.Timeouts)
}
