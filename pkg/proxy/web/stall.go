package web

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// deadlineStep spares moving the write deadline for each of many small writes.
	deadlineStep = time.Second
	// stallLooks is how often it is looked whether a client takes something, within the time in which it must.
	stallLooks = 4
)

// stalling is a wire that bounds how long the client may take nothing of what is written to it. It belongs to the
// goroutine that writes, but for gaveUp.
type stalling struct {
	wire
	stall  time.Duration // 0: no bound
	armed  time.Time     // when the write deadline was last moved
	due    time.Time     // the write deadline
	moved  time.Time     // when the client was last known to take something
	taken  uint64        // bytes that the client had acknowledged then
	gaveUp atomic.Bool   // the client took nothing for stall

	disarmed atomic.Bool // somebody else has removed the write deadline
}

// Write writes all of b, if the client gets on.
func (s *stalling) Write(b []byte) (total int, err error) {
	for {
		if err := s.arm(); err != nil {
			return total, err
		}
		n, err := s.wire.Write(b[total:])
		total += n
		if !s.mayGoOn(int64(n), err) {
			return total, err
		}
	}
}

// SendFile is Write for a part of a file. It sends fewer bytes than its limit only at the file's end.
func (s *stalling) SendFile(file *os.File, most int64, places sock.Places) (total int64, err error) {
	if places != nil {
		places = disk{places, s}
	}
	for {
		if err := s.arm(); err != nil {
			return total, err
		}
		n, err := s.wire.SendFile(file, most-total, places)
		total += n
		if !s.mayGoOn(n, err) {
			return total, err
		}
	}
}

// disk has the places of a file that is sent to a client, who is not slow while the disk is.
type disk struct {
	sock.Places
	client *stalling
}

// Wait implements sock.Places.
func (d disk) Wait() error {
	err := d.Places.Wait()
	if err == nil && d.client.stall > 0 {
		d.client.armed = time.Time{}
		err = d.client.arm()
	}
	return err
}

// arm gives the client the time that it may take nothing in.
func (s *stalling) arm() error {
	if s.stall <= 0 {
		return nil
	}
	now := time.Now()
	if now.Sub(s.armed) < min(deadlineStep, s.stall/8) && !s.disarmed.Load() {
		return nil
	}
	s.disarmed.Store(false)
	s.armed, s.moved = now, now
	return s.await(now, s.stall/stallLooks)
}

// disarm notes a write deadline that was set from outside. net/http's server removes it behind a TLS handshake: the
// next write has to set one, however soon it comes, or a client that takes nothing of it would never be given up.
func (s *stalling) disarm(deadline time.Time) {
	if deadline.IsZero() {
		s.disarmed.Store(true)
	}
}

func (s *stalling) await(now time.Time, wait time.Duration) error {
	s.due = now.Add(wait)
	return s.socket.SetWriteDeadline(s.due)
}

// mayGoOn reports whether a write that ended at its deadline may go on, since the client may still take something in
// time. The bytes that the kernel took are no measure. It has room for more when a part of its buffer is free, which
// may take a slow client longer than it may take nothing; so the client's acknowledgements count as well.
func (s *stalling) mayGoOn(n int64, err error) bool {
	if s.stall <= 0 || err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	now := time.Now()
	if now.Before(s.due) { // another's deadline, such as TLS's
		return false
	}
	if taken := s.socket.Acked(); n > 0 || taken != s.taken {
		s.moved, s.taken = now, taken
	}
	left := s.stall - now.Sub(s.moved)
	if left <= 0 {
		s.gaveUp.Store(true)
		return false
	}
	s.armed = now
	return s.await(now, min(left, s.stall/stallLooks)) == nil
}
