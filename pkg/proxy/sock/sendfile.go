package sock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// SendFile sends at most so many bytes of a file from its position on by sendfile(2), and fewer at the file's end. The
// error is errors.ErrUnsupported where the kernel cannot send this file so.
func (c *Socket) SendFile(file *os.File, most int64) (sent int64, err error) {
	from, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failure, waited error
	send := func(in, out int) (done bool) {
		for sent < most {
			n, err := unix.Sendfile(out, in, nil, int(most-sent))
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
	err = from.Control(func(in uintptr) {
		waited = c.raw.Write(func(out uintptr) bool { return send(int(in), int(out)) })
	})
	return sent, errors.Join(err, c.reason(waited), failure)
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
