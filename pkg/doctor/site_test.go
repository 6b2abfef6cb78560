package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/frame"
)

// site is a network with one server, a switch and a place for the doctor, which has no address:
//
//	doctor eth1 ── br0 ── eth1 server 10.30.0.2 (and router 10.30.0.1)
type site struct {
	sw, server, doctor *nstest.NS
	other              *nstest.NS // behind the server; nil: none is
	addr               string     // of the server
	port               uint16     // that its OFFERs come from
	plain              bool       // its TFTP knows no options

	mu    sync.Mutex
	types []dhcpv4.MessageType // that were heard
	// What the servers say. They are set before the run.
	dhcp  func(*dhcpv4.DHCPv4) []*dhcpv4.DHCPv4
	files map[string][]byte           // TFTP; nil: nobody answers
	tftp  func(words []string) []byte // what it answers in place of the file; nil: the file
	web   http.Handler

	report Report
	err    error
}

// started is when the documents changed.
var started = time.Now()

// ipv4 is the EtherType in network byte order.
const ipv4 uint16 = 0x0008

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{sw: nstest.New(t), server: nstest.New(t), doctor: nstest.New(t), addr: "10.30.0.2", port: 67}
	if err := s.sw.Links().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.sw.Links().LinkSetUp(s.sw.Link(t, "br0")); err != nil {
		t.Fatal(err)
	}
	s.join(t, s.server, "p-server")
	s.join(t, s.doctor, "p-doctor")
	s.server.Addr(t, "eth1", "10.30.0.2/24")
	s.server.Addr(t, "eth1", "10.30.0.1/24")
	loader := efi(0x8664)
	s.files = map[string][]byte{"ipxe.efi": loader}
	mux := http.NewServeMux()
	serve := func(path string, content []byte) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, path, time.Now(), bytes.NewReader(content))
		})
	}
	serve("/ipxe.efi", loader)
	serve("/vmlinuz", efi(0x8664))
	serve("/initrd", make([]byte, 1<<20))
	serve("/auto.ipxe", []byte("#!ipxe\nkernel http://10.30.0.2/vmlinuz ip=dhcp\ninitrd http://10.30.0.2/initrd\nboot\n"))
	s.web = mux
	s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return []*dhcpv4.DHCPv4{good(m)} }
	return s
}

// join plugs a namespace into the switch.
func (s *site) join(t *testing.T, ns *nstest.NS, port string) {
	t.Helper()
	nstest.Veth(t, s.sw, port, ns, "eth1")
	if err := s.sw.Links().LinkSetMaster(s.sw.Link(t, port), s.sw.Link(t, "br0")); err != nil {
		t.Fatal(err)
	}
}

// efi is an EFI program of 200 KiB for a machine.
func efi(machine uint16) []byte {
	b := bytes.Repeat([]byte("0123456789abcdef"), 200<<6)
	copy(b, "MZ")
	binary.LittleEndian.PutUint32(b[0x3c:], 0x80)
	copy(b[0x80:], "PE\x00\x00")
	binary.LittleEndian.PutUint16(b[0x84:], machine)
	return b
}

// good is a whole OFFER.
func good(m *dhcpv4.DHCPv4, mods ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	file := "ipxe.efi"
	if classes := m.UserClass(); len(classes) > 0 {
		file = "http://10.30.0.2/auto.ipxe"
	} else if strings.HasPrefix(m.ClassIdentifier(), "HTTPClient") {
		file = "http://10.30.0.2/ipxe.efi"
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("HTTPClient")))
	}
	reply, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithYourIP(net.IPv4(10, 30, 0, 100)),
		dhcpv4.WithServerIP(net.IPv4(10, 30, 0, 2)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 30, 0, 2))),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 30, 0, 1))),
		func(d *dhcpv4.DHCPv4) { d.BootFileName = file },
	}, mods...)...)
	if err != nil {
		panic(err)
	}
	return reply
}

