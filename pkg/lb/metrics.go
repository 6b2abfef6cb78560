package lb

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Metrics are the controller's. Their label address is one that a Service asks for.
type Metrics struct {
	held, wireOwners, notServing *prometheus.GaugeVec
	alone                        *prometheus.GaugeVec
	owner, why                   *prometheus.GaugeVec
	moves                        *prometheus.CounterVec
	requests                     *prometheus.HistogramVec
	refused                      prometheus.Gauge
}

// NewMetrics creates and registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	address := []string{"address"}
	m := &Metrics{
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_address_held", Help: "Whether this node announces the address.",
		}, address),
		wireOwners: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_wire_owners",
			Help: "Stations that answered the last question for the address, this node included if it has it.",
		}, address),
		notServing: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_lease_without_answer",
			Help: "Whether the address's lease is held and nobody has answered three questions in a row.",
		}, address),
		alone: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_address_without_api",
			Help: "Whether this node keeps the address while the API does not answer.",
		}, address),
		owner: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_wire_owner", Help: "A station that answered the last question for the address; always 1.",
		}, []string{"address", "mac"}),
		why: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stack_lb_address_not_announced", Help: "Why this node does not announce the address; always 1.",
		}, []string{"address", "reason"}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stack_lb_address_moves_total", Help: "How often this node claimed or withdrew the address.",
		}, []string{"address", "to"}),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "stack_lb_lease_request_seconds", Help: "How long requests for leases took, by their result.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"result"}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "stack_lb_services_refused", Help: "Services of ours that ask for what they cannot have.",
		}),
	}
	r.MustRegister(m.held, m.alone, m.wireOwners, m.notServing, m.owner, m.why, m.moves, m.requests, m.refused)
	return m
}

// holds tells that this node announces an address, or why not.
func (m *Metrics) holds(ip netip.Addr, held bool, why reason.Reason) {
	address := ip.String()
	m.held.WithLabelValues(address).Set(boolean(held))
	if !held {
		m.alone.WithLabelValues(address).Set(0)
	}
	m.why.DeletePartialMatch(prometheus.Labels{"address": address})
	if !held {
		m.why.WithLabelValues(address, why.String()).Set(1)
	}
}

// sees tells who answered for an address.
func (m *Metrics) sees(ip netip.Addr, owners []frame.MAC, mine bool) {
	address := ip.String()
	m.wireOwners.WithLabelValues(address).Set(float64(len(owners)) + boolean(mine))
	m.owner.DeletePartialMatch(prometheus.Labels{"address": address})
	for _, mac := range owners {
		m.owner.WithLabelValues(address, hardware(mac)).Set(1)
	}
}

// forget removes an address that no Service asks for any more.
func (m *Metrics) forget(ip netip.Addr) {
	labels := prometheus.Labels{"address": ip.String()}
	for _, vec := range []*prometheus.GaugeVec{m.held, m.alone, m.wireOwners, m.notServing, m.owner, m.why} {
		vec.DeletePartialMatch(labels)
	}
	m.moves.DeletePartialMatch(labels)
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
