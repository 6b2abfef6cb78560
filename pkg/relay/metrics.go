package relay

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// metrics are a relay's instruments. The families have the same, under another prefix, and some of their own. Counters
// are looked up once, since the lookup costs more than the relaying.
type metrics struct {
	servers *server.Metrics

	ports   []counters // by listener, that of unicast last
	latency prometheus.Histogram
	up      *prometheus.GaugeVec
}

// counters are those of one listener, or of unicast.
type counters struct {
	// own are those of the family alone (traits.own); nil where there is none.
	own []prometheus.Counter

	packets [directions][]prometheus.Counter
	drops   [directions][numDrops]prometheus.Counter // nil where the family has no such reason
}

// newMetrics makes and registers the metrics. pending is the number of requests that are remembered.
func newMetrics(c *Config, f *traits, pending func() float64) (*metrics, error) {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.prefix + name, Help: help}, labels)
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: f.prefix + name, Help: f.title + help}, read)
	}
	packets := vector("_packets_total", f.title+" messages relayed, by the listener at the client's side, direction "+
		"and the type of the client's or server's message. A request that goes to two servers counts once.",
		"listener", "direction", "type")
	dropped := vector("_drops_total", f.title+" packets not relayed, by listener, direction and reason "+
		"(docs/reference/dhcp-relay.md).", "listener", "direction", "reason")
	own := make([]*prometheus.CounterVec, len(f.own))
	collectors := []prometheus.Collector{packets, dropped}
	for i, counter := range f.own {
		own[i] = vector(counter.name, counter.help, "listener")
		collectors = append(collectors, own[i])
	}
	m := &metrics{
		servers: server.NewMetrics(f.prefix),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    f.prefix + "_reply_seconds",
			Help:    "Time from a " + f.title + " request being relayed to its first reply.",
			Buckets: server.ReplyBuckets(),
		}),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: f.prefix + "_listener_up",
			Help: "Whether the " + f.title + " listener is open (1) or waits for its interface (0).",
		}, []string{"listener"}),
	}
	names := make([]string, 0, len(c.Listeners)+1)
	for _, l := range c.Listeners {
		names = append(names, l.Name)
	}
	for _, name := range append(names, unicastLabel) {
		p := counters{own: make([]prometheus.Counter, len(f.own))}
		for i, counter := range f.own {
			if name != unicastLabel || !counter.listenersOnly {
				p.own[i] = own[i].WithLabelValues(name)
			}
		}
		for d := range directions {
			for _, kind := range f.kinds {
				p.packets[d] = append(p.packets[d], packets.WithLabelValues(name, d.String(), kind))
			}
			for reason := None + 1; reason < numDrops; reason++ {
				if reason.of(c.IPv6) {
					p.drops[d][reason] = dropped.WithLabelValues(name, d.String(), reason.String())
				}
			}
		}
		m.ports = append(m.ports, p)
	}
	if c.Registerer == nil {
		return m, nil
	}
	for _, collector := range append(append(m.servers.Collectors(), collectors...), m.latency, m.up,
		gauge("_pending", " requests that are remembered for their replies.", pending)) {
		if err := c.Registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("failed to register metrics: %w", err)
		}
	}
	return m, nil
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
