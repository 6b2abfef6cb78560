package tcp

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// direction is the direction of bytes.
type direction uint8

const (
	toServer direction = iota
	toClient
)

const (
	// spliceAfter is after how many bytes without a pause a direction is bulk, and moved by splice(2). For fewer it does
	// not pay to hold a pipe: two descriptors, and kernel memory that is bounded for a process that is not root.
	spliceAfter = 256 << 10
	// splicePause is how long a bulk direction may be silent, give or take a [loop.Tick], before it gives its pipe back.
	splicePause = time.Second
	// resizeEvery is how often it is looked which buffers a bulk direction may have.
	resizeEvery = splicePause / 4
	// turnBytes is how many bytes a direction passes on before the loop serves its other sockets.
	turnBytes = 1 << 20
)

// obstacle is what a direction waits for.
type obstacle uint8

const (
	nothing obstacle = iota // but bytes
	room                    // in the other side's socket
	turns                   // of the loop's other sockets
)

// side is one of a session's sockets, and the direction that reads from it.
type side struct {
	session   *session
	direction direction
	fd        int // below 0 without one
	handle    loop.Handle
	mode      loop.Mode // in which the loop watches the socket
	ended     bool      // its stream has ended, and the half-close was passed on

	waits     obstacle
	rest      []byte        // was read, and is not yet written
	buffer    *sock.Scratch // has the rest while the direction waits; nil otherwise
	pipe      *sock.Pipe    // of a bulk direction
	bulk      int           // bytes since the last pause
	last      time.Time     // when the pipe was filled last
	sized     time.Time     // when the buffers were last sized
	buffers   sock.StreamBuffers
	bufferSet bool // we have set the endpoint's receive buffer: the kernel no longer grows it
}

// other is the session's other side.
func (s *side) other() *side {
	if s.direction == toServer {
		return &s.session.server
	}
	return &s.session.client
}

// watch has the loop report the socket's events, also those of the past.
func (s *side) watch(mode loop.Mode) (err error) {
	l := s.session.in.loop
	l.Release(s.fd, s.handle)
	s.mode = mode
	s.handle, err = l.Watch(s.fd, mode, s)
	return err
}

func (s *side) watched() bool { return s.handle != (loop.Handle{}) }

// Ready implements loop.Watcher.
func (s *side) Ready(e loop.Events) {
	session := s.session
	switch session.state {
	case connecting: // the client's socket is not watched yet
		switch waiting, err := sock.Connect(s.fd, session.endpoint.Addr); {
		case err != nil:
			session.failed(err)
		case !waiting:
			session.connected()
			if session.state == passing && e.Readable() { // the endpoint may have sent first
				s.move(e.Last())
			}
		}
	case passing:
		// Nothing is read from a client that has ended its side, so a reset is looked for here. The endpoint's reset shows
		// at the next write: until then the client may take what came from it.
		if s.ended && s.direction == toServer && e.Last() && sock.Disconnected(s.fd) {
			s.tear(os.NewSyscallError("read", unix.ECONNRESET))
			return
		}
		// What the other direction reads is written to this socket.
		if back := s.other(); back.waits == room && e.Writable() {
			back.resume()
		}
		switch {
		case e.Again():
			s.resume()
		case s.waits == nothing && e.Readable():
			s.move(e.Last())
		}
	}
}

// How far move reads. The loop reports each change once (EPOLLET): of bytes that come after a short read it will tell,
// so move may stop there. It has to read on to EAGAIN or the end, which the loop may have reported already, behind a
// FIN, an error or an urgent byte (loop.Events.Last), and where the direction has waited.
const untilShort, untilEmpty = false, true

// move passes on what has come, until nothing is left or the direction has to wait.
func (s *side) move(toEnd bool) {
	session := s.session
	for moved := 0; session.state == passing && !s.ended; {
		n, most, err := s.take()
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.bulk = 0
			return
		case err != nil:
			s.tear(err)
			return
		case n == 0:
			s.end()
			return
		}
		if !s.give() {
			return
		}
		// In a long stream a short read may mean only that we are faster than the sender; EAGAIN tells that it pauses.
		if s.pipe == nil && n < most && !toEnd && s.bulk < longBytes {
			s.bulk = 0
			return
		}
		if moved += n; moved >= turnBytes {
			s.waits = turns
			session.in.loop.Again(s)
			return
		}
	}
}

// resume goes on after an obstacle.
func (s *side) resume() {
	if s.session.state == passing && s.waits != nothing {
		s.waits = nothing
		if s.give() {
			s.move(untilEmpty)
		}
	}
}

