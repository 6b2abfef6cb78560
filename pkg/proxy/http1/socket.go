package http1

import (
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// socket is a client's or an endpoint's connection in the loop.
//
// The loop reports each change once (EPOLLET). So an owner that was told of bytes has to read until a read does not
// fill its buffer: what comes later is reported again. Behind a FIN, an error or an urgent byte nothing more is
// reported: then reads go on until the end or EAGAIN. Field more is that rule: as long as it is true, the socket has to
// be read before its owner may wait for an event. The same holds for writing: an owner waits only after EAGAIN.
type socket struct {
	fd     int
	handle loop.Handle
	more   bool // there may be bytes, or an end, of which the loop will not tell again
	last   bool // the loop has told of the end of the stream, an error, or an urgent byte
	writes bool // the loop also tells when the socket takes bytes again
}

// watched reports whether the loop tells of the socket's events.
func (s *socket) watched() bool { return s.handle != (loop.Handle{}) }

// watch has the loop tell w when there is something to read.
func (s *socket) watch(l *loop.Loop, w loop.Watcher) (err error) {
	if !s.watched() {
		s.handle, err = l.Watch(s.fd, loop.Stream, w)
	}
	return err
}

// watchWrites has the loop tell w also when the socket takes bytes again, or has connected.
func (s *socket) watchWrites(l *loop.Loop, w loop.Watcher) (err error) {
	if s.writes {
		return nil
	}
	l.Release(s.fd, s.handle)
	s.writes = true
	s.handle, err = l.Watch(s.fd, loop.Writes, w)
	return err
}

// note takes note of an event.
func (s *socket) note(e loop.Events) {
	s.last = s.last || e.Last()
	s.more = s.more || e.Readable()
}

// read reads once. n is 0 at the end and on error; EAGAIN is that nothing has come.
func (s *socket) read(b []byte) (n int, err error) {
	n, err = sock.Read(s.fd, b)
	s.more = n == len(b) || n > 0 && s.last
	return n, err
}

// reset reports whether the connection was reset, or has timed out.
func (s *socket) reset() bool { return sock.Disconnected(s.fd) }

// close closes the descriptor, and with it the loop's watch.
func (s *socket) close(l *loop.Loop) {
	l.Forget(s.handle)
	_ = unix.Close(s.fd)
}
