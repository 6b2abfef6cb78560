// Package netboot is a network boot client: DHCP as firmware speaks it before it has an address, TFTP, and as much
// of an iPXE script as it takes to find the kernel. It is strict where firmware is: it takes no frame for another
// machine and no datagram with a wrong checksum.
package netboot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"golang.org/x/sys/unix"
)

// Stage is the stage of a boot in which a machine asks for an address.
type Stage uint8

// The stages of a boot.
const (
	// PXE is the firmware in ROM: options 60, 93, 94 and 97, and nothing that tells of iPXE.
	PXE Stage = iota
	// IPXE is the iPXE that was sent by TFTP. Smee's says "Tinkerbell" as its user class.
	IPXE
	// System is an operating system: no PXE options.
	System
)

// Ask is the description that a client gives of itself.
type Ask struct {
	Stage     Stage
	Arch      iana.Arch
	UUID      [16]byte
	Broadcast bool   // the flag of RFC 2131 section 4.1: answer by broadcast
	UserClass string // of iPXE; default "Tinkerbell"
	// Server is the only one whose offers are taken, where it is valid.
	Server netip.Addr
	// Moved is called with each answer that is taken. It may be nil.
	Moved func(far string)
}

// Lease is what a client was given.
type Lease struct {
	Addr     netip.Prefix
	Gateway  netip.Addr
	Server   netip.Addr // option 54
	Hostname string     // option 12
	Next     netip.Addr // siaddr: where BootFile is
	BootFile string     // a name for TFTP or a URL
	Duration time.Duration
}

// DHCP is a DHCP client on one interface. It works by raw frames, since it has no address.
type DHCP struct {
	// Again is called before a message is sent again. It may be nil.
	Again func()

	port port
	mac  net.HardwareAddr
}

// port is how a client sends and receives frames.
type port interface {
	send(frame []byte) error
	// receive waits for a frame until a time, or until ctx is done: the error is then os.ErrDeadlineExceeded.
	receive(ctx context.Context, buffer []byte, until time.Time) (int, error)
	Close() error
}

// longestWait is the longest that a client waits for an answer before it asks again.
const longestWait = 8 * time.Second

// socket is a packet socket of one client's own.
type socket struct {
	*os.File
	ifindex int
}

// OpenDHCP opens a client on an interface of the calling thread's network namespace.
func OpenDHCP(ifname string) (*DHCP, error) {
	link, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("failed to find interface %s: %w", ifname, err)
	}
	ipv4 := int(htons(unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, ipv4)
	if err != nil {
		return nil, fmt.Errorf("failed to open packet socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "dhcp on "+ifname)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: link.Index}); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("failed to bind packet socket to %s: %w", ifname, err)
	}
	return &DHCP{port: &socket{file, link.Index}, mac: link.HardwareAddr}, nil
}

// Close closes the client's socket, where it has one of its own.
func (d *DHCP) Close() error { return d.port.Close() }

func (s *socket) send(frame []byte) error {
	to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: s.ifindex, Halen: 6}
	copy(to.Addr[:], frame[:6])
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), frame, 0, to)
		return !errors.Is(sent, unix.EAGAIN)
	})
	return errors.Join(err, sent)
}

func (s *socket) receive(ctx context.Context, buffer []byte, until time.Time) (int, error) {
	defer interrupt(ctx, s.File)()
	if err := s.SetReadDeadline(until); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, os.ErrDeadlineExceeded
	}
	return s.Read(buffer)
}

// Lease runs DISCOVER, OFFER, REQUEST, ACK. It sends again after 1, 2, 4 and every 8 seconds until ctx is done; the
// error then says which answer did not come, and what was wrong with those that did.
func (d *DHCP) Lease(ctx context.Context, ask Ask) (Lease, error) {
	discover, err := dhcpv4.NewDiscovery(d.mac, ask.modifiers()...)
	if err != nil {
		return Lease{}, fmt.Errorf("failed to build DISCOVER: %w", err)
	}
	offer, err := d.exchange(ctx, discover, dhcpv4.MessageTypeOffer, ask.Server)
	if err != nil {
		return Lease{}, err
	}
	if ask.Moved != nil {
		ask.Moved("an OFFER came")
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, ask.modifiers()...)
	if err != nil {
		return Lease{}, fmt.Errorf("failed to build REQUEST: %w", err)
	}
	ack, err := d.exchange(ctx, request, dhcpv4.MessageTypeAck, ask.Server)
	if err != nil {
		return Lease{}, err
	}
	return leaseOf(ack)
}

