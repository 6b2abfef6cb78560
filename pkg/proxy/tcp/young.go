package tcp

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// A connection begins in a loop: most that are short never need more than to be connected, to pass a few small messages
// on, and to be closed. One that grows old, gets large, meets a peer that does not keep up, or has to wait for anything
// but its two sockets (a PROXY header, TLS, another endpoint) leaves the loop for goroutines of its own, as it is.

// connectAge is how long a young connection waits in the loop to be connected.
const connectAge = 100 * time.Millisecond

// young is a session in a loop. All of it is the loop's thread's.
type young struct {
	session
	nursery  *nursery
	born     time.Time
	attempt  *begun             // to connect; nil before and behind
	endpoint *endpoint.Endpoint // that is connected to
	passing  bool               // what comes
	ends     [2]side
	moved    int // bytes

	older, younger *young
}

// side is the socket that one direction reads from.
type side struct {
	young  *young
	fd     int // below 0 without one
	handle loop.Handle
	way    way
	ended  bool // and the other side has been told
}

// other is the direction back.
func (w way) other() way { return 1 - w }

// plain is whether a connection is for the loop.
func (y *young) plain() bool {
	s := y.settings
	return s.TLS == nil && s.Secure == nil && s.SendProxy == 0 && s.Idle <= 0 && s.Rate == 0 && s.Machines == 0 &&
		!contains(s.AcceptProxy, y.peer.Addr())
}

// begin connects to an endpoint.
func (y *young) begin() {
	if !y.charge(y.peer.Addr()) {
		resetOnClose(y.ends[toServer].fd)
		y.close()
		return
	}
	e, err := y.settings.Pool.Acquire(y.peer.Addr())
	if err != nil { // to be told by the one that goes on
		y.leave(toServer, nil)
		return
	}
	y.attempt = &begun{endpoint: e, since: y.born}
	server := &y.ends[toClient]
	if server.fd, err = Open(e.Addr, y.nursery.front.room.Crowded()); err == nil {
		err = noDelay(server.fd)
	}
	waiting := false
	if err == nil {
		waiting, err = Connect(server.fd, e.Addr)
	}
	if err != nil {
		y.fail(err)
		return
	}
	mode := loop.Stream
	if waiting {
		mode = loop.Connecting
	}
	server.handle, err = y.nursery.loop.Watch(server.fd, mode, server)
	limit := y.settings.Dial
	switch {
	case err != nil, waiting && limit > 0 && limit < connectAge+loop.Tick: // the loop would look too late
		y.leave(toServer, nil)
	case !waiting:
		y.pass()
	}
}

// fail leaves with an attempt that has failed, for another one.
func (y *young) fail(err error) {
	y.attempt.err = err
	server := &y.ends[toClient]
	y.nursery.loop.Forget(server.handle)
	server.handle = loop.Handle{}
	if server.fd >= 0 {
		_ = unix.Close(server.fd)
		server.fd = -1
	}
	y.leave(toServer, nil)
}

// pass passes on what comes, from now on.
func (y *young) pass() {
	y.attempt.endpoint.Succeeded()
	y.endpoint, y.attempt, y.passing = y.attempt.endpoint, nil, true
	y.connected(y.endpoint.Addr)
	// What has come already is read before the socket is watched, and so it is not reported, too.
	client := &y.ends[toServer]
	client.move(false)
	if !y.passing || client.ended {
		return
	}
	var err error
	if client.handle, err = y.nursery.loop.Watch(client.fd, loop.Stream, client); err != nil {
		y.leave(toServer, nil)
	}
}

// Ready implements loop.Watcher.
func (s *side) Ready(e loop.Events) {
	y := s.young
	switch {
	case y.passing:
		if e.Readable() && !s.ended {
			s.move(e.Last())
		}
	case s.way == toClient:
		waiting, err := Connect(s.fd, y.attempt.endpoint.Addr)
		switch {
		case err != nil:
			y.fail(err)
		case !waiting:
			y.pass()
			if y.passing && e.Readable() { // it may have spoken first
				s.move(e.Last())
			}
		}
	}
}

