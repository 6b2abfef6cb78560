package relay6

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// upstream is the UDP socket on port 547: messages leave through it for the servers; replies, and messages that relay
// agents send to this host, arrive.
type upstream struct {
	*socket.Socket
	*worker
	recvBatch *mmsg.RecvBatch
	unicasts  *mmsg.SendBatch   // to relay agents that asked by unicast
	frames    []*mmsg.SendBatch // to the clients on each listener
}

// newUpstream binds to the wildcard address: the host's addresses may change, and a unicast may be sent to any of them.
// IPV6_PKTINFO tells which, and answers leave from that one.
func newUpstream(r *Relay) (*upstream, error) {
	filter, err := frame.UnicastFilter6()
	if err != nil {
		return nil, err
	}
	s, err := socket.New(unix.AF_INET6, unix.SOCK_DGRAM, "udp port 547")
	if err != nil {
		return nil, fmt.Errorf("failed to open DHCPv6 upstream socket: %w", err)
	}
	err = s.Control(func(fd int) error {
		if err := socket.Attach(fd, filter); err != nil {
			return err
		}
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
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, listener.ReceiveBuffer) // as far as rmem_max allows
		return server.Bind(fd, &unix.SockaddrInet6{Port: serverPort})
	})
	if err != nil {
		closeErr := s.Close()
		return nil, errors.Join(fmt.Errorf("failed to bind UDP port %d: %w", serverPort, err), closeErr)
	}
	u := &upstream{Socket: s, worker: newWorker(r, unicast, unicastLabel), recvBatch: mmsg.NewRecvBatch(front)}
	u.unicasts = mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(unicast, errno) })
	for i := range r.listeners {
		u.frames = append(u.frames, mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(i, errno) }))
	}
	return u, nil
}

func (u *upstream) failed(index int, errno unix.Errno) {
	u.relay.metrics.Port(index).Dropped(toClient, SendFailed)
	u.relay.logLimiter.WarnAt(u.relay.now(), "failed to send reply", func() []any {
		return []any{"listener", u.relay.nameOf(int16(index)), "error", errno.Error()}
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
		from := u.recvBatch.From(i).AddrPort()
		side, drop := toServer, Truncated
		if len(b) > 0 && dhcp6.Message(b).Type() == dhcp6.RelayReply {
			side = toClient
		}
		switch {
		case !whole:
		case side == toClient:
			drop = u.answer(i, b, from, targets, now, verbose)
		default:
			drop = u.ask(i, from, targets, now, verbose)
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

// ask relays a message that a relay agent sent to an address of this host.
func (u *upstream) ask(i int, from netip.AddrPort, targets *server.Targets, now int64, verbose bool) Drop {
	local, ifindex, ok := u.recvBatch.Local(i)
	if !ok {
		return Heard
	}
	a := arrival{
		listener: unicast, source: from.Addr().As16(), port: from.Port(), local: local.As16(), ifindex: int32(ifindex),
	}
	m, _ := u.recvBatch.Packet(i)
	u.relay.trace.Payload(now, from, netip.AddrPortFrom(local, serverPort), m)
	b, drop := u.request(u.recvBatch.Slot(i)[:front+len(m)], front, &a, targets, now)
	if !a.waits {
		u.tellRequest(m, &a, targets, now, drop)
	}
	if drop != None || a.waits {
		return drop
	}
	u.metrics.Relayed(toServer, a.kind.Index())
	u.send(b, targets, now, server.Machine(a.client, a.firmware))
	if verbose {
		u.relay.logMessage("relayed request", unicastLabel, b)
	}
	return None
}

// answer sends a server's answer to the client or relay agent that asked.
func (u *upstream) answer(
	i int, m dhcp6.Message, from netip.AddrPort, to *server.Targets, now int64, verbose bool,
) Drop {
	r := u.relay
	if to.Source.IsValid() {
		r.trace.Payload(now, from, netip.AddrPortFrom(to.Source, serverPort), m)
	}
	o, drop := u.reply(m, from.Addr(), to, now)
	if drop != None {
		u.tellReply(m, &o, from, now, drop)
		return drop
	}
	client, _ := m.Innermost()
	if verbose {
		r.logMessage("relayed reply", r.nameOf(o.listener), m)
	}
	peer := m.Peer()
	start, end := m.InnerAt()
	if o.listener == unicast {
		u.tellReply(m, &o, from, now, None)
		if u.unicasts.Full() {
			u.Socket.Send(u.unicasts)
		}
		to, link := netip.AddrPortFrom(netip.AddrFrom16(peer), o.port), 0
		if to.Addr().IsLinkLocalUnicast() {
			link = int(o.ifindex)
		}
		local := netip.AddrFrom16(o.local)
		u.unicasts.AddUDP(m[start:end], to, local, link)
		r.trace.Payload(now, netip.AddrPortFrom(local, serverPort), to, m[start:end])
		u.metrics.Relayed(toClient, client.Type().Index())
		return None
	}
	port := r.metrics.Port(int(o.listener))
	p := r.listeners[o.listener].Port()
	switch {
	case p == nil:
		drop = ListenerDown
	case end-start+ipAndUDP > p.MTU:
		drop = TooLong
	}
	u.tellReply(m, &o, from, now, drop)
	if drop != None {
		port.Dropped(toClient, drop) // of its listener, and not of the socket that it came to
		return None
	}
	whole := u.recvBatch.Slot(i)[front+start-frame.HeaderLen6 : front+end]
	header := frame.Header6{
		SrcMAC: p.MAC, DstMAC: o.mac, Src: p.Info.local, Dst: peer, SrcPort: serverPort, DstPort: o.port,
	}
	if header.DstMAC == (frame.MAC{}) {
		header.DstMAC = macOf(peer)
	}
	header.Put(whole)
	if out := u.frames[o.listener]; out.Full() {
		u.flush(int(o.listener), out)
	}
	u.frames[o.listener].AddFrame(whole, p.Index)
	r.trace.Frame(now, whole)
	port.Relayed(toClient, client.Type().Index())
	return None
}

// macOf is the destination of a frame to an address whose MAC address is not known from a request: the MAC address that
// it was made from, or all stations; those that do not have the address ignore the frame.
func macOf(address [16]byte) frame.MAC {
	if mac, ok := frame.MACOf(address); ok {
		return mac
	}
	return frame.GroupMAC(allNodes)
}
