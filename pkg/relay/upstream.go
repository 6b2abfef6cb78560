package relay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// upstream is the UDP socket on the servers' port: requests leave through it, replies and unicast requests arrive.
type upstream struct {
	*socket.Socket
	*worker
	recvBatch *mmsg.RecvBatch
	unicasts  *mmsg.SendBatch   // to clients and relay agents that asked by unicast
	frames    []*mmsg.SendBatch // to the clients on each listener
}

// newUpstream binds to the wildcard address: the host's addresses may change, and a unicast may be sent to any of them.
// IP_PKTINFO tells which, and answers leave from that one.
func newUpstream(r *Relay) (*upstream, error) {
	filter, err := r.unicastFilter()
	if err != nil {
		return nil, err
	}
	s, err := socket.New(r.domain, unix.SOCK_DGRAM, fmt.Sprintf("udp port %d", r.serverPort))
	if err != nil {
		return nil, fmt.Errorf("failed to open %s upstream socket: %w", r.title, err)
	}
	err = s.Control(func(fd int) error {
		if err := socket.Attach(fd, filter); err != nil {
			return err
		}
		if err := r.family.control(fd); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, listener.ReceiveBuffer) // as far as rmem_max allows
		if r.config.IPv6 {
			return server.Bind(fd, &unix.SockaddrInet6{Port: int(r.serverPort)})
		}
		return server.Bind(fd, &unix.SockaddrInet4{Port: int(r.serverPort)})
	})
	if err != nil {
		closeErr := s.Close()
		return nil, errors.Join(fmt.Errorf("failed to bind UDP port %d: %w", r.serverPort, err), closeErr)
	}
	u := &upstream{Socket: s, worker: newWorker(r, unicast), recvBatch: mmsg.NewRecvBatch(r.headroom)}
	u.unicasts = mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(unicast, errno) })
	for i := range r.vlans {
		u.frames = append(u.frames, mmsg.NewSendBatch(false, func(errno unix.Errno) { u.failed(i, errno) }))
	}
	return u, nil
}

func (u *upstream) failed(index int, errno unix.Errno) {
	u.relay.metrics.of(index).dropped(toClient, SendFailed)
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
	return fmt.Errorf("failed to read UDP port %d: %w", u.relay.serverPort, err)
}

// batch relays the packets of a batch.
func (u *upstream) batch(n int) {
	now, targets := u.relay.now(), u.relay.targets.Load()
	for i := range n {
		b, whole := u.recvBatch.Packet(i)
		from := u.recvBatch.From(i).AddrPort()
		side := toServer
		if len(b) > 0 && b[0] == u.relay.replyByte {
			side = toClient
		}
		var drop Drop
		switch {
		case !whole:
			drop = Truncated
		case side == toClient:
			drop = u.answer(i, b, from, targets, now)
		default:
			drop = u.request(i, b, from, targets, now)
		}
		if drop != None {
			u.drop(side, peerOf(from), drop)
		}
	}
	u.sender.Flush()
	u.Socket.Send(u.unicasts)
	for i, out := range u.frames {
		u.flush(i, out)
	}
}

// flush sends the frames for one listener.
func (u *upstream) flush(index int, out *mmsg.SendBatch) {
	if open := u.relay.vlans[index].Opened(); open != nil {
		open.Send(out)
		return
	}
	for range out.Len() {
		u.relay.metrics.of(index).dropped(toClient, ListenerDown)
	}
	out.Clear()
}

// request relays a request that a client or a relay agent sent to an address of this host.
func (u *upstream) request(i int, m []byte, from netip.AddrPort, targets *server.Targets, now int64) Drop {
	r, a := u.relay, &u.worker.arrival
	local, ifindex, ok := u.recvBatch.Local(i)
	if !ok {
		return HeardByListener // a broadcast
	}
	r.trace.Payload(now, from, netip.AddrPortFrom(local, r.serverPort), m)
	*a = arrival{
		listener: unicast, source: peerOf(from), local: local.As16(), ifindex: int32(ifindex),
		trusted: r.v4 != nil && r.v4.trustsSwitches,
		b:       u.recvBatch.Slot(i)[:r.headroom+len(m)], at: r.headroom,
	}
	b, drop := r.family.request(u.worker, a, targets, now)
	u.tellRequest(a, targets, now, drop)
	if drop == None {
		u.pass(b, targets, now, a.kind)
	}
	return drop
}

// answer sends a server's answer to the client or relay agent that asked.
func (u *upstream) answer(i int, m []byte, from netip.AddrPort, targets *server.Targets, now int64) Drop {
	r, out := u.relay, &u.worker.back
	if targets.Source.IsValid() {
		r.trace.Payload(now, from, netip.AddrPortFrom(targets.Source, r.serverPort), m)
	}
	out.message = m
	if drop := r.family.reply(u.worker, m, from.Addr(), targets, now, out); drop != None {
		u.tellReply(out, from, now, drop)
		return drop
	}
	slot := u.recvBatch.Slot(i)
	if out.listener == unicast {
		u.tellReply(out, from, now, None)
		if u.unicasts.Full() {
			u.Socket.Send(u.unicasts)
		}
		link, local := 0, netip.AddrFrom16(out.local).Unmap()
		if out.to.Addr().IsLinkLocalUnicast() {
			link = int(out.ifindex)
		}
		u.unicasts.AddUDP(slot[out.start:out.end], out.to, local, link)
		r.trace.Payload(now, netip.AddrPortFrom(local, r.serverPort), out.to, slot[out.start:out.end])
		r.metrics.of(unicast).relayed(toClient, out.kind)
		return None
	}
	drop, open := None, r.vlans[out.listener].Opened()
	switch {
	case open == nil:
		drop = ListenerDown
	case out.end-out.start+r.ipAndUDP > open.MTU:
		drop = TooLong
	}
	u.tellReply(out, from, now, drop)
	if drop != None {
		r.metrics.of(int(out.listener)).dropped(toClient, drop) // of its listener, and not of the socket that it came to
		return None
	}
	framed := slot[out.start-r.headers : out.end]
	r.family.put(r, framed, open, out, targets)
	if frames := u.frames[out.listener]; frames.Full() {
		u.flush(int(out.listener), frames)
	}
	u.frames[out.listener].AddFrame(framed, open.Index)
	r.trace.Frame(now, framed)
	r.metrics.of(int(out.listener)).relayed(toClient, out.kind)
	return None
}
