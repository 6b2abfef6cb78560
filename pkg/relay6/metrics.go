package relay6

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/dhcp6"
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

// unicast is the listener of what arrived at an address of this host, and unicastLabel its name.
const (
	unicast      = -1
	unicastLabel = "unicast"
)

// metrics are the relay's instruments. Counters are looked up once, since the lookup costs more than the relaying.
type metrics struct {
	ports   []portMetrics // by listener, the unicast socket last
	latency prometheus.Histogram
	ready   *prometheus.GaugeVec
	servers *server.Metrics
}

type portMetrics struct {
	packets [numDirections][dhcp6.NumTypes]prometheus.Counter
	drops   [numDirections][numDrops]prometheus.Counter
	omitted prometheus.Counter
	// takenOver is of listeners only.
	takenOver prometheus.Counter
	// unadvertised is of listeners only.
	unadvertised prometheus.Counter
}

// gauges are read when the metrics are.
type gauges struct{ pending, waiting func() float64 }

// prefix begins the name of each metric: that of DHCPv4's, with the family.
const prefix = "dhcp_relay6"

func newMetrics(registerer prometheus.Registerer, listeners []Listener, read gauges) (*metrics, error) {
	packets := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "_packets_total",
		Help: "DHCPv6 messages relayed, by the listener at the client's side, direction and the type of the client's or " +
			"server's message. One that goes to two servers counts once.",
	}, []string{"listener", "direction", "type"})
	drops := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "_drops_total",
		Help: "DHCPv6 packets not relayed, by listener, direction and reason (docs/dhcp-relay.md).",
	}, []string{"listener", "direction", "reason"})
	omitted := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "_options_omitted_total",
		Help: "Messages relayed without Remote-Id, Subscriber-Id and Relay-Id, since they would have exceeded the MTU.",
	}, []string{"listener"})
	unadvertised := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "_unadvertised_total",
		Help: "Messages of machines on a link whose routers advertise no DHCPv6 (flags M and O).",
	}, []string{"listener"})
	takenOver := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "_taken_over_total",
		Help: "DHCPv6 messages relayed although they are another replica's, since their machines waited for long.",
	}, []string{"listener"})
	m := &metrics{
		servers: server.NewMetrics(prefix),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    prefix + "_reply_seconds",
			Help:    "Time from a DHCPv6 message being relayed to its first reply.",
			Buckets: server.ReplyBuckets(),
		}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "_listener_up",
			Help: "Whether the DHCPv6 listener is open (1) or waits for its interface (0).",
		}, []string{"listener"}),
	}
	for _, l := range append(listeners[:len(listeners):len(listeners)], Listener{Name: unicastLabel}) {
		port := portMetrics{omitted: omitted.WithLabelValues(l.Name)}
		if l.Name != unicastLabel {
			port.unadvertised = unadvertised.WithLabelValues(l.Name)
			port.takenOver = takenOver.WithLabelValues(l.Name)
		}
		for d := range numDirections {
			for t := range dhcp6.Type(dhcp6.NumTypes) {
				port.packets[d][t] = packets.WithLabelValues(l.Name, directionNames[d], t.String())
			}
			for reason := None + 1; reason < numDrops; reason++ {
				port.drops[d][reason] = drops.WithLabelValues(l.Name, directionNames[d], reason.String())
			}
		}
		m.ports = append(m.ports, port)
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range append(m.servers.Collectors(),
		packets, drops, omitted, unadvertised, takenOver, m.latency, m.ready,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "_pending", Help: "DHCPv6 messages that are remembered for their replies.",
		}, read.pending),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "_waiting", Help: "Messages of machines never served that wait until others are answered.",
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

func (p *portMetrics) relayed(d direction, t dhcp6.Type) { p.packets[d][t.Index()].Inc() }

func (p *portMetrics) dropped(d direction, reason Drop) { p.drops[d][reason].Inc() }

func (p *portMetrics) lost(n uint32) { p.drops[toServer][Overflow].Add(float64(n)) }

func (m *metrics) answered(wait int64) { m.latency.Observe(time.Duration(wait).Seconds()) }
