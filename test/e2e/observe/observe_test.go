package observe

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

var (
	machine = net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	node    = net.HardwareAddr{0x02, 0, 0, 0, 0, 2}
	client  = netip.MustParseAddr("192.0.2.101")
	service = netip.MustParseAddr("192.0.2.2")
)

// frame builds an Ethernet frame. A TCP payload begins with seq, ack and flags.
func frame(src, dst net.HardwareAddr, from, to netip.AddrPort, proto uint8, header, payload []byte) []byte {
	b := append(append(append([]byte{}, dst...), src...), 8, 0)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(header)+len(payload)))
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(header, from.Port())
	binary.BigEndian.PutUint16(header[2:], to.Port())
	return append(append(append(b, ip...), header...), payload...)
}

func udp(src, dst net.HardwareAddr, from, to netip.AddrPort, payload []byte) []byte {
	header := make([]byte, 8)
	binary.BigEndian.PutUint16(header[4:], uint16(8+len(payload)))
	return frame(src, dst, from, to, unix.IPPROTO_UDP, header, payload)
}

// lan is a conversation under a tracker.
type lan struct {
	t       *testing.T
	tracker *Tracker
	events  []Event
	now     time.Time
}

func newLAN(t *testing.T) *lan {
	l := &lan{t: t, now: time.Unix(1e9, 0)}
	l.tracker = NewTracker(func(e Event) { l.events = append(l.events, e) })
	return l
}

func (l *lan) put(frame []byte) {
	l.t.Helper()
	p, ok := ParsePacket(frame)
	if !ok {
		l.t.Fatalf("failed to parse % x", frame)
	}
	l.now = l.now.Add(time.Second)
	l.tracker.Packet(l.now, p)
}

func (l *lan) want(events ...Event) {
	l.t.Helper()
	ignore := cmpopts.IgnoreFields(Event{}, "At", "Took", "Server")
	if diff := cmp.Diff(events, l.events, ignore, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		l.t.Error(diff)
	}
	l.events = nil
}

func (l *lan) reached(want string) {
	l.t.Helper()
	if got := l.tracker.Reached(machine.String()); got != want {
		l.t.Errorf("it has come as far as %q, want %q", got, want)
	}
}

func (l *lan) up(port uint16, payload string) {
	l.put(udp(machine, node, netip.AddrPortFrom(client, port), netip.AddrPortFrom(service, 69), []byte(payload)))
}

func (l *lan) down(port uint16, payload string) {
	l.put(udp(node, machine, netip.AddrPortFrom(service, 69), netip.AddrPortFrom(client, port), []byte(payload)))
}

func TestTFTP(t *testing.T) {
	l := newLAN(t)
	l.up(2000, "\x00\x01snp.efi\x00octet\x00blksize\x0010\x00")
	l.up(2000, "\x00\x01snp.efi\x00octet\x00blksize\x0010\x00") // again
	l.down(2000, "\x00\x06blksize\x0010\x00tsize\x0014\x00")
	l.up(2000, "\x00\x04\x00\x00")
	l.reached("")
	l.down(2000, "\x00\x03\x00\x010123456789")
	l.reached("TFTP snp.efi: 10 of 14 bytes")
	l.down(2000, "\x00\x03\x00\x010123456789") // again
	l.reached("TFTP snp.efi: 10 of 14 bytes")
	l.up(2000, "\x00\x04\x00\x01")
	l.down(2000, "\x00\x03\x00\x02012")
	l.want()                                  // not yet acknowledged
	l.reached("TFTP snp.efi: 13 of 14 bytes") // a server may announce what it likes
	l.up(2000, "\x00\x04\x00\x02")
	l.want(Event{Machine: machine.String(), Kind: TFTP, Name: "snp.efi", Bytes: 13})
	l.up(2000, "\x00\x04\x00\x02")
	l.want()

	l.up(2001, "\x00\x01autoexec.ipxe\x00octet\x00")
	l.down(2001, "\x00\x05\x00\x01no such file\x00")
	l.down(2001, "\x00\x05\x00\x01no such file\x00")
	l.want(Event{Machine: machine.String(), Kind: Trouble, Name: "autoexec.ipxe", Detail: "TFTP error 1 for autoexec.ipxe: no such file"})

	l.down(2002, "\x00\x03\x00\x01x") // nobody asked
	l.want()
}

