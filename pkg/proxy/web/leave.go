package web

import (
	"bytes"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// asked is how far a request has got with its endpoint.
type asked struct {
	early   []byte // of the answer
	unsent  []byte // of the request
	op      string
	failure error // of op
}

// leave gives the connection to a goroutine that goes on at a stage, with what was begun: the endpoint's connection,
// what was read from it, what remains to be written.
func (s *swift) leave(x *express, at stage, begun asked) {
	f, front := s.far, s.hub.front
	s.busy, s.far, s.gone = nil, nil, true
	x.first = s.first
	s.worth = max(s.worth, swiftWorth)
	if at != stageNext { // which is for a line of the log
		s.worth = min(s.worth*leftWorth, mostWorth)
	}
	if s.place >= 0 {
		s.hub.remove(s)
		s.hub.release(s.fd, s.handle)
	}
	if f != nil {
		s.hub.release(f.fd, f.handle)
		f.handle = loop.Handle{}
		begun.early = bytes.Clone(begun.early) // the loop's buffer is not ours for longer
	}
	x.hasty = false
	front.retired.Go(func() {
		s.land(x)
		switch {
		case f != nil:
			x.taken = f.land(begun)
		case at == stageBegun:
			x.taken = taken{fresh: true, dialed: true}
		}
		if at == stageOdd && s.closed.Load() {
			x.size = 0 // nobody is there for an answer
		}
		x.drive(at)
	})
	front.retired.Done()
}

// land makes the client's connection one of the runtime's poller again. Where that fails it is closed, and whoever goes
// on with it finds that.
func (s *swift) land(x *express) {
	c := s.conn
	conn, err := adopt(s.fd, &c.closed)
	if err == nil {
		c.TCPConn, c.stall.armed = conn, time.Time{} // deadlines were the other one's
		// As the listener has them: net has set its own.
		err = conn.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: keepalive, Interval: keepalive / 3, Count: -1,
		})
	}
	if err != nil {
		x.front.log.Warn("failed to take over connection", "error", err)
		c.closed.Store(true)
	}
	// Who closes the connection from here on does so itself; who asked the loop to has left a note.
	if c.inLoop.Store(nil); c.lost() {
		_ = c.Close()
	}
}

// land makes an endpoint's connection one of the runtime's poller.
func (f *far) land(begun asked) taken {
	conn, err := adopt(f.fd, nil)
	if err != nil {
		if f.used {
			err = nil // a kept connection may be lost, there are others
		}
		return taken{err: err, fresh: true}
	}
	t := taken{unsent: begun.unsent}
	var failure error
	if begun.failure != nil {
		failure = &net.OpError{
			Op: begun.op, Net: "tcp", Source: conn.LocalAddr(), Addr: net.TCPAddrFromAddrPort(f.Key().Endpoint()),
			Err: os.NewSyscallError(begun.op, begun.failure),
		}
	}
	if begun.op == opWrite {
		t.err, failure = failure, nil
	}
	t.upstream = newUpstream(conn, f.Key(), begun.early, failure)
	t.upstream.used = f.used
	return t
}

// adopt makes a connection of a descriptor, which it closes. It needs another one for that: where there is none left,
// it waits a little, unless the connection has been closed.
func adopt(fd int, closed interface{ Load() bool }) (*net.TCPConn, error) {
	file := os.NewFile(uintptr(fd), "tcp")
	defer file.Close()
	for tries := 0; ; tries++ {
		conn, err := net.FileConn(file)
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		scarce := errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
		if !scarce || tries == adoptTries || closed != nil && closed.Load() {
			return nil, err
		}
		time.Sleep(adoptPause)
	}
}

// adoptTries of adoptPause each are how long a connection waits for a descriptor.
const (
	adoptTries = 40
	adoptPause = 25 * time.Millisecond
)
