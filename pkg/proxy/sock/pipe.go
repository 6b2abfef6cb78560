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

// Pipe carries bytes from one socket to another by splice(2), which waits for neither.
type Pipe struct {
	// Held is how many bytes are in the pipe.
	Held int

	read, write int
}

// NewPipe makes an empty pipe. It fails where the kernel gives a small one only.
func NewPipe() (*Pipe, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	p := &Pipe{read: ends[0], write: ends[1]}
	size, err := unix.FcntlInt(uintptr(p.read), unix.F_SETPIPE_SZ, PipeSize)
	if err != nil { // a smaller one does, too
		size, err = unix.FcntlInt(uintptr(p.read), unix.F_GETPIPE_SZ, 0)
	}
	if err == nil && size < pipeLeast {
		err = unix.ENOBUFS
	}
	if err != nil {
		p.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return p, nil
}

// Close closes both descriptors.
func (p *Pipe) Close() {
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// Fill moves at most so many bytes from a socket into the pipe, which must be empty. n is 0 at the end of the stream.
func (p *Pipe) Fill(socket, most int) (n int, err error) {
	n, err = splice(socket, p.write, most)
	p.Held += n
	return n, err
}

// Drain moves bytes from the pipe to a socket.
func (p *Pipe) Drain(socket int) (n int, err error) {
	n, err = splice(p.read, socket, p.Held)
	p.Held -= n
	return n, err
}

// splice is splice(2), repeated after EINTR; n is 0 on error.
func splice(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, spliceFlags)
		if !errors.Is(err, unix.EINTR) {
			return int(max(n, 0)), os.NewSyscallError("splice", err)
		}
	}
}
