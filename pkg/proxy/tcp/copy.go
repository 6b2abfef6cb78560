package tcp

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// direction is the direction of a copy.
type direction uint8

const (
	toServer direction = iota
	toClient
)

const (
	// spliceAfter is after how many bytes without a pause a direction is bulk, and copied by splice(2). For fewer it
	// does not pay to hold a pipe: two descriptors, and kernel memory that is bounded for a process that is not root.
	spliceAfter = 256 << 10
	// splicePause is how long a bulk direction may be silent before it gives its pipe back.
	splicePause = time.Second
)

// copier copies one direction of a session.
type copier struct {
	session   *session
	dst       stream
	src       stream
	direction direction
	bulk      int // bytes since the last pause
	passed    int // bytes by TLS since its buffers were last sized
	buffers   sock.StreamBuffers
	bound     bool // the endpoint's receive buffer has a bound
}

// finish writes the bytes that the loop has read and not written.
func (c *copier) finish(rest []byte) error {
	if len(rest) == 0 {
		return nil
	}
	if err := c.share(len(rest)); err != nil {
		return err
	}
	n, err := c.dst.Write(rest)
	c.count(int64(n))
	return err
}

// copy moves bytes until the source ends (nil) or something fails.
func (c *copier) copy() error {
	defer c.resize(sock.Small)
	src, plain := c.src.(*sock.Socket)
	dst, _ := c.dst.(*sock.Socket)
	for {
		if plain && dst != nil && c.bulk >= spliceAfter {
			if done, err := c.splice(dst, src); done || err != nil {
				return err
			}
		}
		if err := c.arm(); err != nil {
			return err
		}
		var n int
		var err error
		if plain {
			n, err = c.once(src)
		} else {
			n, err = c.record()
		}
		c.count(int64(n))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && c.session.alive():
			continue
		case err != nil || n == 0:
			return err
		}
	}
}

// once waits until the source has bytes and writes them, and returns how many were written. It waits without a buffer.
func (c *copier) once(src *sock.Socket) (int, error) {
	buffer, n, waited, err := src.ReadLate()
	if buffer != nil {
		defer buffer.Return()
	}
	if err != nil || n == 0 {
		return 0, err
	}
	if waited {
		c.bulk = 0
	}
	c.bulk += n
	if err := c.share(n); err != nil {
		return 0, err
	}
	return c.dst.Write(buffer[:n])
}

// record waits for bytes of a TLS stream and writes them. It holds a buffer while it waits: only TLS knows whether it
// has bytes of the last record left.
func (c *copier) record() (int, error) {
	buffer := sock.Borrow()
	defer buffer.Return()
	n, err := c.src.Read(buffer[:])
	if n > 0 {
		if c.passed += n; c.passed >= spliceAfter {
			c.passed = 0
			c.resize(sock.Largest)
		}
		if err := c.share(n); err != nil {
			return 0, err
		}
		return c.dst.Write(buffer[:n])
	}
	if errors.Is(err, io.EOF) {
		return 0, nil
	}
	return 0, err
}

// arm sets the idle timeout, where there is one.
func (c *copier) arm() error {
	if c.session.settings.Idle <= 0 {
		return nil
	}
	return c.src.SetReadDeadline(c.session.lastMoved().Add(c.session.settings.Idle))
}

func (c *copier) count(n int64) {
	if n <= 0 {
		return
	}
	c.session.front.metrics.bytes(c.direction, n)
	c.session.outcome.bytes[c.direction] += n
	c.session.lease.Touch()
	if c.session.settings.Idle > 0 {
		c.session.moveNow()
	}
}
