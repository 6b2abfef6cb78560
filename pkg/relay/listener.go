package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// listener is an interface on a provisioning VLAN: it hears requests and sends replies as raw frames. It outlives
// the interface: while that is missing or down, the listener waits for it.
type listener struct {
	*desk
	index   int
	config  Listener
	trusted bool
	port    atomic.Pointer[port]
	why     atomic.Pointer[string] // why there is no port
	changed chan struct{}          // something about a link has
	inbox   *mmsg.Inbox
	counted int64 // when the kernel was last asked what it had to drop
}

// port is an open listener.
type port struct {
	*mmsg.Socket
	ifindex int
	mac     frame.MAC
	mtu     int
	// address is the interface's own, zero if it has none that others could know.
	address [4]byte
	// agent is what requests from here get as option 82.
	agent []byte
}

// Times between two attempts to open a listener. Link events shorten them.
const (
	reopenFirst = 250 * time.Millisecond
	reopenMost  = 5 * time.Second
)

// receiveBuffer holds what arrives while the relay does not run, in bytes as the kernel counts (some 1,300 packets
// per MiB).
const receiveBuffer = 4 << 20

func newListener(r *Relay, index int, config Listener) *listener {
	l := &listener{
		desk:    newDesk(r, index, config.Name),
		index:   index,
		config:  config,
		trusted: slices.Contains(r.config.TrustedListeners, config.Name),
		changed: make(chan struct{}, 1),
		inbox:   mmsg.NewInbox(0),
	}
	l.down("starting")
	return l
}

// wake has the listener look at its interface again.
func (l *listener) wake() {
	select {
	case l.changed <- struct{}{}:
	default: // it is about to
	}
}

// run opens the listener whenever its interface allows it, and reads it until ctx is done. Replies may leave through
// it until drained is closed.
func (l *listener) run(ctx context.Context, drained <-chan struct{}) error {
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
				l.relay.logger.Warn("waiting for listener", "listener", l.name, "error", err.Error())
			}
			l.pause(ctx, wait)
			wait = min(2*wait, reopenMost)
			continue
		}
		wait, logged = reopenFirst, ""
		l.up(opened)
		l.relay.logger.Info("listening", "listener", l.name, "mac", net.HardwareAddr(opened.mac[:]).String(),
			"mtu", opened.mtu)
		since := time.Now()
		err = l.serve(ctx, opened)
		if ctx.Err() != nil {
			<-drained
		}
		l.down("closed")
		if closeErr := opened.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
		if ctx.Err() == nil {
			l.relay.logger.Warn("lost listener", "listener", l.name, "error", err.Error())
			if time.Since(since) < reopenFirst { // never in a tight loop
				l.pause(ctx, reopenFirst)
			}
		}
	}
	return nil
}

// pause waits for a time, a change of a link, or the end.
func (l *listener) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-l.changed:
	case <-time.After(d):
	}
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

// look finds the interface and what is to be known about it.
func (l *listener) look() (*port, error) {
	link, err := net.InterfaceByName(l.name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("no interface %s here: broadcast-init makes it, or the listener is misnamed", l.name)
	case link.Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("interface %s is down", l.name)
	case link.Flags&net.FlagRunning == 0:
		return nil, fmt.Errorf("interface %s has no carrier: its parent on the node is down, or a cable is out", l.name)
	case len(link.HardwareAddr) != 6:
		return nil, fmt.Errorf("interface %s is no Ethernet: its address is %q", l.name, link.HardwareAddr)
	}
	p := &port{ifindex: link.Index, mac: frame.MAC(link.HardwareAddr), mtu: link.MTU}
	if address := server.FirstAddress(link, false); address.IsValid() {
		p.address = address.As4()
	}
	return p, nil
}

// open makes the packet socket. It is bound only after its filter is attached, so that it never holds a frame that
// the filter would have refused.
func (l *listener) open() (*port, error) {
	p, err := l.look()
	if err != nil {
		return nil, err
	}
	filter, err := frame.Filter(serverPort)
	if err != nil {
		return nil, err
	}
	s, err := mmsg.NewSocket(unix.AF_PACKET, unix.SOCK_RAW, "listener "+l.name)
	if err != nil {
		return nil, err
	}
	err = s.Control(func(fd int) error {
		if err := mmsg.Attach(fd, filter); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return os.NewSyscallError("setsockopt PACKET_AUXDATA", err)
		}
		// Not known before Linux 4.20; the filter refuses own transmissions too.
		_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // as far as rmem_max allows
		return os.NewSyscallError("bind",
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: mmsg.Htons(unix.ETH_P_IP), Ifindex: p.ifindex}))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	p.Socket = s
	p.agent = l.relay.config.agentOf(l.config, p.mac, p.address)
	return p, nil
}

