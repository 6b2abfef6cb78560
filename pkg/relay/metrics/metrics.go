// Package metrics counts the packets that a relay passes on and drops, by listener and direction. The relays of both
// families have the same metrics, under another prefix, and some of their own.
package metrics

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/relay/server"
)

// Direction is the side of the relay that a packet leaves by.
type Direction uint8

// The directions.
const (
	ToServer Direction = iota
	ToClient
	directions
)

func (d Direction) String() string { return [directions]string{"to-server", "to-client"}[d] }

// Unicast takes the place of a listener's index for packets that were sent to an address of this host, and UnicastName
// that of its name.
const (
	Unicast     = -1
	UnicastName = "unicast"
)

// Config makes the metrics of a relay.
type Config struct {
	Registerer prometheus.Registerer // may be nil
	// Prefix begins each metric's name, and Family ("DHCPv4") says in their help which relay they are of.
	Prefix, Family string
	Listeners      []string
	// Types are the names of the message types, and Drops those of the drop reasons, by their numbers. The first of
	// Drops is that of a packet that was relayed.
	Types, Drops []string
	// Own are counters of this relay alone.
	Own []Counter
	// Pending is the number of requests that are remembered, and Waiting that of those that wait.
	Pending, Waiting func() float64
}

// Counter counts requests by listener.
type Counter struct {
	Name, Help string
	// ListenersOnly is for a counter that has no row for UnicastName.
	ListenersOnly bool
}

// Metrics are a relay's instruments. D is its type of drop reasons. Counters are looked up once, since the lookup costs
// more than the relaying.
type Metrics[D ~uint8] struct {
	Servers *server.Metrics

	ports   []Port[D] // by listener, that of Unicast last
	latency prometheus.Histogram
	up      *prometheus.GaugeVec
}

// Port is the counters of one listener, or of Unicast.
type Port[D ~uint8] struct {
	// Own are those of Config.Own, in its order; nil where there is none.
	Own []prometheus.Counter

	packets, drops [directions][]prometheus.Counter
}

// New makes and registers the metrics.
func New[D ~uint8](c Config) (*Metrics[D], error) {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: c.Prefix + name, Help: help}, labels)
	}
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: c.Prefix + name, Help: help}, read)
	}
	packets := vector("_packets_total", c.Family+" messages relayed, by the listener at the client's side, direction "+
		"and the type of the client's or server's message. A request that goes to two servers counts once.",
		"listener", "direction", "type")
	drops := vector("_drops_total", c.Family+" packets not relayed, by listener, direction and reason "+
		"(docs/dhcp-relay.md).", "listener", "direction", "reason")
	m := &Metrics[D]{
		Servers: server.NewMetrics(c.Prefix),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    c.Prefix + "_reply_seconds",
			Help:    "Time from a " + c.Family + " request being relayed to its first reply.",
			Buckets: server.ReplyBuckets(),
		}),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: c.Prefix + "_listener_up",
			Help: "Whether the " + c.Family + " listener is open (1) or waits for its interface (0).",
		}, []string{"listener"}),
	}
	collectors := append(m.Servers.Collectors(), packets, drops, m.latency, m.up,
		gauge("_pending", c.Family+" requests that are remembered for their replies.", c.Pending),
		gauge("_waiting", c.Family+" requests of machines never served that wait until others are answered.", c.Waiting))
	own := make([]*prometheus.CounterVec, 0, len(c.Own))
	for _, counter := range c.Own {
		own = append(own, vector(counter.Name, counter.Help, "listener"))
		collectors = append(collectors, own[len(own)-1])
	}
	for _, name := range append(c.Listeners[:len(c.Listeners):len(c.Listeners)], UnicastName) {
		port := Port[D]{Own: make([]prometheus.Counter, len(own))}
		for i, counter := range c.Own {
			if name != UnicastName || !counter.ListenersOnly {
				port.Own[i] = own[i].WithLabelValues(name)
			}
		}
		for d := range directions {
			for _, kind := range c.Types {
				port.packets[d] = append(port.packets[d], packets.WithLabelValues(name, d.String(), kind))
			}
			port.drops[d] = make([]prometheus.Counter, 1, len(c.Drops))
			for _, reason := range c.Drops[1:] {
				port.drops[d] = append(port.drops[d], drops.WithLabelValues(name, d.String(), reason))
			}
		}
		m.ports = append(m.ports, port)
	}
	if c.Registerer == nil {
		return m, nil
	}
	for _, collector := range collectors {
		if err := c.Registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("failed to register metrics: %w", err)
		}
	}
	return m, nil
}

// Port is the counters of a listener, by its index, or of Unicast.
func (m *Metrics[D]) Port(listener int) *Port[D] {
	if listener == Unicast {
		listener = len(m.ports) - 1
	}
	return &m.ports[listener]
}

// Answered notes the nanoseconds from a request to its first reply.
func (m *Metrics[D]) Answered(wait int64) { m.latency.Observe(time.Duration(wait).Seconds()) }

// Up notes whether a listener is open.
func (m *Metrics[D]) Up(listener string, up bool) {
	value := 0.0
	if up {
		value = 1
	}
	m.up.WithLabelValues(listener).Set(value)
}

// Relayed counts a message of a type, by the type's place in Config.Types.
func (p *Port[D]) Relayed(d Direction, kind int) { p.packets[d][kind].Inc() }

// Dropped counts a packet.
func (p *Port[D]) Dropped(d Direction, reason D) { p.drops[d][reason].Inc() }

// Drops is the counter of a reason.
func (p *Port[D]) Drops(d Direction, reason D) prometheus.Counter { return p.drops[d][reason] }
