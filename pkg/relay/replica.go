package relay

import (
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/group"
	"github.com/tinkerbell/stack/pkg/relay/peers"
)

// isOthers tells whether another replica on the VLAN relays a request. A request that was sent to this host is never
// another replica's.
func (d *worker) isOthers(m dhcp.Message, k key, client uint64, now int64) bool {
	if d.watch == nil {
		return false
	}
	kind := m.Type()
	ask := group.Ask{
		Identity: k.chaddr[:min(k.hlen, 16)], Tag: client, Kind: uint8(kind), XID: k.xid,
		Begins: kind == dhcp.Discover, Waited: group.Seconds(m.Secs()),
	}
	if id, found := m.Option(dhcp.OptionClientID); found {
		ask.Identity = id
	}
	switch d.watch.Decide(&ask, now) {
	case group.Others:
		return true
	case group.TakenOver:
		d.metrics.TakenOver.Inc()
		peers.WarnTakenOver(d.relay.logLimiter, now, d.name)
	case group.Ours:
	}
	return false
}
