package tcp

import (
	"errors"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// splice moves bulk inside the kernel until the source pauses or ends (done).
func (c *copier) splice(dst, src *sock.Socket) (done bool, err error) {
	c.bulk = 0
	p, err := sock.NewPipe()
	if err != nil {
		return false, nil // no descriptors, no kernel memory: user space can do it
	}
	defer p.Close()
	defer c.resize(sock.Small)
	var armed time.Time
	for {
		if now := time.Now(); now.Sub(armed) > splicePause/4 {
			if err := src.SetReadDeadline(now.Add(splicePause)); err != nil {
				return false, err
			}
			armed = now
			c.resize(sock.Largest)
		}
		n, err := p.Fill(src, c.piece(sock.PipeSize))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, src.SetReadDeadline(time.Time{})
		case err != nil || n == 0:
			return err == nil, err
		}
		if err := c.share(int(n)); err != nil {
			return false, err
		}
		if err := p.Drain(dst, n, c.count); err != nil {
			return false, err
		}
	}
}
