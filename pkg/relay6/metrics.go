package relay6

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
)

const (
	toServer = metrics.ToServer
	toClient = metrics.ToClient
	// unicast takes the place of a listener's index where a packet was sent to an address of this host.
	unicast      = metrics.Unicast
	unicastLabel = metrics.UnicastName
)

// The places of the metrics in metrics.Port.Own.
const (
	omitted = iota
	unadvertised
)

func newMetrics(
	registerer prometheus.Registerer, listeners []Listener, pending, waiting func() float64,
) (*metrics.Metrics[Drop], error) {
	c := metrics.Config{
		Registerer: registerer, Prefix: "dhcp_relay6", Family: "DHCPv6", Drops: dropNames[:],
		Pending: pending, Waiting: waiting,
		Own: []metrics.Counter{
			omitted: {
				Name: "_options_omitted_total",
				Help: "Messages relayed without Remote-Id, Subscriber-Id and Relay-Id, since they would have exceeded the MTU.",
			},
			unadvertised: {
				Name: "_unadvertised_total", ListenersOnly: true,
				Help: "Messages of machines on a link whose routers advertise no DHCPv6 (flags M and O).",
			},
		},
	}
	for _, l := range listeners {
		c.Listeners = append(c.Listeners, l.Name)
	}
	for t := range dhcp6.Type(dhcp6.NumTypes) {
		c.Types = append(c.Types, t.String())
	}
	return metrics.New[Drop](c)
}
