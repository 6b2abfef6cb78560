package tcp

import (
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A connection begins in an event loop, which connects to an endpoint, passes small messages on, and closes. Most
// short connections need no more. The loop hands a session off to goroutines, with the bytes that it has read, when
// the session grows old or has passed many bytes on, when a peer reads too slowly, or when the session needs more than
// its two sockets (a PROXY header, TLS, another endpoint).

// connectAge is how long a session waits in the loop for the connection to its endpoint.
const connectAge = 100 * time.Millisecond

// loopSession is a session in an event loop. Only the loop's thread uses it until it is handed off.
type loopSession struct {
	session
	acceptLoop *acceptLoop
	born       time.Time
	dialing    *pendingDial       // to an endpoint; nil before and after
	endpoint   *endpoint.Endpoint // once connected
	passing    bool               // bytes are passed on
	ends       [2]side
	moved      int // bytes that were read of both

	byAge list.Link[*loopSession]
}

// side is the socket that one direction reads from.
type side struct {
	session   *loopSession
	fd        int // below 0 without one
	handle    loop.Handle
	direction direction
	ended     bool // and the half-close was passed on
}

// other is the opposite direction.
func (d direction) other() direction { return 1 - d }

// plain reports whether a loop can serve the session.
func (l *loopSession) plain() bool {
	s := l.settings
	return s.TLS == nil && s.Secure == nil && s.SendProxy == 0 && s.Idle <= 0 && s.Rate == 0 &&
		!contains(s.AcceptProxy, l.peer.Addr())
}

// begin connects to an endpoint.
func (l *loopSession) begin() {
	if !l.charge(l.peer.Addr()) {
		sock.ResetOnClose(l.ends[toServer].fd)
		l.close()
		return
	}
	e, err := l.settings.Pool.Acquire(l.peer.Addr())
	if err != nil { // the goroutine fails in the same way, and logs it
		l.handOff(toServer, nil)
		return
	}
	l.dialing = &pendingDial{endpoint: e, since: l.born}
	server := &l.ends[toClient]
	if server.fd, err = sock.Open(e.Addr, l.acceptLoop.front.room.Crowded()); err == nil {
		err = sock.NoDelay(server.fd)
	}
	waiting := false
	if err == nil {
		waiting, err = sock.Connect(server.fd, e.Addr)
	}
	if err != nil {
		l.fail(err)
		return
	}
	mode := loop.Stream
	if waiting {
		mode = loop.Connecting
	}
	server.handle, err = l.acceptLoop.loop.Watch(server.fd, mode, server)
	limit := l.settings.Dial
	switch {
	case err != nil, waiting && limit > 0 && limit < connectAge+loop.Tick: // a tick comes too late for the time limit
		l.handOff(toServer, nil)
	case !waiting:
		l.pass()
	}
}

// fail hands the session off after a failed dial, so that a goroutine tries another endpoint.
func (l *loopSession) fail(err error) {
	l.dialing.err = err
	server := &l.ends[toClient]
	l.acceptLoop.loop.Forget(server.handle)
	server.handle = loop.Handle{}
	if server.fd >= 0 {
		_ = unix.Close(server.fd)
		server.fd = -1
	}
	l.handOff(toServer, nil)
}

// pass begins to pass bytes on.
func (l *loopSession) pass() {
	l.dialing.endpoint.Succeeded()
	l.endpoint, l.dialing, l.passing = l.dialing.endpoint, nil, true
	l.connected(l.endpoint.Addr)
	// The client's first bytes are read before its socket is watched, so that the loop does not report them again.
	client := &l.ends[toServer]
	client.move(false)
	if !l.passing || client.ended {
		return
	}
	var err error
	if client.handle, err = l.acceptLoop.loop.Watch(client.fd, loop.Stream, client); err != nil {
		l.handOff(toServer, nil)
	}
}

// Ready implements loop.Watcher.
func (s *side) Ready(e loop.Events) {
	l := s.session
	switch {
	case l.passing:
		if e.Readable() && !s.ended {
			s.move(e.Last())
		}
	case s.direction == toClient:
		waiting, err := sock.Connect(s.fd, l.dialing.endpoint.Addr)
		switch {
		case err != nil:
			l.fail(err)
		case !waiting:
			l.pass()
			if l.passing && e.Readable() { // the endpoint may have sent first
				s.move(e.Last())
			}
		}
	}
}

// move reads bytes and passes them on until there are none. Without all it stops at a read that does not fill the
// buffer: the loop reports bytes that come later.
func (s *side) move(all bool) {
	l := s.session
	buffer, to := l.acceptLoop.loop.Buffer(), &l.ends[s.direction.other()]
	for l.passing {
		n, err := sock.Read(s.fd, buffer)
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
		written, err := sock.Write(to.fd, buffer[:n])
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			to.tear(os.NewSyscallError("write", err))
			return
		}
		l.front.metrics.bytes(s.direction, int64(written))
		l.outcome.bytes[s.direction] += int64(written)
		l.lease.Touch()
		if l.moved += n; written < n || l.moved > loopBytes {
			l.handOff(s.direction, buffer[written:n])
			return
		}
		if n < len(buffer) && !all {
			return
		}
	}
}

