package relay

import (
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// destination is where on a listener's LAN a reply goes.
type destination struct {
	mac frame.MAC
	ip  [4]byte
}

var limitedBroadcast = [4]byte{255, 255, 255, 255}

// htypeEthernet is the only hardware type whose chaddr is an address that a frame on a listener can carry.
const htypeEthernet = 1

// address chooses where a reply to a client on a listener goes. The first rule that fits decides:
//
//  1. A NAK is broadcast, since it says that the client's address is wrong (RFC 2131 section 4.3.2).
//  2. The client cannot take a unicast: it says so by the broadcast flag, or it shows no Ethernet address that a
//     frame could go to (RFC 4390 section 2.1 for InfiniBand). Broadcast on both layers (RFC 1542 section 4.1.2).
//  3. The client has an address (ciaddr): there (RFC 2131 section 4.1).
//  4. The client is given an address (yiaddr): there, though it does not answer ARP for it yet, which is why the
//     frame is made here and not by the kernel (RFC 2131 section 4.1).
//  5. There is no address at all, as in a proxyDHCP offer: the IP broadcast in an Ethernet unicast.
func address(m dhcp.Message, always bool) destination {
	if always || m.Broadcast() || m.Type() == dhcp.Nak || m.HType() != htypeEthernet || m.HLen() != 6 {
		return destination{mac: frame.Broadcast, ip: limitedBroadcast}
	}
	chaddr := m.Chaddr()
	to := destination{mac: frame.MAC(chaddr[:6]), ip: limitedBroadcast}
	if to.mac == (frame.MAC{}) || to.mac.IsGroup() {
		to.mac = frame.Broadcast
		return to
	}
	if ciaddr := m.Ciaddr(); ciaddr != ([4]byte{}) {
		to.ip = ciaddr
	} else if yiaddr := m.Yiaddr(); yiaddr != ([4]byte{}) {
		to.ip = yiaddr
	}
	return to
}