// take reads n bytes from the socket, of no more than most.
func (s *side) take() (n, most int, err error) {
	if s.bulk >= spliceAfter && s.pipe == nil {
		if s.pipe, err = sock.NewPipe(); err != nil { // no descriptors, no kernel memory: user space can do it
			s.pipe, s.bulk = nil, 0
		}
		s.session.in.wantTicks(s.session)
	}
	if s.pipe != nil {
		s.last = s.session.in.loop.Now()
		if s.last.Sub(s.sized) >= resizeEvery {
			s.sized = s.last
			s.resize(sock.FD(s.other().fd), sock.FD(s.fd), sock.Largest)
		}
		most = sock.PipeSize
		n, err = s.pipe.Fill(s.fd, most)
	} else {
		buffer := s.session.in.loop.Buffer()
		most = len(sock.Scratch{})
		n, err = sock.Read(s.fd, buffer[:most])
		s.rest, err = buffer[:n], os.NewSyscallError("read", err)
	}
	s.bulk += n
	return n, most, err
}

// give writes what was read. It reports whether all is written; if not, resume is called later.
func (s *side) give() (done bool) {
	session, to := s.session, s.other()
	for len(s.rest) > 0 || s.pipe != nil && s.pipe.Held > 0 {
		var n int
		var err error
		if len(s.rest) > 0 {
			n, err = sock.Write(to.fd, s.rest)
			s.rest, err = s.rest[n:], os.NewSyscallError("write", err)
		} else {
			n, err = s.pipe.Drain(to.fd)
		}
		if n > 0 {
			session.count(s.direction, n)
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			if to.mode != loop.Writes {
				err = to.watch(loop.Writes)
			} else {
				err = nil
			}
			if err == nil {
				s.wait()
				return false
			}
			to.tear(err)
			return false
		case err != nil:
			to.tear(err)
			return false
		}
	}
	s.drop()
	if s.bulk > longBytes {
		session.setLongOptions()
	}
	return true
}

// wait keeps what was read until resume.
func (s *side) wait() {
	s.waits = room
	if len(s.rest) > 0 && s.buffer == nil {
		s.buffer = sock.Borrow()
		s.rest = s.buffer[:copy(s.buffer[:], s.rest)]
	}
}

// drop gives the buffer back.
func (s *side) drop() {
	s.rest = nil
	if s.buffer != nil {
		s.buffer.Return()
		s.buffer = nil
	}
}

// end passes the end of the direction on as a half-close, and closes the session when both directions have ended.
func (s *side) end() {
	back := s.other()
	// A write may have got the error that the read should have had. Once our FIN is sent there is no write, and a closed
	// connection no longer means a reset.
	if !back.ended {
		if err := sock.EndError(s.fd); err != nil {
			s.tear(err)
			return
		}
	}
	s.ended = true
	s.unpipe()
	if back.ended {
		s.session.close()
		return
	}
	// ENOTCONN: the other connection was reset, and may still have bytes to be read.
	if err := unix.Shutdown(back.fd, unix.SHUT_WR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		back.tear(os.NewSyscallError("shutdown", err))
	}
}

// tear ends the session after an error of the socket.
func (s *side) tear(err error) {
	torn := s.session.noteError(err)
	s.session.end(torn)
}

// close closes the socket, in order or by a reset.
func (s *side) close(byReset bool) {
	s.drop()
	s.unpipe()
	s.session.in.loop.Forget(s.handle)
	s.handle = loop.Handle{}
	if s.fd >= 0 {
		if byReset {
			sock.ResetOnClose(s.fd)
		}
		_ = unix.Close(s.fd)
	}
	s.fd, s.mode = -1, 0
}

// tick does what is due for the direction. It reports whether there is more to wait for.
func (s *side) tick(now time.Time) (again bool) {
	if s.pipe != nil && s.pipe.Held == 0 && now.Sub(s.last) >= splicePause {
		s.unpipe()
	}
	return s.pipe != nil
}

// unpipe closes the pipe and makes the buffers small: the direction is bulk no longer.
func (s *side) unpipe() {
	s.bulk = 0
	if s.pipe != nil {
		s.pipe.Close()
		s.pipe = nil
		s.resize(sock.FD(s.other().fd), sock.FD(s.fd), sock.Small)
	}
}

// resize gives a bulk direction the largest buffers that there is room for, up to most.
func (s *side) resize(dst, src syscall.Conn, most sock.Buffers) {
	size, changed := s.buffers.Resize(&s.session.charge, dst, most)
	// A buffer that was never set may grow to sock.Largest without us.
	if changed && s.direction == toClient && (s.bufferSet || size != sock.Largest) {
		sock.SetReceiveBuffer(src, size)
		s.bufferSet = true
	}
}

// Write implements io.Writer, for what is sent before the first bytes of a direction.
func (s *side) Write(b []byte) (int, error) {
	n, err := sock.Write(s.fd, b)
	return n, os.NewSyscallError("write", err)
}