// start starts the servers in the server's namespace.
func (s *site) start(t *testing.T) {
	t.Helper()
	s.server.Do(t, func() error {
		s.serveDHCP(t)
		if s.web != nil {
			listener, err := net.Listen("tcp", net.JoinHostPort(s.addr, "80"))
			if err != nil {
				return err
			}
			server := &http.Server{Handler: s.web, ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
		}
		if s.files == nil {
			return nil
		}
		conn, err := net.ListenPacket("udp", net.JoinHostPort(s.addr, "69"))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		go s.serveTFTP(conn)
		return nil
	})
}

// serveDHCP answers by a packet socket, as a server must that answers who has no address.
func (s *site) serveDHCP(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(ipv4))
	if err != nil {
		t.Fatal(err)
	}
	eth1, err := net.InterfaceByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: eth1.Index}); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "dhcp")
	t.Cleanup(func() { _ = file.Close() })
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := file.Read(buffer)
			if err != nil {
				return
			}
			d, fault := frame.Parse(buffer[:n], frame.Trust)
			if fault != frame.OK || d.Dst.Port() != 67 {
				continue
			}
			m, err := dhcpv4.FromBytes(d.Payload)
			if err != nil {
				continue
			}
			s.mu.Lock()
			s.types = append(s.types, m.MessageType())
			s.mu.Unlock()
			if s.dhcp == nil {
				continue
			}
			for _, reply := range s.dhcp(m) {
				b := append(make([]byte, frame.HeaderLen), reply.ToBytes()...)
				h := frame.Header{
					SrcMAC: frame.MAC(eth1.HardwareAddr), DstMAC: frame.Broadcast, Src: [4]byte{10, 30, 0, 2},
					Dst: [4]byte{255, 255, 255, 255}, SrcPort: s.port, DstPort: 68,
				}
				h.Put(b)
				_, _ = file.Write(b)
			}
		}
	}()
}

// serveTFTP is a server of one transfer at a time and port, without windows, that answers from another port.
func (s *site) serveTFTP(conn net.PacketConn) {
	buffer := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		words := strings.Split(string(buffer[2:n]), "\x00")
		if buffer[1] != 1 || len(words) < 2 {
			continue
		}
		session := make(chan net.PacketConn)
		go func() {
			_ = s.server.Try(func() error { // a socket of the server's namespace
				c, err := net.ListenPacket("udp", net.JoinHostPort(s.addr, "0"))
				if err != nil {
					return err
				}
				session <- c
				return nil
			})
		}()
		go s.send(<-session, from, words)
	}
}

func (s *site) send(conn net.PacketConn, to net.Addr, words []string) {
	defer conn.Close()
	if s.tftp != nil {
		if answer := s.tftp(words); answer != nil {
			_, _ = conn.WriteTo(answer, to)
			return
		}
	}
	content, ok := s.files[words[0]]
	if !ok {
		_, _ = conn.WriteTo([]byte("\x00\x05\x00\x01File not found\x00"), to)
		return
	}
	block, oack := 512, []byte{0, 6}
	for i := 2; i+1 < len(words) && !s.plain; i += 2 {
		switch words[i] {
		case "blksize":
			size := 0
			for _, r := range words[i+1] {
				size = size*10 + int(r-'0')
			}
			block = size
			oack = append(oack, "blksize\x00"+words[i+1]+"\x00"...)
		case "tsize":
			oack = append(oack, "tsize\x00"+itoa(len(content))+"\x00"...)
		}
	}
	answer := make([]byte, 1024)
	exchange := func(b []byte, want uint16) bool {
		for range 5 {
			_, _ = conn.WriteTo(b, to)
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			for {
				n, _, err := conn.ReadFrom(answer)
				if err != nil {
					break
				}
				if n >= 4 && (answer[1] != 4 || binary.BigEndian.Uint16(answer[2:]) == want) {
					return answer[1] == 4 // an older one may come twice
				}
			}
		}
		return false
	}
	if len(oack) > 2 && !exchange(oack, 0) {
		return
	}
	for number := uint16(1); ; number++ {
		part := content[:min(block, len(content))]
		content = content[len(part):]
		if !exchange(append([]byte{0, 3, byte(number >> 8), byte(number)}, part...), number) || len(part) < block {
			return
		}
	}
}

func itoa(n int) string {
	var b []byte
	for ; n > 0 || len(b) == 0; n /= 10 {
		b = append(b, byte('0'+n%10))
	}
	slices.Reverse(b)
	return string(b)
}

// run runs the doctor where it is plugged in.
func (s *site) run(ctx context.Context, change func(*Options)) (r Report, err error) {
	arch, err := offer.ArchNamed("uefi")
	if err != nil {
		return r, err
	}
	o := Options{Interface: "eth1", Arch: arch, Window: time.Second}
	if change != nil {
		change(&o)
	}
	err = s.doctor.Try(func() error { // its packet socket is opened here, and a station needs no other
		r = Run(ctx, o)
		return nil
	})
	return r, err
}
