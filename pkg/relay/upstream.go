package relay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// headroom is the number of bytes left free in front of a server's reply, for the headers of a raw frame.
const headroom = frame.HeaderLen

// upstream is the UDP socket on port 67: requests leave through it, replies and unicast requests arrive.
type upstream struct {
	*socket.Socket
	*worker
	recvBatch *mmsg.RecvBatch
	unicasts  *mmsg.SendBatch   // to clients and routers that asked by unicast
	frames    []*mmsg.SendBatch // to the clients on each listener
}

// newUpstream binds to the wildcard address: the host's addresses may change, and a unicast may be sent to any of them.
// IP_PKTINFO tells which, and answers leave from that one.
func newUpstream(r *Relay) (*upstream, error) {
	filter, err := frame.UnicastFilter()
	if err != nil {
		return nil, err
	}
	s, err := socket.New(unix.AF_INET, unix.SOCK_DGRAM, "udp port 67")
	if err != nil {
		return nil, fmt.Errorf("failed to open upstream socket: %w", err)
	}
	err = s.Control(func(fd int) error {
		if err := socket.Attach(fd, filter); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1); err != nil {
			return os.NewSyscallError("setsockopt IP_PKTINFO", err)
		}
		// A large request may be fragmented on its way; nothing here could answer "too big".
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
			return os.NewSyscallError("setsockopt IP_MTU_DISCOVER", err)
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, listener.ReceiveBuffer) // as far as rmem_max allows
		return server.Bind(fd, &unix.SockaddrInet4{Port: serverPort})
	})
	if err != nil {
		closeErr := s.Close()
		return nil, errors.Join(fmt.Errorf("failed to bind UDP port %d: %w", serverPort, err), closeErr)
	}
	u := &upstream{Socket: s, worker: newWorker(r, unicast, unicastLabel), recvBatch: mmsg.NewRecvBatch(headroom)}
	u.unicasts = mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(unicast, errno) })
	for i := range r.listeners {
		u.frames = append(u.frames, mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(i, errno) }))
	}
	return u, nil
}

func (u *upstream) failed(index int, errno unix.Errno) {
	u.relay.metrics.Port(index).Dropped(toClient, SendFailed)
	u.relay.logLimiter.WarnAt(u.relay.now(), "failed to send reply", func() []any {
		name := unicastLabel
		if index != unicast {
			name = u.relay.listeners[index].name
		}
		return []any{"listener", name, "error", errno.Error()}
	})
}

// run reads the socket until ctx is done, and closes it.
func (u *upstream) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, u.Stop)
	defer stop()
	err := u.Pump(u.recvBatch, u.batch)
	if closeErr := u.Close(); closeErr != nil {
		err = errors.Join(err, closeErr)
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("failed to read UDP port %d: %w", serverPort, err)
}

// batch relays the packets of a batch.
func (u *upstream) batch(n int) {
	r := u.relay
	now, targets, verbose := r.now(), r.targets.Load(), r.verbose
	u.setClock(r, now)
	for i := range n {
		b, whole := u.recvBatch.Packet(i)
		m, from := dhcp.Message(b), peerOf(u.recvBatch.From(i).AddrPort())
		side, drop := toClient, Truncated
		switch {
		case whole && len(m) > 0 && m[0] == byte(dhcp.Reply):
			drop = u.answer(i, m, from, targets, now, verbose)
		case whole:
			side = toServer
			drop = u.ask(i, m, from, targets, now, verbose)
		}
		if drop != None {
			u.metrics.Dropped(side, drop)
			if verbose {
				r.logger.Debug("dropped packet", "listener", unicastLabel, "direction", side.String(),
					"source", from.String(), "reason", drop.String())
			}
		}
	}
	u.sender.Flush(targets)
	u.Socket.Send(u.unicasts)
	for i, out := range u.frames {
		u.flush(i, out)
	}
}

// flush sends the frames for one listener.
func (u *upstream) flush(index int, out *mmsg.SendBatch) {
	if p := u.relay.listeners[index].Port(); p != nil {
		p.Send(out)
		return
	}
	for range out.Len() {
		u.relay.metrics.Port(index).Dropped(toClient, ListenerDown)
	}
	out.Clear()
}

