package web

import (
	"errors"
	"os"
	"time"
)

const (
	// deadlineStep spares moving the write deadline for each of many small writes.
	deadlineStep = time.Second
	// stallLooks is how often it is looked whether a client takes something, within the time in which it must.
	stallLooks = 4
)

// stall bounds how long a client may take nothing of what is written to it. It belongs to whoever writes.
type stall struct {
	most  time.Duration // 0: no bound
	armed time.Time     // when the write deadline was last moved
	due   time.Time     // the write deadline
	moved time.Time     // when the client was last known to take something
	taken uint64        // bytes that the client had acknowledged then
}

// arm gives the client the time that it may take nothing in.
func (c *conn) arm() error {
	if c.stall.most <= 0 {
		return nil
	}
	now := time.Now()
	if now.Sub(c.stall.armed) < min(deadlineStep, c.stall.most/8) {
		return nil
	}
	c.stall.armed, c.stall.moved = now, now
	return c.await(now, c.stall.most/stallLooks)
}

func (c *conn) await(now time.Time, wait time.Duration) error {
	c.stall.due = now.Add(wait)
	return c.socket.SetWriteDeadline(c.stall.due)
}

// slow is whether a write ended at its deadline although the client may still take something in time: it may go on.
// What the kernel took of the write is no measure. It has room for more when a part of its buffer is free, which may
// take a slow client longer than it may take nothing; so the client's acknowledgements count as well.
func (c *conn) slow(n int64, err error) bool {
	s := &c.stall
	now := time.Now()
	if s.most <= 0 || !errors.Is(err, os.ErrDeadlineExceeded) || now.Before(s.due) { // another's deadline, such as TLS's
		return false
	}
	if taken := c.socket.Acked(); n > 0 || taken != s.taken {
		s.moved, s.taken = now, taken
	}
	left := s.most - now.Sub(s.moved)
	if left <= 0 {
		return false
	}
	s.armed = now
	return c.await(now, min(left, s.most/stallLooks)) == nil
}
