package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// direction is the side of the relay that a packet leaves by.
type direction uint8

const (
	toServer direction = iota
	toClient
	directions
)

func (d direction) String() string { return [directions]string{"to-server", "to-client"}[d] }

// metrics are a relay's instruments. The families have the same, under another prefix, but for omitted. Counters are
// looked up once, since the lookup costs more than the relaying.
type metrics struct {
	servers *server.Metrics

	ports   []counters // by listener, that of unicast last
	latency prometheus.Observer
	up      *prometheus.GaugeVec
}

// counters are those of one listener, or of unicast.
type counters struct {
	packets [directions][]prometheus.Counter
	drops   [directions][numDrops]prometheus.Counter
	omitted prometheus.Counter // nil of DHCPv6
}

// newMetrics makes and registers the metrics. pending is the number of requests that are remembered.
func newMetrics(c *Config, f *traits, pending func() float64) *metrics {
	s := metric.New(c.Registerer, f.prefix)
	packets := s.Counter("packets_total", f.title+" messages relayed, by the listener at the client's side, direction "+
		"and the type of the client's or server's message. A request that goes to two servers counts once.",
		"listener", "direction", "type")
	dropped := s.Counter("drops_total", f.title+" packets not relayed, by listener, direction and reason "+
		"(docs/reference/dhcp-relay.md).", "listener", "direction", "reason")
	m := &metrics{
		servers: server.NewMetrics(c.Registerer, f.prefix),
		latency: s.Histogram("reply_seconds", "Time from a "+f.title+" request being relayed to its first reply.",
			server.ReplyBuckets()...).WithLabelValues(),
		up: s.Gauge("listener_up", "Whether the "+f.title+" listener is open (1) or waits for its interface (0).",
			"listener"),
	}
	s.GaugeFunc("pending", f.title+" requests that are remembered for their replies.", pending)
	names := make([]string, 0, len(c.Listeners)+1)
	for _, l := range c.Listeners {
		names = append(names, l.Name)
	}
	for _, name := range append(names, unicastLabel) {
		p := counters{}
		for d := range directions {
			for _, kind := range f.kinds {
				p.packets[d] = append(p.packets[d], packets.WithLabelValues(name, d.String(), kind))
			}
			for reason := None + 1; reason < numDrops; reason++ {
				p.drops[d][reason] = dropped.WithLabelValues(name, d.String(), reason.String())
			}
		}
		m.ports = append(m.ports, p)
	}
	if !c.IPv6 {
		omitted := s.Counter("option82_omitted_total",
			"Requests relayed without the option 82 that they should have got, since it did not fit.", "listener")
		for i, name := range append(names, unicastLabel) {
			m.ports[i].omitted = omitted.WithLabelValues(name)
		}
	}
	return m
}

// of is the counters of a listener, by its index, or of unicast.
func (m *metrics) of(listener int) *counters {
	if listener == unicast {
		listener = len(m.ports) - 1
	}
	return &m.ports[listener]
}

// answered notes the nanoseconds from a request to its first reply.
func (m *metrics) answered(wait int64) { m.latency.Observe(time.Duration(wait).Seconds()) }

// open notes whether a listener is open.
func (m *metrics) open(listener string, up bool) {
	value := 0.0
	if up {
		value = 1
	}
	m.up.WithLabelValues(listener).Set(value)
}

// relayed counts a message, by its type's place in the family's kinds.
func (p *counters) relayed(d direction, kind int) { p.packets[d][kind].Inc() }

// dropped counts a packet.
func (p *counters) dropped(d direction, reason Drop) { p.drops[d][reason].Inc() }
