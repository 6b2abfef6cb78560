package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// direction is the side of the relay that a packet leaves by.
type direction uint8

const (
	toServer direction = iota
	toClient
	numDirections
)

var directionNames = [numDirections]string{"to-server", "to-client"}

// unicastLabel stands for the listener of what arrived at an address of this host.
const unicastLabel = "unicast"

// metrics are the relay's instruments. Counters are looked up once, since the lookup costs more than the relaying.
type metrics struct {
	ports   []portMetrics // by listener, the unicast socket last
	latency prometheus.Histogram
	ready   *prometheus.GaugeVec
	servers *server.Metrics
}

type portMetrics struct {
	packets [numDirections][dhcp.NumTypes]prometheus.Counter
	drops   [numDirections][numDrops]prometheus.Counter
	omitted prometheus.Counter
	// takenOver is of listeners only.
	takenOver prometheus.Counter
}

// gauges are read when the metrics are.
type gauges struct{ pending, waiting func() float64 }

func newMetrics(registerer prometheus.Registerer, listeners []Listener, read gauges) (*metrics, error) {
	packets := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dhcp_relay_packets_total",
		Help: "Packets relayed, by the listener at the client's side, direction and DHCP message type. " +
			"A request that goes to two servers counts once.",
	}, []string{"listener", "direction", "type"})
	drops := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dhcp_relay_drops_total",
		Help: "Packets not relayed, by listener, direction and reason (docs/dhcp-relay.md).",
	}, []string{"listener", "direction", "reason"})
	omitted := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dhcp_relay_option82_omitted_total",
		Help: "Requests relayed without the option 82 that they should have got, since it did not fit.",
	}, []string{"listener"})
	takenOver := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dhcp_relay_taken_over_total",
		Help: "Requests relayed although they are another replica's, since their machines waited for long.",
	}, []string{"listener"})
	m := &metrics{
		servers: server.NewMetrics("dhcp_relay"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "dhcp_relay_reply_seconds",
			Help:    "Time from a request being relayed to its first reply.",
			Buckets: server.ReplyBuckets(),
		}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dhcp_relay_listener_up",
			Help: "Whether the listener is open (1) or waits for its interface (0).",
		}, []string{"listener"}),
	}
	for _, l := range append(listeners[:len(listeners):len(listeners)], Listener{Name: unicastLabel}) {
		name := l.Name
		port := portMetrics{omitted: omitted.WithLabelValues(name)}
		if name != unicastLabel {
			port.takenOver = takenOver.WithLabelValues(name)
		}
		for d := range numDirections {
			for t := range dhcp.Type(dhcp.NumTypes) {
				port.packets[d][t] = packets.WithLabelValues(name, directionNames[d], t.String())
			}
			for reason := None + 1; reason < numDrops; reason++ {
				port.drops[d][reason] = drops.WithLabelValues(name, directionNames[d], reason.String())
			}
		}
		m.ports = append(m.ports, port)
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range append(m.servers.Collectors(),
		packets, drops, omitted, takenOver, m.latency, m.ready,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "dhcp_relay_pending", Help: "Requests that are remembered for their replies.",
		}, read.pending),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "dhcp_relay_waiting", Help: "Requests of machines never served that wait until others are answered.",
		}, read.waiting),
	) {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// port is the metrics of a listener, or of the unicast socket.
func (m *metrics) port(listener int) *portMetrics {
	if listener == unicast {
		listener = len(m.ports) - 1
	}
	return &m.ports[listener]
}

func (p *portMetrics) relayed(d direction, t dhcp.Type) { p.packets[d][t].Inc() }

func (p *portMetrics) dropped(d direction, reason Drop) { p.drops[d][reason].Inc() }

func (p *portMetrics) lost(reason Drop, n uint32) { p.drops[toServer][reason].Add(float64(n)) }

func (m *metrics) answered(wait int64) { m.latency.Observe(time.Duration(wait).Seconds()) }
