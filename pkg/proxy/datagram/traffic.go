package datagram

import "github.com/prometheus/client_golang/prometheus"

// Direction is the side that a datagram came from.
type Direction uint8

// The directions.
const (
	FromClient Direction = iota
	FromServer
	directions
)

func (d Direction) String() string { return [directions]string{"client", "server"}[d] }

// TrafficMetrics count the datagrams and bytes that the routes of a protocol pass on.
type TrafficMetrics struct{ datagrams, bytes *prometheus.CounterVec }

// NewTrafficMetrics makes the metrics of a protocol ("tftp"), which are still to be registered.
func NewTrafficMetrics(protocol string) TrafficMetrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "stack_proxy", Subsystem: protocol, Name: name, Help: help,
		}, []string{"route", "from"})
	}
	return TrafficMetrics{
		datagrams: counter("datagrams_total", "Datagrams passed on, by where they came from."),
		bytes:     counter("bytes_total", "UDP payload passed on, by where it came from."),
	}
}

// Collectors are the metrics to be registered.
func (m TrafficMetrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.datagrams, m.bytes}
}

// Of are one route's counters.
func (m TrafficMetrics) Of(route string) *Traffic {
	t := new(Traffic)
	for d := range directions {
		t.datagrams[d] = m.datagrams.WithLabelValues(route, d.String())
		t.bytes[d] = m.bytes.WithLabelValues(route, d.String())
	}
	return t
}

// Forget removes the counters of a route that is gone.
func (m TrafficMetrics) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	m.datagrams.DeletePartialMatch(labels)
	m.bytes.DeletePartialMatch(labels)
}

// Traffic counts for one route.
type Traffic struct {
	datagrams, bytes [directions]prometheus.Counter
}

// Passed counts a datagram of some bytes.
func (t *Traffic) Passed(d Direction, size int) {
	t.datagrams[d].Inc()
	t.bytes[d].Add(float64(size))
}
