package web

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// filePiece of a file goes to the kernel at once. Between two, deadline, counters and the lease's progress move.
	// A slow machine takes one in less time than it would be taken for one that does not get on.
	filePiece = 256 << 10
	// corkFrom is how long a file has to be for two more system calls to be worth it.
	corkFrom = 256 << 10
)

// ReadFrom implements io.ReaderFrom, in pieces that net still sees a file in.
func (c *conn) ReadFrom(r io.Reader) (total int64, err error) {
	begin := int64(-1)
	if isFile(r) {
		begin = position(r.(*io.LimitedReader).R)
		c.lengthen(nil)
		if c.cork(true) {
			defer c.cork(false)
		}
	}
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: r, N: 1<<63 - 1}
	}
	piece := &io.LimitedReader{R: limited.R}
	for limited.N > 0 {
		piece.N = min(limited.N, filePiece)
		shaped := c.shaping.shaper.On()
		if shaped {
			if piece.N, err = c.shapedPiece(piece.N); err != nil {
				return total, err
			}
		}
		if err := c.arm(); err != nil {
			return total, err
		}
		c.lease.Touch()
		want := piece.N
		n, err := c.TCPConn.ReadFrom(piece)
		total += n
		limited.N -= n
		c.listener.metrics.bytesOut(n)
		c.answered(n)
		if shaped && n < want {
			c.shaping.shaper.Return(c.shaping.client, want-n)
		}
		// Without sendfile(2), or from anything but a file, what was read and not written is lost.
		if c.slow(n, err) && begin >= 0 && position(limited.R) == begin+total {
			continue
		}
		if err != nil || n < want {
			return total, err
		}
	}
	return total, nil
}

// position is how far a file has been read; -1 where that is not to be known.
func position(r io.Reader) int64 {
	if file, ok := r.(*os.File); ok {
		if at, err := file.Seek(0, io.SeekCurrent); err == nil {
			return at
		}
	}
	return -1
}

// isFile is whether what a handler copies is a file, and a long one. A stream must not wait for a full packet.
func isFile(r io.Reader) bool {
	limited, ok := r.(*io.LimitedReader)
	if !ok || limited.N < corkFrom {
		return false
	}
	_, ok = limited.R.(*os.File)
	return ok
}

// cork has the kernel send nothing but full packets while a file is on its way (TCP_CORK). Without it sendfile(2)
// sends what it has after every 64 KiB, and TLS every record, which costs a tenth more of processor time and more.
func (c *conn) cork(on bool) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	value := 0
	if on {
		value = 1
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, value) })
	return failed == nil && err == nil
}

// pieces are what a file is read into before TLS: four records.
var pieces = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// copyFile sends a file by way of w, which leads through TLS to the connection. It must not be shared with another
// answer meanwhile, as in HTTP/2.
func (c *conn) copyFile(w io.Writer, file io.Reader) (int64, error) {
	c.lengthen(nil)
	if c.cork(true) {
		defer c.cork(false)
	}
	piece := pieces.Get().(*[64 << 10]byte)
	defer pieces.Put(piece)
	return io.CopyBuffer(struct{ io.Writer }{w}, file, piece[:]) // net/http's ReadFrom would take a smaller one
}

// below is the key of the conn in its requests' contexts; below TLS, where there is.
type below struct{}

func withBelow(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		return context.WithValue(ctx, below{}, secure.NetConn())
	}
	return ctx
}