// ask relays a request that a client or a router sent to an address of this host.
func (u *upstream) ask(i int, m dhcp.Message, from peer, targets *server.Targets, now int64, verbose bool) Drop {
	local, drop := u.local(i)
	if drop != None {
		return drop
	}
	u.relay.trace.Payload(now, from.addrPort(), peer{ip: local, port: serverPort}.addrPort(), m)
	a := arrival{listener: unicast, source: from, local: local, trusted: u.relay.switched}
	m, drop = u.request(m, &a, targets, now)
	if !a.waits {
		u.tellRequest(m, &a, targets, now, drop)
	}
	if drop != None || a.waits {
		return drop
	}
	u.metrics.Relayed(toServer, int(m.Type()))
	u.send(m, targets, now, server.Machine(a.client, a.firmware))
	if verbose {
		u.relay.logMessage("relayed request", unicastLabel, m, "source", from.String())
	}
	return None
}

// local is the address that datagram i was sent to. A broadcast is for the listeners.
func (u *upstream) local(i int) ([4]byte, Drop) {
	at, _, ok := u.recvBatch.Local(i)
	if !ok {
		return [4]byte{}, Heard
	}
	return at.As4(), None
}

// answer sends a server's answer to the client or relay agent that asked.
func (u *upstream) answer(i int, m dhcp.Message, from peer, targets *server.Targets, now int64, verbose bool) Drop {
	r := u.relay
	r.trace.Payload(now, from.addrPort(), peer{ip: giaddrOf(targets), port: serverPort}.addrPort(), m)
	m, o, drop := u.reply(m, from, targets, now)
	if drop != None {
		u.tellReply(m, &o, from, now, drop)
		return drop
	}
	if o.listener == unicast {
		u.tellReply(m, &o, from, now, None)
		if u.unicasts.Full() {
			u.Socket.Send(u.unicasts)
		}
		u.unicasts.AddUDP(m, o.from.addrPort(), netip.AddrFrom4(o.local), 0)
		r.trace.Payload(now, peer{ip: o.local, port: serverPort}.addrPort(), o.from.addrPort(), m)
		u.metrics.Relayed(toClient, int(m.Type()))
		if verbose {
			r.logMessage("relayed reply", unicastLabel, m, "to", o.from.String())
		}
		return None
	}
	port := r.metrics.Port(int(o.listener))
	p := r.listeners[o.listener].Port()
	switch {
	case p == nil:
		drop = ListenerDown
	case len(m)+ipAndUDP > p.MTU:
		drop = TooLong
	}
	u.tellReply(m, &o, from, now, drop)
	if drop != None {
		port.Dropped(toClient, drop) // of its listener, and not of the socket that it came to
		return None
	}
	whole := u.recvBatch.Slot(i)[:headroom+len(m)]
	to := putReply(whole, p.MAC, r.source(p, targets), r.config.AlwaysBroadcast)
	if out := u.frames[o.listener]; out.Full() {
		u.flush(int(o.listener), out)
	}
	u.frames[o.listener].AddFrame(whole, p.Index)
	r.trace.Frame(now, whole)
	port.Relayed(toClient, int(m.Type()))
	if verbose {
		r.logMessage("relayed reply", r.listeners[o.listener].name, m, "to", netip.AddrFrom4(to.ip).String())
	}
	return None
}

// putReply writes the headers in front of a reply that is in place behind them, and returns where it goes.
func putReply(whole []byte, from frame.MAC, source [4]byte, alwaysBroadcast bool) destination {
	to := address(dhcp.Message(whole[headroom:]), alwaysBroadcast)
	header := frame.Header{
		SrcMAC: from, DstMAC: to.mac,
		Src: source, Dst: to.ip,
		SrcPort: serverPort, DstPort: clientPort,
	}
	header.Put(whole)
	return to
}

// source is the address that a reply on a listener comes from: the one that clients are to know, else the
// interface's own, else the relay's.
func (r *Relay) source(p *listener.Port[link], targets *server.Targets) [4]byte {
	switch {
	case r.config.SourceAddress.IsValid():
		return r.config.SourceAddress.As4()
	case p.Info.address != ([4]byte{}):
		return p.Info.address
	}
	return giaddrOf(targets)
}
