package tcp

import "github.com/prometheus/client_golang/prometheus"

// refusal is why a connection was refused: the label of stack_proxy_tcp_refused_total.
type refusal uint8

const (
	refusedLimit     refusal = iota // MaxConnections
	refusedClient                   // MaxPerClient
	refusedBackend                  // no endpoint took it
	refusedHeader                   // no valid PROXY header from a peer that must send one
	refusedResources                // accept(2) failed: descriptors or memory
	refusedTLS                      // the TLS handshake failed
	refusedMemory                   // the account has no room
	refusedDescriptors
	refusedShare
	refusedSource // from none of Sources
	refusals
)

func (r refusal) String() string {
	return [...]string{
		"limit", "client_limit", "backend", "proxy_header", "resources", "tls", "memory", "descriptors", "client_share",
		"source",
	}[r]
}

// ending is how a connection was torn: the label of stack_proxy_tcp_aborted_total.
type ending uint8

const (
	endIdle    ending = iota // Idle
	endReset                 // one side reset it
	endTimeout               // keepalive or TCP_USER_TIMEOUT
	endError
	endings
)

func (e ending) String() string { return [...]string{"idle", "reset", "timeout", "error"}[e] }

// Metrics are the TCP fronts' metrics, by route.
type Metrics struct {
	connections *prometheus.CounterVec
	open        *prometheus.GaugeVec
	transferred *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	aborted     *prometheus.CounterVec
	dials       *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: "tcp", Name: name, Help: help,
		}, append([]string{"route"}, labels...))
	}
	m := &Metrics{
		connections: counter("connections_total", "TCP connections that were accepted."),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "stack_proxy", Subsystem: "tcp", Name: "open_connections", Help: "TCP connections open now.",
		}, []string{"route"}),
		transferred: counter("transferred_bytes_total",
			"Bytes passed on, by direction: in (from clients) or out (to clients).", "direction"),
		refusals: counter("refused_total", "TCP connections that were closed without an endpoint, by reason.", "reason"),
		aborted:  counter("aborted_total", "TCP connections that did not end in order, by reason.", "reason"),
		dials:    counter("dial_failures_total", "Attempts to connect to an endpoint that failed, by reason.", "reason"),
	}
	r.MustRegister(m.connections, m.open, m.transferred, m.refusals, m.aborted, m.dials)
	return m
}

// route binds the metrics to one route; nil are nobody's.
func (m *Metrics) route(name string) *routeMetrics {
	if m == nil {
		m = NewMetrics(prometheus.NewRegistry())
	}
	label := prometheus.Labels{"route": name}
	r := &routeMetrics{
		connections: m.connections.With(label), open: m.open.With(label), dials: m.dials.MustCurryWith(label),
		transferred: [2]prometheus.Counter{
			toServer: m.transferred.WithLabelValues(name, "in"), toClient: m.transferred.WithLabelValues(name, "out"),
		},
	}
	for i := range r.refusals {
		r.refusals[i] = m.refusals.WithLabelValues(name, refusal(i).String())
	}
	for i := range r.aborted {
		r.aborted[i] = m.aborted.WithLabelValues(name, ending(i).String())
	}
	return r
}

// Forget removes the counters of a route that was closed.
func (m *Metrics) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	for _, vec := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.connections, m.open, m.transferred, m.refusals, m.aborted, m.dials,
	} {
		vec.DeletePartialMatch(labels)
	}
}

type routeMetrics struct {
	connections prometheus.Counter
	open        prometheus.Gauge
	transferred [2]prometheus.Counter
	refusals    [refusals]prometheus.Counter
	aborted     [endings]prometheus.Counter
	dials       *prometheus.CounterVec // by reason
}
