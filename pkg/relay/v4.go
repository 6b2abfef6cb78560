package relay

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/admit"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// Ports of DHCP (RFC 2131 section 4.1).
const (
	serverPort = 67
	clientPort = 68
)

// ipAndUDP is the length of the headers around a message.
const ipAndUDP = 20 + 8

// v4 is the family of DHCPv4.
type v4 struct {
	// trustsSwitches tells that every listener is trusted to bring option 82, and so are the unicasts of the machines
	// there.
	trustsSwitches bool
}

func newV4(c *Config) *v4 {
	return &v4{trustsSwitches: len(c.Listeners) > 0 && len(c.TrustedListeners) == len(c.Listeners)}
}

var traits4 = traits{
	task: "relay", title: "DHCPv4", prefix: "dhcp_relay",
	serverPort: serverPort, domain: unix.AF_INET, etherType: unix.ETH_P_IP,
	filter: frame.Filter, unicastFilter: frame.UnicastFilter,
	headroom: frame.HeaderLen, headers: frame.HeaderLen, ipAndUDP: ipAndUDP,
	replyByte: byte(dhcp.OpReply), noSource: NoGiaddr, kinds: typeNames(dhcp.Type(dhcp.NumTypes)),
}

// typeNames are those of message types below a number.
func typeNames[T interface {
	~uint8
	String() string
}](n T) (all []string) {
	for t := range n {
		all = append(all, t.String())
	}
	return all
}

func (*v4) traits() *traits { return &traits4 }

func (*v4) control(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
		return os.NewSyscallError("setsockopt IP_PKTINFO", err)
	}
	// A large request may be fragmented on its way; nothing here could answer "too big".
	return os.NewSyscallError("setsockopt IP_MTU_DISCOVER",
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT))
}

func (*v4) describe(config *Config, l *Listener, at *net.Interface) (known link) {
	var own [4]byte
	if address := server.FirstAddress(at, false); address.IsValid() {
		known.address, own = address.As16(), address.As4()
	}
	known.options = config.agentOf(*l, frame.MAC(at.HardwareAddr), own)
	return known
}

func (*v4) view(v *vlan, _ int, b []byte, sum frame.Checksum, a *arrival, now int64) Drop {
	v.relay.trace.Frame(now, b)
	datagram, fault := frame.Parse(b, sum)
	if fault != frame.OK {
		return ofFrame4[fault]
	}
	a.source, a.mac = peerOf(datagram.Src), datagram.SrcMAC
	a.b, a.at = datagram.Payload, 0
	return None
}

func (*v4) request(w *worker, a *arrival, targets *server.Targets, now int64) ([]byte, Drop) {
	return w.request4(a.b[a.at:], a, targets, now)
}

func (*v4) answerExpected(_ *worker, b []byte, targets *server.Targets) bool {
	m := dhcp.Message(b)
	return m.Giaddr() == ownGiaddr(targets) && answerable(m.Type())
}

func (*v4) reply(w *worker, m []byte, from netip.Addr, targets *server.Targets, now int64, out *back) Drop {
	forClient, drop := w.reply4(m, from, targets, now, out)
	out.message, out.kind, out.to = forClient, int(forClient.Type()), out.origin.from.addrPort()
	out.start, out.end = traits4.headroom, traits4.headroom+len(forClient)
	return drop
}

func (*v4) put(r *Relay, whole []byte, open *listener.Opened[link], out *back, targets *server.Targets) {
	at := putReply(whole, open.MAC, r.source(open, targets), r.config.AlwaysBroadcast)
	out.to = netip.AddrPortFrom(netip.AddrFrom4(at.ip), clientPort)
}

// putReply writes the headers in front of a reply that is in place behind them, and returns where it goes.
func putReply(whole []byte, from frame.MAC, source [4]byte, alwaysBroadcast bool) destination {
	at := address(dhcp.Message(whole[frame.HeaderLen:]), alwaysBroadcast)
	header := frame.Header{
		SrcMAC: from, DstMAC: at.mac, Src: source, Dst: at.ip, SrcPort: serverPort, DstPort: clientPort,
	}
	header.Put(whole)
	return at
}

// source is the address that a reply on a listener comes from: the one that clients are to know, else the
// interface's own, else the relay's.
func (r *Relay) source(open *listener.Opened[link], targets *server.Targets) [4]byte {
	switch {
	case r.config.SourceAddress.IsValid():
		return r.config.SourceAddress.As4()
	case open.Info.address != ([16]byte{}):
		return [4]byte(open.Info.address[12:])
	}
	return ownGiaddr(targets)
}

// ownGiaddr is this relay's giaddr, to which servers answer; zero where there is none.
func ownGiaddr(targets *server.Targets) [4]byte {
	if !targets.Source.IsValid() {
		return [4]byte{}
	}
	return targets.Source.As4()
}

// answerable tells whether servers answer a request of this type: none does a RELEASE or a DECLINE (RFC 2131 section
// 4.3, 4.4.4).
func answerable(t dhcp.Type) bool { return t != dhcp.Release && t != dhcp.Decline }

// gives tells what kind of reply one is.
func gives(m dhcp.Message) admit.Answer {
	switch t := m.Type(); {
	case t == dhcp.Offer:
		return admit.Offered
	case m.Yiaddr() != [4]byte{} && (t == dhcp.Ack || t == dhcp.BOOTP): // an INFORM's ACK gives nothing
		return admit.Granted
	}
	return admit.Other
}

