package inside

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// tag is a VLAN's tag: its EtherType and its TCI (IEEE 802.1Q section 9.6).
type tag struct {
	protocol layers.EthernetType
	tci      uint16
}

// q is a tag of 802.1Q.
func q(tci uint16) tag { return tag{layers.EthernetTypeDot1Q, tci} }

// ask is a DISCOVER of a machine that nobody has seen before, in a frame with tags, the outermost first.
func ask(t *testing.T, tags []tag, change ...dhcpv4.Modifier) (frame []byte, xid dhcpv4.TransactionID) {
	t.Helper()
	mac := net.HardwareAddr{2, 0, 0x5e, 0, 0, 0}
	if _, err := rand.Read(mac[3:]); err != nil {
		t.Fatal(err)
	}
	message, err := dhcpv4.NewDiscovery(mac, change...)
	if err != nil {
		t.Fatal(err)
	}
	ethernet := &layers.Ethernet{SrcMAC: mac, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4zero.To4(), DstIP: net.IPv4bcast.To4(),
	}
	if message.ClientIPAddr != nil {
		ip.SrcIP = message.ClientIPAddr.To4()
	}
	udp := &layers.UDP{SrcPort: dhcpv4.ClientPort, DstPort: dhcpv4.ServerPort}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	stack := []gopacket.SerializableLayer{ethernet}
	next := &ethernet.EthernetType
	for _, tag := range tags {
		layer := &layers.Dot1Q{
			Priority: uint8(tag.tci >> 13), DropEligible: tag.tci&0x1000 != 0, VLANIdentifier: tag.tci & 0xfff, Type: *next,
		}
		*next, next = tag.protocol, &layer.Type
		stack = append(stack, layer)
	}
	buffer := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		append(stack, ip, udp, gopacket.Payload(message.ToBytes()))...); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes(), message.TransactionID
}

// wire is an interface as packet sockets see it.
type wire struct {
	file *os.File
}

func openWire(t *testing.T, ns *ns, on string) *wire {
	t.Helper()
	w := &wire{}
	ns.do(t, func() error {
		link, err := net.InterfaceByName(on)
		if err != nil {
			return err
		}
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return err
		}
		w.file = os.NewFile(uintptr(fd), on)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
	})
	t.Cleanup(func() { _ = w.file.Close() })
	return w
}

// reply waits for the DHCP message of a server in a transaction.
func (w *wire) reply(t *testing.T, xid dhcpv4.TransactionID) (*layers.Ethernet, *layers.IPv4) {
	t.Helper()
	if err := w.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for buffer := make([]byte, 9000); ; {
		n, err := w.file.Read(buffer)
		if err != nil {
			t.Fatalf("no answer came: %v", err)
		}
		packet := gopacket.NewPacket(buffer[:n], layers.LayerTypeEthernet, gopacket.Default)
		reply, ok := packet.Layer(layers.LayerTypeDHCPv4).(*layers.DHCPv4)
		if ok && reply.Operation == layers.DHCPOpReply && reply.Xid == binary.BigEndian.Uint32(xid[:]) {
			return packet.LinkLayer().(*layers.Ethernet), packet.NetworkLayer().(*layers.IPv4)
		}
	}
}

// send sends a frame from an interface of the machines' network.
func (s *site) send(t *testing.T, on string, frame []byte) {
	t.Helper()
	w := openWire(t, s.lan, on)
	defer func() { _ = w.file.Close() }()
	if _, err := w.file.Write(frame); err != nil {
		t.Fatal(err)
	}
}

// relays reports whether a DISCOVER with tags, sent from an interface, is relayed. Later ones from a second interface,
// as machines send them that are relayed, tell when it would have been. A request that is relayed twice is an error.
func (s *site) relays(t *testing.T, on string, tags []tag, sure string) bool {
	t.Helper()
	frame, xid := ask(t, tags)
	s.send(t, on, frame)
	s.asks(t, sure)
	got := s.server.requests(xid)
	if len(got) > 1 {
		t.Errorf("the server was asked %d times for one DISCOVER", len(got))
	}
	return len(got) > 0
}

// asks sends a DISCOVER that has to be relayed, once, and waits until the server has it. It is not sent again.
func (s *site) asks(t *testing.T, on string, change ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	t.Helper()
	frame, xid := ask(t, nil, change...)
	s.send(t, on, frame)
	until(t, "the server is asked what was sent from "+on, func() bool { return len(s.server.requests(xid)) > 0 })
	return s.server.requests(xid)[0]
}
