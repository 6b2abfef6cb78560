package relay

import (
	"encoding/binary"
	"hash/maphash"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// Ports of DHCPv6 (RFC 9915 section 7.2).
const (
	serverPort6 = 547 // of servers and relay agents
	clientPort6 = 546
)

// allNodes is the group of every station, for replies to a client whose MAC address is not known.
var allNodes = [16]byte{0xff, 2, 15: 1}

// v6 is the family of DHCPv6 (RFC 9915 section 19). Machines send to ff02::1:2, which does not leave their link.
type v6 struct{ signs bool }

func newV6(c *Config) *v6 { return &v6{signs: len(c.TokenKey) > 0} }

var traits6 = traits{
	task: "relay6", title: "DHCPv6", prefix: "dhcp_relay6",
	serverPort: serverPort6, domain: unix.AF_INET6, etherType: unix.ETH_P_IPV6,
	filter: frame.Filter6, unicastFilter: frame.UnicastFilter6,
	// An interface without IPv6 listens to neither by itself.
	groups:           []frame.MAC{frame.GroupMAC(frame.AllRelays())},
	listenerHeadroom: headroom6, headroom: headroom6, headers: frame.HeaderLen6, ipAndUDP: ipAndUDP6,
	replyByte: byte(dhcp6.RelayReply), noSource: NoServer, kinds: typeNames(dhcp6.Type(dhcp6.NumTypes)),
}

func (*v6) traits() *traits { return &traits6 }

func (*v6) control(fd int) error {
	for _, option := range []struct {
		name  string
		code  int
		value int
	}{
		{"IPV6_V6ONLY", unix.IPV6_V6ONLY, 1},
		{"IPV6_RECVPKTINFO", unix.IPV6_RECVPKTINFO, 1},
		// A large message may be fragmented on its way; nothing here could answer "too big".
		{"IPV6_MTU_DISCOVER", unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DONT},
	} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, option.code, option.value); err != nil {
			return os.NewSyscallError("setsockopt "+option.name, err)
		}
	}
	return nil
}

// describe finds the interface's addresses. It needs none: replies come from the link-local address made from its MAC
// address, and need no neighbour discovery, since they are sent as frames to the MAC address that asked.
func (*v6) describe(config *Config, l *Listener, at *net.Interface) link {
	mac := frame.MAC(at.HardwareAddr)
	known := link{local: frame.LinkLocal(mac)}
	if l.LinkAddress.IsValid() {
		known.address = l.LinkAddress.As16()
	} else if own := server.FirstAddress(at, true); own.IsValid() {
		known.address = own.As16()
	}
	for _, each := range server.Prefixes(at.Addrs()) {
		if each.Addr().Is6() && each.Addr().IsLinkLocalUnicast() {
			known.local = each.Addr().As16()
			break
		}
	}
	return known
}

func (*v6) view(v *vlan, i int, b []byte, sum frame.Checksum, a *arrival, now int64) Drop {
	v.relay.trace.Frame(now, b)
	datagram, fault := frame.Parse6(b, sum)
	if fault != frame.OK {
		return ofFrame6[fault]
	}
	a.source, a.mac = peerOf(datagram.Src), datagram.SrcMAC
	a.at = headroom6 + frame.HeaderLen6
	a.b = v.RecvBatch().Slot(i)[:a.at+len(datagram.Payload)]
	return None
}

func (*v6) request(w *worker, a *arrival, targets *server.Targets, now int64) ([]byte, Drop) {
	return w.request6(a.b, a.at, a, targets, now)
}

func (*v6) answerExpected(w *worker, b []byte, _ *server.Targets) bool {
	m, _ := dhcp6.Message(b).Innermost()
	return w.answerExpected6(m)
}

func (*v6) reply(w *worker, b []byte, from netip.Addr, targets *server.Targets, now int64, out *back) Drop {
	m := dhcp6.Message(b)
	if drop := w.reply6(m, from, targets, now, out); drop != None {
		return drop
	}
	client, _ := m.Innermost()
	start, end := m.InnerAt()
	out.start, out.end, out.kind = headroom6+start, headroom6+end, client.Type().Index()
	out.to = netip.AddrPortFrom(netip.AddrFrom16(m.Peer()), out.port)
	return None
}

func (*v6) put(_ *Relay, whole []byte, open *listener.Opened[link], out *back, _ *server.Targets) {
	header := frame.Header6{
		SrcMAC: open.MAC, DstMAC: out.mac, Src: open.Info.local, Dst: out.to.Addr().As16(),
		SrcPort: serverPort6, DstPort: out.port,
	}
	if header.DstMAC == (frame.MAC{}) {
		header.DstMAC = macOf6(header.Dst)
	}
	header.Put(whole)
}

// macOf6 is the destination of a frame to an address whose MAC address is not known from a request: the MAC address
// that it was made from, or all stations; those that do not have the address ignore the frame.
func macOf6(address [16]byte) frame.MAC {
	if mac, ok := frame.MACOf(address); ok {
		return mac
	}
	return frame.GroupMAC(allNodes)
}

