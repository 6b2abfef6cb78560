package proxy

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

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

// listenDatagram opens a route's front at one address.
func (p *Proxy) listenDatagram(r route.Route, l route.Listen, backend *pool, log *slog.Logger) (front, error) {
	f := &datagramFront{active: func() int { return 0 }}
	f.pool.Store(backend.Pool)
	switch r.Protocol {
	case route.TFTP:
		opened, err := tftp.Listen(tftp.Config{
			Route: r.Name, Listen: l.AddrPort(), Pick: f.pick, Report: f.report,
			DrainTimeout: r.Timeouts.Drain.D(),
			Idle:         r.Timeouts.Idle.D(), MaxSessions: r.Limits.Sessions,
			MaxSessionsPerClient: r.Limits.SessionsPerClient,
			Workers:              r.Workers, AllowWrite: r.TFTP.AllowWrite, Logger: log, Metrics: p.metrics.tftp,
		})
		if err != nil {
			return nil, err
		}
		f.socket, f.active = opened, opened.Sessions
	case route.Syslog:
		opened, err := syslog.Listen(syslog.Config{
			Route: r.Name, Listen: l.AddrPort(), Pick: f.pick, Report: f.report,
			DrainTimeout: r.Timeouts.Drain.D(),
			Source:       syslog.Source(r.Syslog.Source), Workers: r.Workers, Logger: log, Metrics: p.metrics.syslog,
		})
		if err != nil {
			return nil, err
		}
		f.socket = opened
	case route.UDP:
		opened, err := udp.Listen(udp.Config{
			Route: r.Name, Listen: l.AddrPort(), Pick: f.pick, Report: f.report,
			DrainTimeout: r.Timeouts.Drain.D(),
			Idle:         r.Timeouts.Idle.D(), MaxSessions: r.Limits.Sessions,
			MaxSessionsPerClient: r.Limits.SessionsPerClient,
			Workers:              r.Workers, Logger: log, Metrics: p.metrics.udp,
		})
		if err != nil {
			return nil, err
		}
		f.socket, f.active = opened, opened.Sessions
	default:
		return nil, fmt.Errorf("failed to listen for route %s: no such protocol as %q", r.Name, r.Protocol)
	}
	return f, nil
}

// sameDatagram is whether an open datagram front can serve the next version of its route: only the backend may
// differ.
func sameDatagram(a, b route.Route) bool {
	return a.Timeouts == b.Timeouts && a.Limits == b.Limits && a.TFTP == b.TFTP && a.Syslog == b.Syslog &&
		a.Workers == b.Workers
}
