package tcp

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot"
)

// refusal is why a connection was refused: the label of stack_proxy_tcp_refused_total.
type refusal uint8

const (
	refusedLimit     refusal = iota // MaxConnections
	refusedClient                   // MaxPerClient
	refusedBackend                  // no endpoint took it
	refusedHeader                   // no valid PROXY header from a peer that must send one
	refusedResources                // accept(2) failed: descriptors or memory
	refusedMemory                   // the account has no room
	refusedDescriptors
	refusedShare
	refusedSource // from none of Sources
)

var refusals = metric.Enum[refusal]{
	"limit", "client_limit", "backend", "proxy_header", "resources", "memory", "descriptors", "client_share", "source",
}

func (r refusal) String() string { return refusals.Name(r) }

// ending is how a connection was torn: the label of stack_proxy_tcp_aborted_total.
type ending uint8

const (
	endIdle    ending = iota // Idle
	endReset                 // one side reset it
	endTimeout               // keepalive or TCP_USER_TIMEOUT
	endError
)

var endings = metric.Enum[ending]{boot.ReasonIdle, "reset", boot.ReasonTimeout, "error"}

func (e ending) String() string { return endings.Name(e) }

// Metrics are the TCP fronts' metrics, by route.
type Metrics struct {
	set         *metric.Set
	connections *prometheus.CounterVec
	open        *prometheus.GaugeVec
	transferred *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	aborted     *prometheus.CounterVec
	dials       *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s := metric.New(r, "stack_proxy_tcp", "route")
	return &Metrics{
		set:         s,
		connections: s.Counter("connections_total", "TCP connections that were accepted."),
		open:        s.Gauge("open_connections", "TCP connections open now."),
		transferred: s.Counter("transferred_bytes_total",
			"Bytes passed on, by direction: in (from clients) or out (to clients).", "direction"),
		refusals: s.Counter("refused_total", "TCP connections that were closed without an endpoint, by reason.", "reason"),
		aborted:  s.Counter("aborted_total", "TCP connections that did not end in order, by reason.", "reason"),
		dials:    s.Counter("dial_failures_total", "Attempts to connect to an endpoint that failed, by reason.", "reason"),
	}
}

// Forget removes the counters of a route that was closed.
func (m *Metrics) Forget(route string) { m.set.Forget(route) }

// route binds the metrics to one route.
func (m *Metrics) route(name string) *routeMetrics {
	m = cmp.Or(m, NewMetrics(nil))
	return &routeMetrics{
		connections: m.connections.WithLabelValues(name),
		open:        m.open.WithLabelValues(name),
		transferred: [2]prometheus.Counter{
			toServer: m.transferred.WithLabelValues(name, "in"), toClient: m.transferred.WithLabelValues(name, "out"),
		},
		refusals: refusals.Counters(m.refusals, name),
		aborted:  endings.Counters(m.aborted, name),
		dials:    m.dials.MustCurryWith(prometheus.Labels{"route": name}),
	}
}

type routeMetrics struct {
	connections prometheus.Counter
	open        prometheus.Gauge
	transferred [2]prometheus.Counter
	refusals    []prometheus.Counter
	aborted     []prometheus.Counter
	dials       *prometheus.CounterVec // by reason
}