// answerExpected6 tells whether every server answers a client's message. One that names a server, such as every RENEW,
// is discarded by the others (RFC 9915 sections 16.4, 16.6, 16.8, 16.9), which does not mean that they are dead.
func (w *worker) answerExpected6(m dhcp6.Message) bool {
	if len(w.relay.config.Servers) == 1 {
		return true
	}
	_, named := m.Option(dhcp6.OptionServerID)
	return !named
}

// keyOf6 is the key of a message: that of the client or of the server for it, whether it is wrapped or not.
func (r *Relay) keyOf6(client dhcp6.Message, peer [16]byte) key {
	k := key{sender: peer, xid: client.XID()}
	if duid, found := client.Option(dhcp6.OptionClientID); found {
		k.id = maphash.Bytes(r.seed, duid)
	}
	return k
}

// origin6 is what an origin has of DHCPv6.
type origin6 struct {
	// port is where the sender wants the reply: a client's, or a relay agent's.
	port uint16
	// mac is the sender's, on a listener. Zero if that is not known.
	mac frame.MAC
	// fromMAC tells that the peer address is made from mac, as firmware's is. No other machine can show that without
	// sending with that MAC address.
	fromMAC bool
	// owner is the client's MAC address, which is another one where a relay agent sent its message. Zero if that is not
	// known.
	owner frame.MAC
	// link is the link address that the server was told, which it has to repeat.
	link [16]byte
}

// client6 identifies a client. The same name on another VLAN, or behind another relay agent, is another client.
type client6 struct {
	mac      frame.MAC
	duid     uint64
	listener int16
	sender   [16]byte
}

// tagsOf returns the tags of a client: that of its MAC address and that of its DUID, or that of the DUID alone where
// there is no MAC address. The tag of a client that shows neither is zero.
func (r *Relay) tagsOf(a *arrival, owner frame.MAC, duid uint64) (tag, also uint64) {
	c := client6{mac: owner, listener: a.listener}
	if a.relayed {
		c.sender = a.source.ip
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

func (*v6) spoken(b []byte, a *arrival) (s speech, ok bool) {
	m := dhcp6.Message(b)
	if m.Check(dhcp6.HopLimit) != dhcp6.OK {
		return s, false
	}
	inner, around := m.Innermost()
	s = speech{message: inner, fromServer: inner.Type().FromServer(), mac: a.mac, client: a.source.ip}
	if around != nil {
		s.mac, _ = around.ClientLinkAddr()
		s.client, s.relay = around.Peer(), a.source.ip
	}
	return s, true
}

func (*v6) replied(b []byte, o *origin) (s speech, ok bool) {
	m := dhcp6.Message(b)
	if m.Check(dhcp6.HopLimit+1) != dhcp6.OK {
		return s, false
	}
	inner, around := m.Innermost()
	if around == nil {
		return s, false
	}
	s = speech{message: inner, fromServer: inner.Type().FromServer(), mac: o.owner, client: around.Peer()}
	if m.Inner().IsRelay() {
		s.relay = m.Peer()
	}
	return s, true
}

// duidUUID is the type of a client identifier that is a UUID (RFC 6355).
const duidUUID = 4

func (*v6) describeEvent(e *boot.Event, b []byte) (t texts) {
	m := dhcp6.Message(b)
	e.DHCP, e.XID = uint8(m.Type()), m.XID()
	for code, value := range m.Options {
		switch code {
		case dhcp6.OptionClientID:
			if len(value) == 2+16 && binary.BigEndian.Uint16(value) == duidUUID {
				e.UUID = [16]byte(value[2:])
			}
		case dhcp6.OptionElapsedTime:
			if len(value) == 2 {
				e.Secs = binary.BigEndian.Uint16(value) / 100
			}
		case dhcp6.OptionClientArch:
			if len(value) >= 2 {
				e.HasArch, e.Arch = true, binary.BigEndian.Uint16(value)
			}
		case dhcp6.OptionVendorClass:
			if len(value) > 4 {
				t.vendor = firstClass(value[4:]) // behind the enterprise number
			}
		case dhcp6.OptionUserClass:
			t.user = firstClass(value)
		case dhcp6.OptionBootFileURL:
			t.file = value
		}
	}
	if address, lease, found := m.Granted(); found {
		e.Given, e.Lease = address, lease
	}
	return t
}

// firstClass is the first of a list of classes, each behind its length (RFC 9915 sections 21.15 and 21.16).
func firstClass(b []byte) []byte {
	if len(b) < 2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(b))
	return b[2:min(len(b), 2+n)]
}

func (v *v6) blank(b []byte) {
	m := dhcp6.Message(b)
	if !v.signs || m.Check(dhcp6.HopLimit+1) != dhcp6.OK || !m.IsRelay() {
		return
	}
	if id, found := m.Option(dhcp6.OptionInterfaceID); found && len(id) >= tokenLen6 {
		clear(id[len(id)-tokenCode:])
	}
}
