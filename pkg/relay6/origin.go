package relay6

import (
	"hash/maphash"
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// key identifies a transaction: what is the client's and a server must repeat.
type key struct {
	peer [16]byte // who sent the message to this relay
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
	// listener is the index of the listener that heard it, or unicast.
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
	// link is the link address that the server was told, which it has to repeat.
	link [16]byte
	// local is the address of this host that a unicast was sent to, and ifindex the link that it came by.
	local   [16]byte
	ifindex int32
	// client is what the client is known by, zero if that is not known here.
	client uint64
}

// remember notes where a message came from. Whoever is on the link sees a machine's message, and could have the
// answer's frame sent to itself by repeating that message: while the answer is awaited, the transaction is the first
// sender's. Another MAC address takes it over only if the peer address is made from it, since the one before was a
// copy then.
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
	// link is what is known of the listener's interface.
	link *link

	// What request finds out: kind is the client's message's type, relayed that another relay agent sent it, served that
	// the servers gave its client an address before, and waits that the message was put aside and is sent by its room.
	kind                   dhcp6.Type
	client                 uint64
	relayed, served, waits bool
}

// client is what distinguishes two clients. The same name of another VLAN, or of another relay agent, is another
// client.
type client struct {
	mac      frame.MAC
	duid     uint64
	listener int16
	sender   [16]byte
}

// namesOf are what a client is known by: its MAC address and its DUID; by the DUID alone where there is no MAC address.
// Zero for one that shows neither.
func (r *Relay) namesOf(a *arrival, owner frame.MAC, duid uint64, relayed bool) (tag, also uint64) {
	who := client{mac: owner, listener: a.listener}
	if relayed {
		who.sender = a.source
	}
	if who.mac != (frame.MAC{}) {
		tag = max(maphash.Comparable(r.seed, who), 1)
	}
	if duid != 0 {
		who.mac, who.duid = frame.MAC{}, duid
		also = max(maphash.Comparable(r.seed, who), 1)
	}
	if tag == 0 {
		return also, 0
	}
	return tag, also
}