func (a Ask) modifiers() []dhcpv4.Modifier {
	mods := []dhcpv4.Modifier{
		dhcpv4.WithBroadcast(a.Broadcast),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1472)),
		dhcpv4.WithRequestedOptions(
			dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionHostName,
			dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName,
		),
	}
	if a.Stage == System {
		return mods
	}
	class := fmt.Sprintf("PXEClient:Arch:%05d:UNDI:002001", a.Arch)
	mods = append(mods,
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(class)),
		dhcpv4.WithOption(dhcpv4.OptClientArch(a.Arch)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 2, 1}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, append([]byte{0}, a.UUID[:]...)),
	)
	if a.Stage == IPXE {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptUserClass(cmp.Or(a.UserClass, "Tinkerbell"))))
	}
	return mods
}

func (d *DHCP) exchange(
	ctx context.Context, message *dhcpv4.DHCPv4, want dhcpv4.MessageType, server netip.Addr,
) (*dhcpv4.DHCPv4, error) {
	var trouble error
	frame := discoverFrame(d.mac, message.ToBytes())
	buffer := make([]byte, maxFrame)
	for wait := time.Second; ctx.Err() == nil; wait = min(2*wait, longestWait) {
		if wait > time.Second && d.Again != nil {
			d.Again()
		}
		if err := d.port.send(frame); err != nil {
			return nil, fmt.Errorf("failed to send %s: %w", message.MessageType(), err)
		}
		for until := time.Now().Add(wait); ctx.Err() == nil; {
			n, err := d.port.receive(ctx, buffer, until)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("failed to receive: %w", err)
			}
			answer, err := parseReply(buffer[:n], d.mac, message.TransactionID)
			if err != nil {
				trouble = err
				continue
			}
			if answer == nil || server.IsValid() && answer.ServerIdentifier().String() != server.String() {
				continue
			}
			switch answer.MessageType() {
			case want:
				return answer, nil
			case dhcpv4.MessageTypeNak:
				return nil, fmt.Errorf("got NAK instead of %s: %s", want, answer.Message())
			}
		}
	}
	if trouble != nil {
		return nil, fmt.Errorf("no %s: %w (last answer: %w)", want, context.Cause(ctx), trouble)
	}
	return nil, fmt.Errorf("no %s: %w", want, context.Cause(ctx))
}

func leaseOf(ack *dhcpv4.DHCPv4) (Lease, error) {
	addr, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	bits, _ := ack.SubnetMask().Size()
	if !ok || addr.IsUnspecified() || bits == 0 {
		return Lease{}, fmt.Errorf("failed to use ACK: address %s, mask %s", ack.YourIPAddr, ack.SubnetMask())
	}
	lease := Lease{
		Addr:     netip.PrefixFrom(addr, bits),
		Hostname: ack.HostName(),
		BootFile: ack.BootFileName,
		Duration: ack.IPAddressLeaseTime(0),
	}
	if name := ack.BootFileNameOption(); name != "" {
		lease.BootFile = name
	}
	lease.Next, _ = netip.AddrFromSlice(ack.ServerIPAddr.To4())
	lease.Server, _ = netip.AddrFromSlice(ack.ServerIdentifier().To4())
	if routers := ack.Router(); len(routers) > 0 {
		lease.Gateway, _ = netip.AddrFromSlice(routers[0].To4())
	}
	return lease, nil
}

// interrupt ends reads of a socket when ctx is done. The reader looks at ctx after it has set a deadline of its own.
func interrupt(ctx context.Context, socket interface{ SetReadDeadline(time.Time) error }) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Send sends a message as a machine does that asks for no answer, such as a DECLINE. A vlan other than 0 is the tag of
// its frame (IEEE 802.1Q).
func (d *DHCP) Send(message *dhcpv4.DHCPv4, vlan uint16) error {
	frame := discoverFrame(d.mac, message.ToBytes())
	if vlan != 0 {
		frame = slices.Insert(frame, etherTypeAt, 0x81, 0x00, byte(vlan>>8), byte(vlan))
	}
	return d.port.send(frame)
}

// Discover is the first message of a machine that describes itself so.
func (d *DHCP) Discover(ask Ask) (*dhcpv4.DHCPv4, error) {
	return dhcpv4.NewDiscovery(d.mac, ask.modifiers()...)
}
