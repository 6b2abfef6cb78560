package sock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Places bound how many threads wait for the disk of a file at a time.
type Places interface {
	// Begin returns how many of the file's next n bytes may be read now: all in a place, which End has to leave, or those
	// that are in memory without one. 0 is none: Wait waits for a place.
	Begin(n int64) (now int64, placed bool)
	Wait() error
	End()
}

// SendFile sends at most so many bytes of a file from its position on by sendfile(2), and fewer at the file's end. It
// reads the file in places, unless they are nil, and waits for the socket without one. The error is
// errors.ErrUnsupported where the kernel cannot send this file so.
func (c *Socket) SendFile(file *os.File, most int64, places Places) (sent int64, err error) {
	from, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failure, waited error
	var placed, crowded bool
	leave := func() {
		if placed {
			places.End()
		}
		placed = false
	}
	send := func(in, out int) (done bool) {
		for sent < most {
			now := most - sent
			if places != nil && !placed {
				now, placed = places.Begin(now)
			}
			if crowded = now == 0; crowded {
				return true
			}
			n, err := unix.Sendfile(out, in, nil, int(now))
			leave()
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return false
			case errors.Is(err, unix.EINVAL):
				err = errors.ErrUnsupported
			}
			if err != nil || n == 0 {
				failure = err
				return true
			}
			sent += int64(n)
		}
		return true
	}
	defer leave()
	for {
		crowded = false
		err = from.Control(func(in uintptr) {
			waited = c.raw.Write(func(out uintptr) bool { return send(int(in), int(out)) })
		})
		if !crowded || err != nil || waited != nil {
			return sent, errors.Join(err, c.reason(waited), failure)
		}
		if err := places.Wait(); err != nil {
			return sent, err
		}
		placed = true
	}
}

// Cork has the kernel send nothing but full packets until it is off again (TCP_CORK).
func (c *Socket) Cork(on bool) (err error) {
	cork := options{{unix.IPPROTO_TCP, unix.TCP_CORK, 0}}
	if on {
		cork[0][2] = 1
	}
	failure := c.raw.Control(func(fd uintptr) { err = cork.set(int(fd)) })
	return errors.Join(failure, err)
}
