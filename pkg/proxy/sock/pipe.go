package sock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// PipeSize is what a pipe is asked to hold, in bytes.
	PipeSize = 1 << 20
	// pipeLeast is the smallest pipe worth splicing through. A user above pipe-user-pages-soft (pipe(7)) gets pipes of
	// two pages.
	pipeLeast = 64 << 10
)

// Pipe carries bytes from one socket to another by splice(2).
type Pipe struct{ read, write int }

// NewPipe makes an empty pipe. It fails where the kernel gives a small one only.
func NewPipe() (Pipe, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return Pipe{}, os.NewSyscallError("pipe2", err)
	}
	p := Pipe{ends[0], ends[1]}
	size, err := unix.FcntlInt(uintptr(p.read), unix.F_SETPIPE_SZ, PipeSize)
	if err != nil { // a smaller one does, too
		size, err = unix.FcntlInt(uintptr(p.read), unix.F_GETPIPE_SZ, 0)
	}
	if err == nil && size < pipeLeast {
		err = unix.ENOBUFS
	}
	if err != nil {
		p.Close()
		return Pipe{}, os.NewSyscallError("fcntl", err)
	}
	return p, nil
}

// Close closes both descriptors.
func (p Pipe) Close() {
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// Fill waits for bytes and moves at most `most` of them into the pipe, which must be empty. n is 0 at the end of the
// stream.
func (p Pipe) Fill(src *Socket, most int) (n int64, err error) {
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
	return max(n, 0), os.NewSyscallError("splice", err) // splice(2) returns -1 with an error
}

// Drain gives the n bytes in the pipe to the destination, and counts them as they go.
func (p Pipe) Drain(dst *Socket, n int64, count func(int64)) (err error) {
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
		if moved > 0 { // -1 with an error
			n -= moved
			count(moved)
		}
	}
	return os.NewSyscallError("splice", err)
}
