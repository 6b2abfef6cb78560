package peers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/relay/group"
)

// metrics are the instruments, by listener.
type metrics struct {
	peers, owner, share *prometheus.GaugeVec
	refused             *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	listener := []string{"listener"}
	m := &metrics{
		peers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dhcp_relay_peers", Help: "Other replicas that are heard on the listener.",
		}, listener),
		owner: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dhcp_relay_owner",
			Help: "Whether this replica's node has the stack's address, as far as can be heard on the listener (1).",
		}, listener),
		share: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dhcp_relay_share_ratio", Help: "Share of all machines on the listener that this replica relays.",
		}, listener),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dhcp_relay_hellos_refused_total",
			Help: "Hellos of other replicas that count for nothing, by reason (docs/dhcp-relay.md).",
		}, []string{"listener", "reason"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.peers, m.owner, m.share, m.refused} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// show sets the gauges of a listener.
func (m *metrics) show(listener string, self group.State, v group.View) {
	m.peers.WithLabelValues(listener).Set(float64(v.Peers))
	owner := 0.0
	if self.Owner {
		owner = 1
	}
	m.owner.WithLabelValues(listener).Set(owner)
	m.share.WithLabelValues(listener).Set(float64(v.Share) / 256)
}