// move passes on what there is to be read. Where more will be reported anyway, a read that does not fill the buffer is
// the last.
func (s *side) move(all bool) {
	y := s.young
	buffer, to := y.nursery.loop.Buffer(), &y.ends[s.way.other()]
	for y.passing {
		n, err := Again(unix.Read, s.fd, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			s.tear(os.NewSyscallError("read", err))
			return
		case n == 0:
			s.end()
			return
		}
		written, err := Again(unix.Write, to.fd, buffer[:n])
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			to.tear(os.NewSyscallError("write", err))
			return
		}
		y.front.metrics.bytes(s.way, int64(written))
		y.fate.bytes[s.way] += int64(written)
		y.lease.Touch()
		if y.moved += n; written < n || y.moved > youngBytes {
			y.leave(s.way, buffer[written:n])
			return
		}
		if n < len(buffer) && !all {
			return
		}
	}
}

// end passes on that a direction has ended. Behind the second one, closing does.
func (s *side) end() {
	y := s.young
	back := &y.ends[s.way.other()]
	if !back.ended { // else the other end of this socket has our end already, and nothing was written to it since
		if err := ended(s.fd); err != nil {
			s.tear(err)
			return
		}
	}
	s.ended = true
	if back.ended {
		y.close()
		return
	}
	// Where the other connection is gone, there may still be something to be read of it.
	if err := unix.Shutdown(back.fd, unix.SHUT_WR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		back.tear(os.NewSyscallError("shutdown", err))
	}
}

// tear ends a session whose stream is torn, as one of its sockets has told. The other one has to be told.
func (s *side) tear(err error) {
	y := s.young
	if y.broken(err) {
		resetOnClose(y.ends[s.way.other()].fd)
		if !errors.Is(err, unix.ECONNRESET) { // that one is gone already
			resetOnClose(s.fd)
		}
	}
	y.close()
}

// close ends the session.
func (y *young) close() {
	for i := range y.ends {
		s := &y.ends[i]
		y.nursery.loop.Forget(s.handle)
		if s.fd >= 0 {
			_ = unix.Close(s.fd)
			s.fd = -1
		}
	}
	if y.endpoint != nil {
		y.endpoint.Release()
	}
	y.passing = false
	y.nursery.drop(y)
	y.discharge(y.peer.Addr())
	y.front.remove(&y.session)
}

// leave gives the session goroutines, with what was read and not written of one direction.
func (y *young) leave(of way, rest []byte) {
	y.nursery.drop(y)
	for i := range y.ends {
		y.nursery.loop.Release(y.ends[i].fd, y.ends[i].handle)
		y.so[i].ended = y.ends[i].ended
	}
	y.so[of].rest = slices.Clone(rest)
	passing := y.passing
	y.passing = false
	client, server := y.ends[toServer].fd, y.ends[toClient].fd
	var err error
	y.mu.Lock()
	if y.client, err = newSocket(client); err == nil {
		y.client.finished.Store(y.so[toClient].ended)
		switch {
		case passing:
			if y.server, err = newSocket(server); err == nil {
				y.server.finished.Store(y.so[toServer].ended)
			}
		case y.attempt != nil:
			y.attempt.fd = server
			y.begun = y.attempt
		}
	}
	y.mu.Unlock()
	if err != nil { // what os.NewFile cannot use is no descriptor
		y.front.log.Error("failed to take over connection", "error", err)
		y.front.remove(&y.session)
		return
	}
	go y.goOn(passing)
}

// goOn is the session outside of the loop.
func (y *young) goOn(passing bool) {
	defer y.front.remove(&y.session)
	if !passing {
		y.run(y.nursery.life)
		return
	}
	defer y.discharge(y.peer.Addr())
	defer y.client.Close()
	defer y.endpoint.Release()
	defer y.server.Close()
	_ = socketOptions(y.settings.Keepalive, y.settings.UserTimeout)("", "", y.server.raw)
	y.session.pass(y.client, y.server)
}

func noDelay(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}
