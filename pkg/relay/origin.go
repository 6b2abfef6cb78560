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

// macOf is the hardware address in a message, zero where it is none of Ethernet's length.
func macOf(m dhcp.Message) (mac [6]byte) {
	if chaddr := m.Chaddr(); m.HLen() == 6 {
		mac = [6]byte(chaddr[:])
	}
	return mac
}

// origin is where a request came from, and so where its replies go.
type origin struct {
	// listener is the index of the listener that received it, or unicast.
	listener int16
	// added are our sub-options, which must not reach the client; sole tells that there was no option 82 before. Zero and
	// false: none was added.
	added dhcp.Subs
	sole  bool
	// firmware tells that the client says that it boots by the network: servers may answer that only.
	firmware bool
	// sum is the checksum of our sub-options ([dhcp.SumSubs]), 0 where they are not known or are the sole ones: a server
	// may have echoed the others only.
	sum uint32
	// giaddr is the relay agent that the request named, which this relay has replaced by itself; zero if none.
	giaddr [4]byte
	// from and local are both ends of a unicast request: the reply takes the same path.
	from  peer
	local [4]byte
	// client is the client's tag ([Relay.clientOf]), zero if it is not known here.
	client uint64
}
