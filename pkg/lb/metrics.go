package lb

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Metrics are the controller's. Their label address is one that a Service asks for.
type Metrics struct {
	*metric.Set                                     // of addresses
	held, alone, owner, why, wireOwners, notServing *prometheus.GaugeVec
	moves                                           *prometheus.CounterVec
	requests                                        *prometheus.HistogramVec
	refused                                         prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	s, requests := metric.New(r, "stack_lb", "address"), metric.New(r, "stack_lb_lease_request", "result")
	return &Metrics{
		Set:  s,
		held: s.Gauge("address_held", "Whether this node announces the address."),
		wireOwners: s.Gauge("wire_owners",
			"Stations that answered the last question for the address, this node included if it has it."),
		notServing: s.Gauge("lease_without_answer",
			"Whether the address's lease is held and nobody has answered three questions in a row."),
		alone: s.Gauge("address_without_api", "Whether this node keeps the address while the API does not answer."),
		owner: s.Gauge("wire_owner", "A station that answered the last question for the address; always 1.", "mac"),
		why:   s.Gauge("address_not_announced", "Why this node does not announce the address; always 1.", "reason"),
		moves: s.Counter("address_moves_total", "How often this node claimed or withdrew the address.", "to"),
		requests: requests.Histogram("seconds", "How long requests for leases took, by their result.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2),
		refused: metric.New(r, "stack_lb").Gauge("services_refused",
			"Services of ours that ask for what they cannot have.").WithLabelValues(),
	}
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

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
