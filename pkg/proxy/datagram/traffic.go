package datagram

import "github.com/prometheus/client_golang/prometheus"

// Way is where a datagram that is passed on came from.
type Way uint8

// Ways.
const (
	FromClient Way = iota
	FromServer
	ways
)

func (w Way) String() string { return [ways]string{"client", "server"}[w] }

// TrafficMetrics count what the routes of a protocol pass on.
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
	for w := range ways {
		t.datagrams[w] = m.datagrams.WithLabelValues(route, w.String())
		t.bytes[w] = m.bytes.WithLabelValues(route, w.String())
	}
	return t
}

// Forget removes what was counted for a route that is no more.
func (m TrafficMetrics) Forget(route string) {
	labels := prometheus.Labels{"route": route}
	m.datagrams.DeletePartialMatch(labels)
	m.bytes.DeletePartialMatch(labels)
}

// Traffic counts for one route.
type Traffic struct{ datagrams, bytes [ways]prometheus.Counter }

// Passed counts a datagram of some bytes.
func (t *Traffic) Passed(w Way, size int) {
	t.datagrams[w].Inc()
	t.bytes[w].Add(float64(size))
}
