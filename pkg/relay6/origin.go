package relay6

import (
	"hash/maphash"
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// key identifies a transaction by values of the client that a server must repeat.
type key struct {
	peer [16]byte // the sender of the message to this relay
	duid uint64   // hash of the client identifier, 0 where there is none
	xid  uint32
}

// keyOf is the key of a message: that of the client or of the server for it, whether it is wrapped or not.
func (r *Relay) keyOf(client dhcp6.Message, peer [16]byte) key {
	k := key{peer: peer, xid: client.XID()}
	if duid, found := client.Option(dhcp6.OptionClientID); found {
		k.duid = maphash.Bytes(r.seed, duid)
	}
	return k
}

// origin is where a message came from, and so where its replies go.
type origin struct {
	// listener is the index of the listener that received it, or unicast.
	listener int16
	// port is where the sender wants the reply: a client's, or a relay agent's.
	port uint16
	// mac is the sender's, on a listener. Zero if that is not known.
	mac frame.MAC
	// own tells that the peer address is made from mac, as firmware's is. No other machine can show that without sending
	// with that MAC address.
	own bool
	// owner is the client's MAC address, which is another one where a relay agent sent its message. Zero if that is not
	// known.
	owner frame.MAC
	// firmware tells that the client says that it boots by the network: servers may answer that only.
	firmware bool
	// link is the link address that the server was told, which it has to repeat.
	link [16]byte
	// local is the address of this host that a unicast was sent to, and ifindex the link that it came by.
	local   [16]byte
	ifindex int32
	// client is the client's tag ([Relay.namesOf]), zero if it is not known here.
	client uint64
}

// remember notes the origin of a message. Any station on the link sees a machine's message, and could have the
// answer's frame sent to itself by repeating that message. So the transaction belongs to its first sender until the
// answer comes. Another MAC address takes it over only if the peer address is made from that MAC address: then the
// first message was the copy.
func (d *worker) remember(k key, o origin, now int64) Drop {
	r := d.relay
	earlier, ok := r.pending.RememberIf(k, o, now, supersedes)
	if ok {
		return None
	}
	r.logLimiter.WarnAt(now, "refused a copy of another machine's message", func() []any {
		return []any{"listener", d.name, "peer", netip.AddrFrom16(k.peer).String(),
			"mac", net.HardwareAddr(o.mac[:]).String(), "first_mac", net.HardwareAddr(earlier.mac[:]).String(),
			"remedy", "find the machine with that MAC address: it wants the answer to another one"}
	})
	return TransactionTaken
}

// supersedes tells whether a later message of the same transaction may take the place of the earlier one.
func supersedes(earlier, later origin) bool { return later.mac == earlier.mac || later.own }

// arrival is how a message reached the relay.
type arrival struct {
	// listener is the index of the listener, or unicast.
	listener int16
	// source is the sender by its IP header, and mac by its frame.
	source [16]byte
	port   uint16
	mac    frame.MAC
	// local and ifindex are of this host, for a unicast.
	local   [16]byte
	ifindex int32
	// link is the listener's interface.
	link *link

	// The method request sets these: kind is the type of the client's message; relayed tells that another relay agent
	// sent it, firmware that the client says that it boots by the network, and waits that its queue will send it.
	kind                     dhcp6.Type
	client                   uint64
	relayed, firmware, waits bool
}

// client identifies a client. The same name on another VLAN, or behind another relay agent, is another client.
type client struct {
	mac      frame.MAC
	duid     uint64
	listener int16
	sender   [16]byte
}

// namesOf returns the tags of a client: that of its MAC address and that of its DUID, or that of the DUID alone where
// there is no MAC address. The tag of a client that shows neither is zero.
func (r *Relay) namesOf(a *arrival, owner frame.MAC, duid uint64, relayed bool) (tag, also uint64) {
	c := client{mac: owner, listener: a.listener}
	if relayed {
		c.sender = a.source
	}
	if c.mac != (frame.MAC{}) {
		tag = max(maphash.Comparable(r.seed, c), 1)
	}
	if duid != 0 {
		c.mac, c.duid = frame.MAC{}, duid
		also = max(maphash.Comparable(r.seed, c), 1)
	}
	if tag == 0 {
		return also, 0
	}
	return tag, also
}
