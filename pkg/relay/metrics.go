package relay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/metrics"
)

const (
	toServer = metrics.ToServer
	toClient = metrics.ToClient
	// unicast takes the place of a listener's index where a packet was sent to an address of this host.
	unicast      = metrics.Unicast
	unicastLabel = metrics.UnicastName
)

// Places of the metrics in metrics.Port.Own.
const (
	omitted = iota
	otherCookies
)

func newMetrics(
	registerer prometheus.Registerer, listeners []Listener, pending, waiting func() float64,
) (*metrics.Metrics[Drop], error) {
	c := metrics.Config{
		Registerer: registerer, Prefix: "dhcp_relay", Family: "DHCPv4", Drops: dropNames[:],
		Pending: pending, Waiting: waiting,
		Own: []metrics.Counter{
			omitted: {
				Name: "_option82_omitted_total",
				Help: "Requests relayed without the option 82 that they should have got, since it did not fit.",
			},
			otherCookies: {
				Name: "_other_cookies_total",
				Help: "Requests relayed whose vendor area begins with another cookie than that of DHCP.",
			},
		},
	}
	for _, l := range listeners {
		c.Listeners = append(c.Listeners, l.Name)
	}
	for t := range dhcp.Type(dhcp.NumTypes) {
		c.Types = append(c.Types, t.String())
	}
	return metrics.New[Drop](c)
}