// macOf is the hardware address in a message, zero where it is none of Ethernet's length.
func macOf(m dhcp.Message) (mac [6]byte) {
	if chaddr := m.Chaddr(); m.HLen() == 6 {
		mac = [6]byte(chaddr[:])
	}
	return mac
}

func keyOf(m dhcp.Message) key {
	k := key{xid: m.XID(), sender: m.Chaddr(), id: uint64(m.HLen())}
	// A server that parses and rebuilds a message, as Smee does, zeroes the bytes behind the address.
	clear(k.sender[min(k.id, 16):])
	return k
}

// origin4 is what an origin has of DHCPv4.
type origin4 struct {
	// added are our sub-options, which must not reach the client; sole tells that there was no option 82 before. Zero and
	// false: none was added.
	added dhcp.Subs
	sole  bool
	// sum is the checksum of our sub-options ([dhcp.SumSubs]), by which reply4 finds ours among several: a server may
	// have echoed the others only. 0 where they are the sole ones, or a token alone says which were added.
	sum uint32
	// giaddr is the relay agent that the request named, which this relay has replaced by itself; zero if none.
	giaddr [4]byte
	// from is the sender of a unicast request: the reply takes the same path.
	from peer
}

// client4 identifies a client.
type client4 struct {
	chaddr   [16]byte
	listener int16
	sender   [16]byte
	byID     bool
}

// clientOf is a client's tag: that of its hardware address on a listener, or in the unicasts of one sender. Where a
// client shows no hardware address (InfiniBand, RFC 4390) it is that of the client identifier; where it shows neither
// it is zero.
func (r *Relay) clientOf(k *key, m dhcp.Message, listener int16, sender [16]byte) uint64 {
	c := client4{chaddr: k.sender, listener: listener}
	if listener == unicast {
		c.sender = sender
	}
	if k.id == 0 {
		id, found := m.Option(dhcp.OptionClientID)
		if !found {
			return 0
		}
		binary.NativeEndian.PutUint64(c.chaddr[:], maphash.Bytes(r.seed, id))
		c.byID = true
	}
	return max(maphash.Comparable(r.seed, c), 1)
}

func (*v4) spoken(m []byte, a *arrival) (s speech, ok bool) {
	if dhcp.Message(m).Check() != dhcp.OK {
		return s, false
	}
	return speech{message: m, fromServer: dhcp.Message(m).Op() == dhcp.OpReply, relay: boot.Bytes4(a.giaddr)}, true
}

func (*v4) replied(m []byte, o *origin) (s speech, ok bool) {
	if dhcp.Message(m).Check() != dhcp.OK {
		return s, false
	}
	return speech{message: m, fromServer: true, relay: boot.Bytes4(o.giaddr)}, true
}

func (*v4) describeEvent(e *boot.Event, b []byte) (t texts) {
	m := dhcp.Message(b)
	e.MAC, e.XID, e.Secs = macOf(m), m.XID(), m.Secs()
	e.Client, e.Given, e.Next = boot.Bytes4(m.Ciaddr()), boot.Bytes4(m.Yiaddr()), boot.Bytes4(m.Siaddr())
	overloaded := false
	for code, value := range m.Options {
		switch code {
		case dhcp.OptionType:
			e.DHCP = first(value)
		case dhcp.OptionRequestedIP:
			e.Requested = address4(value)
		case dhcp.OptionServerID:
			e.Server = address4(value)
		case dhcp.OptionLease:
			if len(value) == 4 {
				e.Lease = binary.BigEndian.Uint32(value)
			}
		case dhcp.OptionClientArch:
			if len(value) >= 2 {
				e.HasArch, e.Arch = true, binary.BigEndian.Uint16(value)
			}
		case dhcp.OptionUUID:
			if len(value) == 17 && value[0] == 0 {
				e.UUID = [16]byte(value[1:])
			}
		case dhcp.OptionVendorClass:
			t.vendor = value
		case dhcp.OptionUserClass:
			t.user = userClass(value)
		case dhcp.OptionHostName:
			t.host = value
		case dhcp.OptionBootFile:
			t.file, _, _ = bytes.Cut(value, []byte{0}) // some senders count its end
		case dhcp.OptionOverload:
			overloaded = first(value)&1 != 0
		}
	}
	if t.file == nil && !overloaded && m.Op() == dhcp.OpReply {
		t.file = m.File()
	}
	return t
}

func first(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

func address4(value []byte) [16]byte {
	if len(value) != 4 {
		return [16]byte{}
	}
	return boot.Bytes4([4]byte(value))
}

// userClass is the first class of option 77, of which each stands behind its length (RFC 3004); or all of it where
// firmware, as iPXE, has left the length out.
func userClass(value []byte) []byte {
	rest := value
	for len(rest) > 0 && int(rest[0]) < len(rest) {
		rest = rest[1+int(rest[0]):]
	}
	if len(rest) > 0 || len(value) == 0 {
		return value
	}
	return value[1 : 1+int(value[0])]
}

func (*v4) blank(b []byte) {
	if token, found := findToken(b); found {
		clear(token[tokenLen4-tokenCode:])
	}
}