// conn is a TCP connection on a LAN.
type conn struct {
	*lan
	up, down uint32 // next sequence numbers
}

func segment(seq, ack uint32, flags uint8) []byte {
	header := make([]byte, 20)
	binary.BigEndian.PutUint32(header[4:], seq)
	binary.BigEndian.PutUint32(header[8:], ack)
	header[12], header[13] = 5<<4, flags|flagACK
	return header
}

func (c *conn) send(payload string) {
	c.put(frame(machine, node, netip.AddrPortFrom(client, 3000), netip.AddrPortFrom(service, 8080), unix.IPPROTO_TCP,
		segment(c.up, c.down, 0), []byte(payload)))
	c.up += uint32(len(payload))
}

func (c *conn) receive(flags uint8, payload string) {
	c.put(frame(node, machine, netip.AddrPortFrom(service, 8080), netip.AddrPortFrom(client, 3000), unix.IPPROTO_TCP,
		segment(c.down, c.up, flags), []byte(payload)))
	c.down += uint32(len(payload))
}

const ok = "HTTP/1.1 200 OK\r\n"

func TestHTTP(t *testing.T) {
	c := &conn{lan: newLAN(t), up: 1, down: 0xffffffe0} // wraps
	c.send("GET /kernel HTTP/1.1\r\nHost: x\r\n\r\n")
	c.receive(0, ok+"Content-Le") // the header comes in two parts
	c.receive(0, "ngth: 10\r\n\r\n01234")
	c.send("")
	c.reached("HTTP /kernel: 5 of 10 bytes")
	c.down -= 5
	c.receive(0, "01234") // again
	c.reached("HTTP /kernel: 5 of 10 bytes")
	c.receive(0, "56789")
	c.reached("HTTP /kernel: 10 of 10 bytes")
	c.want()
	c.send("")
	c.want(Event{Machine: machine.String(), Kind: HTTP, Name: "/kernel", Bytes: 10})
	c.send("")
	c.want()

	c.send("GET /next HTTP/1.1\r\n\r\n") // on the same connection
	c.receive(0, "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno")
	c.send("")
	c.want(Event{
		Machine: machine.String(), Kind: Trouble, Name: "/next", Bytes: 2, Detail: "HTTP status 404 for /next",
	})

	c.send("GET /chunked HTTP/1.1\r\n\r\n")
	c.receive(0, ok+"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
	c.send("")
	c.want()
	c.receive(0, "0\r\n\r\n")
	c.send("")
	c.want() // the end was cut off from its line: not seen

	c.send("GET /chunked HTTP/1.1\r\n\r\n")
	c.receive(0, ok+"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	c.send("")
	c.want(Event{Machine: machine.String(), Kind: HTTP, Name: "/chunked", Bytes: 13})

	c.send("GET /until-the-end HTTP/1.0\r\n\r\n")
	c.receive(0, "HTTP/1.0 200 OK\r\n\r\nabc")
	c.receive(flagFIN, "d")
	c.send("")
	c.want(Event{Machine: machine.String(), Kind: HTTP, Name: "/until-the-end", Bytes: 4})
}

func discover(t *testing.T, mods ...dhcpv4.Modifier) []byte {
	t.Helper()
	message, err := dhcpv4.NewDiscovery(machine, mods...)
	if err != nil {
		t.Fatal(err)
	}
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return udp(machine, everybody, netip.MustParseAddrPort("0.0.0.0:68"),
		netip.MustParseAddrPort("255.255.255.255:67"), message.ToBytes())
}

// TestLastBytes is about iPXE: it starts a kernel as soon as it has all of it, and does not acknowledge the end.
func TestLastBytes(t *testing.T) {
	c := &conn{lan: newLAN(t), up: 1, down: 1}
	c.send("GET /initramfs HTTP/1.1\r\n\r\n")
	c.receive(0, ok+"Content-Length: 10\r\n\r\n01234")
	c.send("")
	c.put(discover(t)) // half of it came
	c.want(Event{Machine: machine.String(), Kind: DHCP, Name: "DISCOVER", Detail: "no vendor class"})
	c.receive(0, "56789")
	last := c.now
	pxe := discover(t, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00000")))
	c.put(pxe) // firmware begins anew: that proves nothing
	c.want(Event{
		Machine: machine.String(), Kind: DHCP, Name: "DISCOVER", VendorClass: "PXEClient:Arch:00000",
		Detail: "PXEClient:Arch:00000",
	})
	c.put(discover(t))
	if len(c.events) != 2 || !c.events[0].At.Equal(last) {
		t.Fatalf("got %v", c.events)
	}
	c.want(
		Event{
			Machine: machine.String(), Kind: HTTP, Name: "/initramfs", Bytes: 10,
			Detail: "the system that it holds spoke 2.0 s later",
		},
		Event{Machine: machine.String(), Kind: DHCP, Name: "DISCOVER", Detail: "no vendor class"},
	)
}

func TestDHCP(t *testing.T) {
	l := newLAN(t)
	l.put(discover(t, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient")),
		dhcpv4.WithGeneric(dhcpv4.OptionUserClassInformation, []byte("iPXE"))))
	l.want(Event{
		Machine: machine.String(), Kind: DHCP, Name: "DISCOVER", Detail: `PXEClient, user class "iPXE"`,
		VendorClass: "PXEClient", UserClass: "iPXE",
	})
	message, err := dhcpv4.New(dhcpv4.WithHwAddr(machine), dhcpv4.WithYourIP(client.AsSlice()),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(service.AsSlice())))
	if err != nil {
		t.Fatal(err)
	}
	message.OpCode, message.BootFileName = dhcpv4.OpcodeBootReply, "snp.efi"
	from, to := netip.AddrPortFrom(service, 67), netip.AddrPortFrom(client, 68)
	l.put(udp(node, machine, from, to, message.ToBytes()))
	l.want(Event{
		Machine: machine.String(), Kind: DHCP, Name: "OFFER",
		Detail: "192.0.2.101 from 192.0.2.2, to chaddr, boot file snp.efi",
	})
	message.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
	message.UpdateOption(dhcpv4.OptMessage("wrong network"))
	l.put(udp(node, node, from, to, message.ToBytes()))
	l.want(
		Event{
			Machine: machine.String(), Kind: DHCP, Name: "NAK",
			Detail: "192.0.2.101 from 192.0.2.2, to 02:00:00:00:00:02, boot file snp.efi",
		},
		Event{Machine: machine.String(), Kind: Trouble, Detail: "DHCP NAK: wrong network"},
	)
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.pcapng")
	file, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.UnixMicro(1_700_000_000_123_456)
	a, b := file.Interface("lan", "the LAN"), file.Interface("pods", "")
	file.Packet(at, a, []byte("12345"), SnapLen)
	file.Packet(at, b, []byte("123456789"), 4)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := Read(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	want := []Captured{
		{At: at, Interface: "lan", Frame: []byte("12345"), Length: 5},
		{At: at, Interface: "pods", Frame: []byte("1234"), Length: 9},
	}
	if diff := cmp.Diff(want, frames); diff != "" {
		t.Error(diff)
	}
	if _, err := Read(bytes.NewReader(content[:len(content)-2])); err == nil {
		t.Error("a cut file reads well")
	}
}

func FuzzTracker(f *testing.F) {
	f.Add(udp(machine, node, netip.AddrPortFrom(client, 1), netip.AddrPortFrom(service, 69), []byte("\x00\x01f\x00")),
		udp(node, machine, netip.AddrPortFrom(service, 69), netip.AddrPortFrom(client, 1), []byte("\x00\x03\x00\x01x")))
	f.Add(frame(machine, node, netip.AddrPortFrom(client, 1), netip.AddrPortFrom(service, 80), unix.IPPROTO_TCP,
		segment(1, 1, 0), []byte("GET / HTTP/1.1\r\n")),
		frame(node, machine, netip.AddrPortFrom(service, 80), netip.AddrPortFrom(client, 1), unix.IPPROTO_TCP,
			segment(1, 1, 0), []byte(ok+"Content-Length: 1\r\n\r\nx")))
	f.Add([]byte{}, make([]byte, 60))
	f.Fuzz(func(_ *testing.T, one, two []byte) {
		tracker := NewTracker(func(Event) {})
		for _, b := range [][]byte{one, two, one} {
			if p, ok := ParsePacket(b); ok {
				tracker.Packet(time.Unix(1, 0), p)
			}
		}
	})
}
