package relay

import (
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// peer is an IPv4 address and port, without the pointer that a netip.Addr holds: the pending table is large, and
// the garbage collector need not look into it.
type peer struct {
	ip   [4]byte
	port uint16
}

func peerOf(a netip.AddrPort) peer { return peer{ip: a.Addr().As4(), port: a.Port()} }

func (e peer) addrPort() netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4(e.ip), e.port) }

func (e peer) String() string { return e.addrPort().String() }

// key identifies a transaction by values that a client chooses and a server must repeat.
type key struct {
	xid    uint32
	chaddr [16]byte
	hlen   uint8
}

func keyOf(m dhcp.Message) key {
	k := key{xid: m.XID(), chaddr: m.Chaddr(), hlen: m.HLen()}
	// A server that parses and rebuilds a message, as Smee does, zeroes the bytes behind the address.
	clear(k.chaddr[min(k.hlen, 16):])
	return k
}

// origin is where a request came from, and so where its replies go.
type origin struct {
	// listener is the index of the listener that received it, or unicast.
	listener int16
	// added tells that an option 82 is ours and must not reach the client; agent is the length of its value, and
	// sole that there was none before.
	added, sole bool
	agent       uint8
	// sum is the CRC-32 of that value, unless it is the sole one: a server may have echoed the other only.
	sum uint32
	// giaddr is the relay agent that the request named, which this relay has replaced by itself; zero if none.
	giaddr [4]byte
	// from and local are both ends of a unicast request: the reply takes the same path.
	from  peer
	local [4]byte
	// client is the client's tag ([Relay.clientOf]), zero if it is not known here.
	client uint64
}
