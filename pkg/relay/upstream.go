package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// upstream is the UDP socket on port 67: requests leave through it, replies and unicast requests arrive.
type upstream struct {
	*socket
	relay   *Relay
	inbox   *inbox
	unicast *outbox   // to servers, and to clients and routers that asked by unicast
	frames  []*outbox // to the clients on each listener
}

// newUpstream binds to the wildcard address: the address of the host may change, and a unicast may be sent to any of
// them. IP_PKTINFO tells which, and answers leave from it.
func newUpstream(r *Relay) (*upstream, error) {
	filter, err := frame.UnicastFilter()
	if err != nil {
		return nil, err
	}
	s, err := newSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, "udp port 67")
	if err != nil {
		return nil, fmt.Errorf("failed to open upstream socket: %w", err)
	}
	err = s.control(func(fd int) error {
		if err := attach(fd, filter); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
			return os.NewSyscallError("setsockopt IP_PKTINFO", err)
		}
		// A large request may be fragmented on its way; nothing here could answer "too big".
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
			return os.NewSyscallError("setsockopt IP_MTU_DISCOVER", err)
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // as far as rmem_max allows
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Port: serverPort}))
	})
	if err != nil {
		closeErr := s.Close()
		switch {
		case errors.Is(err, unix.EADDRINUSE):
			err = fmt.Errorf("%w (another DHCP server or relay runs in this network namespace)", err)
		case errors.Is(err, unix.EACCES):
			err = fmt.Errorf("%w (the container needs the capability NET_BIND_SERVICE, or the sysctl "+
				"net.ipv4.ip_unprivileged_port_start at 67 or below)", err)
		}
		return nil, errors.Join(fmt.Errorf("failed to bind UDP port %d: %w", serverPort, err), closeErr)
	}
	u := &upstream{socket: s, relay: r, inbox: newInbox(headroom)}
	u.unicast = newOutbox(func(_ int, errno unix.Errno) { u.failed(unicast, errno) })
	for i := range r.listeners {
		u.frames = append(u.frames, newOutbox(func(_ int, errno unix.Errno) { u.failed(i, errno) }))
	}
	return u, nil
}

func (u *upstream) failed(listener int, errno unix.Errno) {
	u.relay.metrics.port(listener).dropped(toClient, SendFailed)
	u.relay.notices.warn(u.relay.now(), "failed to send reply", func() []any {
		name := unicastLabel
		if listener != unicast {
			name = u.relay.listeners[listener].name
		}
		return []any{"listener", name, "error", errno}
	})
}

// run reads the socket until ctx is done, and closes it.
func (u *upstream) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, u.stop)
	defer stop()
	err := u.pump(u.inbox, u.batch)
	if closeErr := u.Close(); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("failed to read UDP port %d: %w", serverPort, err)
}

// batch relays what arrived.
func (u *upstream) batch(n int) {
	r := u.relay
	now, routes := r.now(), r.routes.Load()
	for i := range n {
		b, whole := u.inbox.packet(i)
		m, from := dhcp.Message(b), u.inbox.from(i)
		switch {
		case !whole:
			r.metrics.port(unicast).dropped(toServer, Truncated)
		case len(m) > 0 && m[0] == byte(dhcp.Reply):
			u.reply(i, m, from, routes, now)
		default:
			u.request(i, m, from, routes, now)
		}
	}
	u.unicast.flush(u.socket)
	for i, out := range u.frames {
		u.flush(i, out)
	}
}

// flush sends the frames for one listener.
func (u *upstream) flush(listener int, out *outbox) {
	if p := u.relay.listeners[listener].port.Load(); p != nil {
		out.flush(p.socket)
		return
	}
	for ; out.n > 0; out.n-- {
		u.relay.metrics.port(listener).dropped(toClient, ListenerDown)
	}
}

// request relays what a client or a router sent to an address of this host.
func (u *upstream) request(i int, m dhcp.Message, from endpoint, routes *routes, now int64) {
	r, metrics := u.relay, u.relay.metrics.port(unicast)
	local, drop := u.local(i)
	var to relayed
	if drop == None {
		to, drop = r.request(m, arrival{listener: unicast, source: from, local: local}, routes, now)
	}
	if drop != None {
		metrics.dropped(toServer, drop)
		return
	}
	metrics.relayed(toServer, to.kind)
	for t := range routes.targets {
		if u.unicast.full() {
			u.unicast.flush(u.socket)
		}
		u.unicast.addUDP(to.message, routes.targets[t].endpoint, routes.giaddr)
	}
}

// local is the address that datagram i was sent to. A broadcast is for the listeners.
func (u *upstream) local(i int) ([4]byte, Drop) {
	data := u.inbox.message(i, unix.IPPROTO_IP, unix.IP_PKTINFO)
	if len(data) < unix.SizeofInet4Pktinfo {
		return [4]byte{}, Heard
	}
	info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
	if info.Addr != info.Spec_dst {
		return [4]byte{}, Heard
	}
	return info.Addr, None
}

// reply brings a server's answer to whoever asked.
func (u *upstream) reply(i int, m dhcp.Message, from endpoint, routes *routes, now int64) {
	r := u.relay
	o, drop := r.reply(m, from, now)
	metrics := r.metrics.port(int(o.listener))
	if drop != None {
		r.metrics.port(unicast).dropped(toClient, drop)
		return
	}
	if o.listener == unicast {
		if u.unicast.full() {
			u.unicast.flush(u.socket)
		}
		u.unicast.addUDP(dhcp.Pad(m), o.from, o.local)
		metrics.relayed(toClient, m.Type())
		return
	}
	p := r.listeners[o.listener].port.Load()
	if p == nil {
		metrics.dropped(toClient, ListenerDown)
		return
	}
	m = dhcp.Pad(m)
	if len(m)+frame.HeaderLen-frame.EthernetLen > p.mtu {
		metrics.dropped(toClient, TooLong)
		return
	}
	to := address(m, r.config.AlwaysBroadcast)
	header := frame.Header{
		SrcMAC: p.mac, DstMAC: to.mac,
		Src: r.source(p, routes), Dst: to.ip,
		SrcPort: serverPort, DstPort: clientPort,
	}
	whole := u.inbox.slot(i)[:headroom+len(m)]
	header.Put(whole)
	if out := u.frames[o.listener]; out.full() {
		u.flush(int(o.listener), out)
	}
	u.frames[o.listener].addFrame(whole, p.ifindex)
	metrics.relayed(toClient, m.Type())
}

// source is the address that a reply on a listener comes from: the one that clients are to know, else the
// interface's own, else the relay's.
func (r *Relay) source(p *port, routes *routes) [4]byte {
	switch {
	case r.config.SourceAddress.IsValid():
		return r.config.SourceAddress.As4()
	case p.address != ([4]byte{}):
		return p.address
	}
	return routes.giaddr
}