// serve reads requests until the socket fails, the interface changes, or ctx is done.
func (l *listener) serve(ctx context.Context, p *port) error {
	ended := make(chan error, 1)
	a := arrival{listener: int16(l.index), trusted: l.trusted}
	go func() { ended <- p.Pump(l.inbox, func(n int) { l.requests(n, &a) }) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			p.Stop()
			return <-ended
		case <-l.changed:
			now, err := l.look()
			if err == nil && now.ifindex == p.ifindex {
				// The same interface, perhaps with another address, MAC or MTU: the socket stays.
				now.Socket = p.Socket
				now.agent = l.relay.config.agentOf(l.config, now.mac, now.address)
				l.port.Store(now)
				continue
			}
			if err == nil {
				err = errors.New("another interface has its name")
			}
			p.Stop()
			<-ended
			return err
		}
	}
}

// requests relays a batch.
func (l *listener) requests(n int, a *arrival) {
	r := l.relay
	now, routes, verbose := r.now(), r.routes.Load(), r.verbose()
	l.setClock(r, now)
	if p := l.port.Load(); p != nil {
		a.agent = p.agent
		l.countLost(p, now)
	}
	for i := range n {
		m, drop := l.view(i, a, now)
		if drop == None {
			m, drop = l.request(m, a, routes, now)
		}
		if drop == OtherHost {
			m, a.giaddr = l.overheard(i), [4]byte{}
		}
		if !a.waits || drop != None {
			l.tellRequest(m, a, routes, now, drop)
		}
		if drop != None {
			l.metrics.dropped(toServer, drop)
			if verbose {
				r.logger.Debug("dropped packet", "listener", l.name, "direction", directionNames[toServer],
					"source", a.source.String(), "reason", drop.String())
			}
			continue
		}
		if a.waits {
			continue // its room sends it
		}
		l.metrics.relayed(toServer, m.Type())
		l.send(m, routes, now, a.served)
		if verbose {
			r.logMessage("relayed request", l.name, m)
		}
	}
	l.flush(routes)
}

// countLost counts what the kernel had to drop, since the socket's buffer was full. It asks once a second, while
// packets arrive: when none do, none are dropped.
func (l *listener) countLost(p *port, now int64) {
	if now-l.counted < int64(time.Second) {
		return
	}
	l.counted = now
	_ = p.Control(func(fd int) error {
		statistics, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && statistics.Drops > 0 {
			l.metrics.lost(Overflow, statistics.Drops)
		}
		return err
	})
}

// The parts of struct tpacket_auxdata (packet(7)) that matter.
const (
	auxStatus  = 0
	auxVLAN    = 16
	auxLen     = 20
	vlanIDMask = 0x0fff
)

// view finds the message in frame i, and puts its sender into a.
func (l *listener) view(i int, a *arrival, now int64) (dhcp.Message, Drop) {
	// The filter refuses these as well; a socket that was opened before its interface was renamed, or a kernel
	// without the filter's extensions, must not leak another VLAN's requests.
	if kind := l.inbox.Link(i).Pkttype; kind == unix.PACKET_OTHERHOST || kind == unix.PACKET_OUTGOING {
		return nil, OtherHost
	}
	b, whole := l.inbox.Packet(i)
	if !whole {
		return nil, Truncated
	}
	l.relay.trace.record(now, onListener, peer{}, peer{}, b)
	sum := frame.Verify
	if aux := l.inbox.Message(i, unix.SOL_PACKET, unix.PACKET_AUXDATA); len(aux) >= auxLen {
		status := *(*uint32)(unsafe.Pointer(&aux[auxStatus]))
		if status&(unix.TP_STATUS_CSUMNOTREADY|unix.TP_STATUS_CSUM_VALID) != 0 {
			sum = frame.Trust
		}
		if status&unix.TP_STATUS_VLAN_VALID != 0 && *(*uint16)(unsafe.Pointer(&aux[auxVLAN]))&vlanIDMask != 0 {
			return nil, OtherHost
		}
	}
	datagram, fault := frame.Parse(b, sum)
	if fault != frame.OK {
		return nil, ofFrame(fault)
	}
	a.source = peerOf(datagram.Src)
	return dhcp.Message(datagram.Payload), None
}
