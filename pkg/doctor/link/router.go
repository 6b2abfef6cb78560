package link

import (
	"encoding/binary"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Router is what a router says of its link (RFC 4861 section 4.2).
type Router struct {
	Addr    netip.Addr
	MAC     frame.MAC
	Managed bool // addresses come by DHCPv6
	Default bool // it leads elsewhere
	// OnLink are the networks whose hosts are reached without it.
	OnLink []netip.Prefix
	// Prefixes are the networks of the link's addresses: those, and others that it advertises.
	Prefixes []netip.Prefix
}

// ParseRouter reads a router's advertisement. It is false for any other frame.
func ParseRouter(in Received) (r Router, ok bool) {
	said, ok := frame.ParseAdvertisement(in.Frame)
	if !ok || in.VLAN != 0 {
		return r, false
	}
	const at, lifetime, fixed, unit, mostPrefixes = frame.EthernetLen + frame.IPv6Len, 6, 16, 8, 16
	icmp := in.Frame[at:]
	r = Router{
		Addr: netip.AddrFrom16(said.Router), MAC: frame.MAC(in.Frame[6:12]), Managed: said.Managed,
		Default: binary.BigEndian.Uint16(icmp[lifetime:]) > 0,
	}
	const prefixOption, prefixLen, onLink = 3, 32, 0x80
	for options := icmp[fixed:]; len(options) >= unit && len(r.Prefixes) < mostPrefixes; {
		n := int(options[1]) * unit
		if n == 0 || n > len(options) {
			return Router{}, false // RFC 4861 section 6.1.2
		}
		if options[0] == prefixOption && n == prefixLen && options[2] <= 128 {
			network := netip.PrefixFrom(netip.AddrFrom16([16]byte(options[16:32])), int(options[2])).Masked()
			r.Prefixes = append(r.Prefixes, network)
			if options[3]&onLink != 0 {
				r.OnLink = append(r.OnLink, network)
			}
		}
		options = options[n:]
	}
	return r, true
}

// AskRouters asks the routers of the link to advertise themselves (RFC 4861 section 4.1).
func (l *Link) AskRouters() {
	const solicitation = 133
	group := netip.AddrFrom16([16]byte{0xff, 2, 15: 2})
	body := append([]byte{solicitation, 0, 0, 0, 0, 0, 0, 0, 1, 1}, l.MAC[:]...) // with the source's Ethernet address
	_ = l.Send(l.icmp6(l.LinkLocal(), group, frame.GroupMAC(group.As16()), body))
}

// LinkLocal is the address by which this station asks for addresses.
func (l *Link) LinkLocal() netip.Addr { return netip.AddrFrom16(frame.LinkLocal(l.MAC)) }

// AnswerForLinkLocal tells whoever asks which Ethernet address has the link-local address, until end is called: the
// host may have none on this interface, or another one.
func (l *Link) AnswerForLinkLocal() (end func()) {
	const solicitation, target = 135, frame.EthernetLen + frame.IPv6Len + 8
	own := frame.LinkLocal(l.MAC)
	return l.Tap(func(in Received) {
		b := in.Frame
		if in.VLAN == 0 && len(b) >= target+16 && binary.BigEndian.Uint16(b[12:]) == frame.EtherTypeIPv6 &&
			b[frame.EthernetLen+6] == protocolICMP6 && b[frame.EthernetLen+frame.IPv6Len] == solicitation &&
			[16]byte(b[target:]) == own {
			_ = l.Send(frame.AppendUnsolicited(nil, l.MAC, own))
		}
	})
}

// icmp6 is a frame with a message of ICMPv6, whose checksum it writes.
func (l *Link) icmp6(from, to netip.Addr, via frame.MAC, body []byte) []byte {
	b := make([]byte, frame.EthernetLen+frame.IPv6Len+len(body))
	copy(b, via[:])
	copy(b[6:], l.MAC[:])
	binary.BigEndian.PutUint16(b[12:], frame.EtherTypeIPv6)
	ip := b[frame.EthernetLen:]
	ip[0], ip[6], ip[7] = 0x60, protocolICMP6, 255
	binary.BigEndian.PutUint16(ip[4:], uint16(len(body)))
	source, destination := from.As16(), to.As16()
	copy(ip[8:], source[:])
	copy(ip[24:], destination[:])
	icmp := ip[frame.IPv6Len:]
	copy(icmp, body)
	icmp[2], icmp[3] = 0, 0
	pseudo := append(append([]byte{}, ip[8:40]...), 0, 0, byte(len(body)>>8), byte(len(body)), 0, 0, 0, protocolICMP6)
	binary.BigEndian.PutUint16(icmp[2:], ^sum(append(pseudo, icmp...)))
	return b
}
