package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// listener is an interface on a provisioning VLAN: it hears requests and sends replies as raw frames. It outlives
// the interface: while that is missing or down, the listener waits for it.
type listener struct {
	relay   *Relay
	index   int
	name    string
	metrics *portMetrics
	port    atomic.Pointer[port]
	why     atomic.Pointer[string] // why there is no port
	inbox   *inbox
	outbox  *outbox
}

// port is an open listener.
type port struct {
	*socket
	ifindex int
	mac     frame.MAC
	mtu     int
	// address is the interface's own, zero if it has none that others could know.
	address [4]byte
}

// Times between two attempts to open a listener. Link events shorten them.
const (
	reopenFirst = 250 * time.Millisecond
	reopenMost  = 5 * time.Second
)

// receiveBuffer holds what arrives while the relay does not run, in bytes as the kernel counts (some 1,300 packets
// per MiB).
const receiveBuffer = 4 << 20

func newListener(r *Relay, index int, name string) *listener {
	l := &listener{relay: r, index: index, name: name, metrics: r.metrics.port(index), inbox: newInbox(0)}
	l.outbox = newOutbox(func(_ int, errno unix.Errno) {
		l.metrics.dropped(toServer, SendFailed)
		r.notices.warn(r.now(), "failed to send request", func() []any { return []any{"listener", name, "error", errno} })
	})
	l.down("starting")
	return l
}

// run opens the listener whenever its interface allows it, and reads it until ctx is done.
func (l *listener) run(ctx context.Context) error {
	wait := reopenFirst
	logged := ""
	for ctx.Err() == nil {
		opened, err := l.open()
		if errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("failed to open listener %s: %w (the container needs the capability NET_RAW)", l.name, err)
		}
		if err != nil {
			l.down(err.Error())
			if logged != err.Error() {
				logged = err.Error()
				l.relay.logger.Warn("waiting for listener", "listener", l.name, "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, reopenMost)
			continue
		}
		wait, logged = reopenFirst, ""
		l.up(opened)
		l.relay.logger.Info("listening", "listener", l.name, "mac", net.HardwareAddr(opened.mac[:]).String(),
			"mtu", opened.mtu)
		err = l.serve(ctx, opened)
		l.down("closed")
		if closeErr := opened.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if ctx.Err() == nil {
			l.relay.logger.Warn("lost listener", "listener", l.name, "error", err)
		}
	}
	return nil
}

func (l *listener) up(p *port) {
	l.port.Store(p)
	l.relay.metrics.ready.WithLabelValues(l.name).Set(1)
}

func (l *listener) down(why string) {
	l.why.Store(&why)
	l.port.Store(nil)
	l.relay.metrics.ready.WithLabelValues(l.name).Set(0)
}

func (l *listener) ready() error {
	if l.port.Load() != nil {
		return nil
	}
	return fmt.Errorf("listener %s: %s", l.name, *l.why.Load())
}

// open makes the packet socket. It is bound only after its filter is attached, so that it never holds a frame that
// the filter would have refused.
func (l *listener) open() (*port, error) {
	link, err := net.InterfaceByName(l.name)
	if err != nil {
		return nil, fmt.Errorf("no interface %s here: broadcast-init makes it, or the listener is misnamed", l.name)
	}
	if link.Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("interface %s is down", l.name)
	}
	if len(link.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s is no Ethernet: its address is %q", l.name, link.HardwareAddr)
	}
	filter, err := frame.Filter(serverPort)
	if err != nil {
		return nil, err
	}
	s, err := newSocket(unix.AF_PACKET, unix.SOCK_RAW, 0, "listener "+l.name)
	if err != nil {
		return nil, err
	}
	err = s.control(func(fd int) error {
		if err := attach(fd, filter); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return os.NewSyscallError("setsockopt PACKET_AUXDATA", err)
		}
		// Not known before Linux 4.20; the filter refuses own transmissions too.
		_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // as far as rmem_max allows
		return os.NewSyscallError("bind",
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: link.Index}))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	p := &port{socket: s, ifindex: link.Index, mac: frame.MAC(link.HardwareAddr), mtu: link.MTU}
	if address := firstAddress(link); address.IsValid() {
		p.address = address.As4()
	}
	return p, nil
}

// firstAddress is an interface's first IPv4 address that others can know, invalid if it has none.
func firstAddress(link *net.Interface) netip.Addr {
	addresses, err := link.Addrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, each := range addresses {
		prefix, ok := each.(*net.IPNet)
		if !ok {
			continue
		}
		if address, ok := netip.AddrFromSlice(prefix.IP.To4()); ok && usable(address) {
			return address
		}
	}
	return netip.Addr{}
}

// serve reads requests until the socket fails or ctx is done.
func (l *listener) serve(ctx context.Context, p *port) error {
	stop := context.AfterFunc(ctx, p.stop)
	defer stop()
	return p.pump(l.inbox, func(n int) { l.requests(n) })
}

// requests relays a batch.
func (l *listener) requests(n int) {
	r := l.relay
	now, routes := r.now(), r.routes.Load()
	for i := range n {
		m, source, drop := l.view(i)
		var to relayed
		if drop == None {
			to, drop = r.request(m, arrival{listener: int16(l.index), source: source}, routes, now)
		}
		if drop != None {
			l.metrics.dropped(toServer, drop)
			continue
		}
		l.metrics.relayed(toServer, to.kind)
		for t := range routes.targets {
			if l.outbox.full() {
				l.outbox.flush(r.upstream.socket)
			}
			l.outbox.addUDP(to.message, routes.targets[t].endpoint, routes.giaddr)
		}
	}
	l.outbox.flush(r.upstream.socket)
}

// The parts of struct tpacket_auxdata (packet(7)) that matter.
const (
	auxStatus  = 0
	auxVLAN    = 16
	auxLen     = 20
	vlanIDMask = 0x0fff
)

// view finds the message in frame i, and its sender.
func (l *listener) view(i int) (dhcp.Message, endpoint, Drop) {
	// The filter refuses these as well; a socket that was opened before its interface was renamed, or a kernel
	// without the filter's extensions, must not leak another VLAN's requests.
	if kind := l.inbox.link(i).Pkttype; kind == unix.PACKET_OTHERHOST || kind == unix.PACKET_OUTGOING {
		return nil, endpoint{}, OtherHost
	}
	b, whole := l.inbox.packet(i)
	if !whole {
		return nil, endpoint{}, Truncated
	}
	sum := frame.Verify
	if aux := l.inbox.message(i, unix.SOL_PACKET, unix.PACKET_AUXDATA); len(aux) >= auxLen {
		status := *(*uint32)(unsafe.Pointer(&aux[auxStatus]))
		if status&(unix.TP_STATUS_CSUMNOTREADY|unix.TP_STATUS_CSUM_VALID) != 0 {
			sum = frame.Trust
		}
		if status&unix.TP_STATUS_VLAN_VALID != 0 && *(*uint16)(unsafe.Pointer(&aux[auxVLAN]))&vlanIDMask != 0 {
			return nil, endpoint{}, OtherHost
		}
	}
	datagram, fault := frame.Parse(b, sum)
	if fault != frame.OK {
		return nil, endpoint{}, ofFrame(fault)
	}
	return dhcp.Message(datagram.Payload), endpointOf(datagram.Src), None
}
