package tcp

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is where spliced bytes are between two sockets.
type pipe struct{ read, write int }

func newPipe() (pipe, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, os.NewSyscallError("pipe2", err)
	}
	p := pipe{ends[0], ends[1]}
	size, err := unix.FcntlInt(uintptr(p.read), unix.F_SETPIPE_SZ, spliceSize)
	if err != nil { // a smaller one does, too
		size, err = unix.FcntlInt(uintptr(p.read), unix.F_GETPIPE_SZ, 0)
	}
	if err == nil && size < spliceLeast {
		err = unix.ENOBUFS
	}
	if err != nil {
		p.close()
		return pipe{}, os.NewSyscallError("fcntl", err)
	}
	return p, nil
}

func (p pipe) close() {
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// fill waits until the source has bytes and takes what the pipe, which must be empty, holds of them, and at most so
// many; 0 at its end.
func (p pipe) fill(src *socket, most int) (n int64, err error) {
	failure := src.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Splice(int(fd), nil, p.write, nil, most, spliceFlags)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if failure != nil {
		return 0, src.reason(failure)
	}
	if n == 0 && err == nil {
		return 0, src.ended()
	}
	return n, os.NewSyscallError("splice", err)
}

// drain gives the n bytes in the pipe to the destination, and counts them as they go.
func (p pipe) drain(dst *socket, n int64, count func(int64)) (err error) {
	for n > 0 && err == nil {
		var moved int64
		failure := dst.raw.Write(func(fd uintptr) bool {
			for {
				moved, err = unix.Splice(p.read, nil, int(fd), nil, int(n), spliceFlags)
				if !errors.Is(err, unix.EINTR) {
					return !errors.Is(err, unix.EAGAIN)
				}
			}
		})
		if failure != nil {
			return dst.reason(failure)
		}
		n -= moved
		count(moved)
	}
	return os.NewSyscallError("splice", err)
}

// splice moves bulk inside the kernel until the source pauses or ends (done).
func (c *copier) splice(dst, src *socket) (done bool, err error) {
	c.bulk = 0
	p, err := newPipe()
	if err != nil {
		return false, nil // no descriptors, no kernel memory: user space can do it
	}
	defer p.close()
	defer c.narrow(dst, src)
	var armed time.Time
	for {
		if now := time.Now(); now.Sub(armed) > splicePause/4 {
			if err := src.SetReadDeadline(now.Add(splicePause)); err != nil {
				return false, err
			}
			armed = now
			c.widen(dst, src)
		}
		n, err := p.fill(src, c.piece(spliceSize))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, src.SetReadDeadline(time.Time{})
		case err != nil || n == 0:
			return err == nil, err
		}
		if err := c.share(int(n)); err != nil {
			return false, err
		}
		if err := p.drain(dst, n, c.count); err != nil {
			return false, err
		}
	}
}
