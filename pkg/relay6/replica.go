package relay6

import (
	"encoding/binary"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/relay/group"
	"github.com/tinkerbell/stack/pkg/relay/peers"
)

// isOthers tells whether another replica on the VLAN relays a client's message. A message that was sent to this host is
// never another replica's.
func (d *worker) isOthers(m dhcp6.Message, a *arrival, now int64) bool {
	if d.watch == nil {
		return false
	}
	ask := group.Ask{
		Tag: a.client, Kind: uint8(m.Type()), XID: m.XID(), Begins: m.Type() == dhcp6.Solicit, Waited: elapsed(m),
	}
	if duid, found := m.Option(dhcp6.OptionClientID); found {
		ask.Identity = duid
	} else {
		ask.Identity = a.mac[:]
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

// elapsed is for how long a client has been asking, by its option (RFC 9915 section 21.9, hundredths of a second).
func elapsed(m dhcp6.Message) time.Duration {
	value, found := m.Option(dhcp6.OptionElapsedTime)
	if !found || len(value) != 2 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint16(value)) * 10 * time.Millisecond
}
