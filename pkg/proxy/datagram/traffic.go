package datagram

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
)

// Direction is the side that a datagram came from.
type Direction uint8

// The directions.
const (
	FromClient Direction = iota
	FromServer
)

var directions = metric.Enum[Direction]{"client", "server"}

// TrafficMetrics count the datagrams and bytes that the routes of a protocol pass on.
type TrafficMetrics struct{ datagrams, bytes *prometheus.CounterVec }

// NewTrafficMetrics makes the metrics of a protocol.
func NewTrafficMetrics(s *metric.Set) TrafficMetrics {
	return TrafficMetrics{
		datagrams: s.Counter("datagrams_total", "Datagrams passed on, by where they came from.", "from"),
		bytes:     s.Counter("bytes_total", "UDP payload passed on, by where it came from.", "from"),
	}
}

// Of are one route's counters.
func (m TrafficMetrics) Of(route string) *Traffic {
	return &Traffic{directions.Counters(m.datagrams, route), directions.Counters(m.bytes, route)}
}

// Traffic counts for one route.
type Traffic struct{ Datagrams, Bytes []prometheus.Counter } // by direction

// Passed counts a datagram of some bytes.
func (t *Traffic) Passed(d Direction, size int) {
	t.Datagrams[d].Inc()
	t.Bytes[d].Add(float64(size))
}