// end passes the end of a direction on as a half-close, and closes both sockets when both directions have ended.
func (s *side) end() {
	l := s.session
	back := &l.ends[s.direction.other()]
	if !back.ended { // a socket that has sent its FIN was not written to since
		if err := sock.Ended(s.fd); err != nil {
			s.tear(err)
			return
		}
	}
	s.ended = true
	if back.ended {
		l.close()
		return
	}
	// ENOTCONN: the other connection was reset, and may still have bytes to be read.
	if err := unix.Shutdown(back.fd, unix.SHUT_WR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		back.tear(os.NewSyscallError("shutdown", err))
	}
}

// tear ends a session after an error of one socket, and resets the other connection.
func (s *side) tear(err error) {
	l := s.session
	if l.broken(err) {
		sock.ResetOnClose(l.ends[s.direction.other()].fd)
		if !errors.Is(err, unix.ECONNRESET) { // s was not reset by its peer
			sock.ResetOnClose(s.fd)
		}
	}
	l.close()
}

// close ends the session.
func (l *loopSession) close() {
	for i := range l.ends {
		s := &l.ends[i]
		l.acceptLoop.loop.Forget(s.handle)
		if s.fd >= 0 {
			_ = unix.Close(s.fd)
			s.fd = -1
		}
	}
	if l.endpoint != nil {
		l.endpoint.Release()
	}
	l.passing = false
	l.acceptLoop.sessions.Remove(&l.byAge)
	l.front.remove(&l.session)
}

// handOff gives the session to goroutines, with the bytes of one direction that were read and not yet written.
func (l *loopSession) handOff(of direction, rest []byte) {
	l.acceptLoop.sessions.Remove(&l.byAge)
	for i := range l.ends {
		l.acceptLoop.loop.Release(l.ends[i].fd, l.ends[i].handle)
		l.progress[i].ended = l.ends[i].ended
	}
	l.progress[of].rest = slices.Clone(rest)
	passing := l.passing
	l.passing = false
	client, server := l.ends[toServer].fd, l.ends[toClient].fd
	var err error
	l.mu.Lock()
	if l.client, err = sock.NewSocket(client); err == nil {
		switch {
		case passing:
			l.server, err = sock.NewSocket(server)
		case l.dialing != nil:
			l.dialing.fd = server
			l.pendingDial = l.dialing
		}
	}
	l.mu.Unlock()
	if err != nil { // os.NewFile refuses only an invalid descriptor
		l.front.log.Error("failed to take over connection", "error", err)
		l.front.remove(&l.session)
		return
	}
	go l.runOutside(passing)
}

// runOutside runs the session in goroutines, after the loop has handed it off.
func (l *loopSession) runOutside(passing bool) {
	defer l.front.remove(&l.session)
	if !passing {
		l.run(l.acceptLoop.life)
		return
	}
	defer l.client.Close()
	defer l.endpoint.Release()
	defer l.server.Close()
	_ = l.settings.options().SetOn(l.server)
	// By way of the sockets, since they remember that their stream was ended.
	if l.progress[toClient].ended {
		_ = l.client.CloseWrite()
	}
	if l.progress[toServer].ended {
		_ = l.server.CloseWrite()
	}
	l.session.pass(l.client, l.server)
}
