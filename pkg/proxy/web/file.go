package web

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// filePiece of a file goes to the kernel at once. Between two, deadline, counters and the charge's progress move.
	// A slow machine takes one in less time than it would be taken for one that does not get on.
	filePiece = 256 << 10
	// corkFrom is how long a file has to be to be sent in full packets only. Otherwise sendfile(2) sends a short packet
	// after every 64 KiB, and TLS after every record, which costs a tenth more of processor time and more. For a shorter
	// file it does not pay for its two system calls.
	corkFrom = 256 << 10
)

// ReadFrom implements io.ReaderFrom: files leave by sendfile(2), in pieces.
func (c *conn) ReadFrom(r io.Reader) (total int64, err error) {
	if limited, ok := r.(*io.LimitedReader); ok {
		if file, places := fileOf(limited.R); file != nil {
			if total, err = c.sendFile(limited, file, places); !errors.Is(err, errors.ErrUnsupported) {
				return total, opError("sendfile", err)
			}
		}
	}
	buffer := sock.Borrow()
	defer buffer.Return()
	n, err := io.CopyBuffer(struct{ io.Writer }{c}, r, buffer[:])
	return total + n, err
}

// sendFile sends what is left of a file, unless the kernel cannot send it so.
func (c *conn) sendFile(left *io.LimitedReader, file *os.File, places sock.Places) (total int64, err error) {
	if isFile(left) {
		c.lengthen(nil)
		_ = c.socket.Cork(true)
		defer func() { _ = c.socket.Cork(false) }()
	}
	send := func(n int64) (int64, error) { return c.stalling.SendFile(file, n, places) }
	for left.N > 0 {
		piece := min(left.N, filePiece)
		n, err := c.shaped().Pass(piece, send)
		total += n
		left.N -= n
		if err != nil || n < piece {
			return total, err
		}
	}
	return total, nil
}

// isFile is whether what a handler copies is a file, and a long one. A stream must not wait for a full packet.
func isFile(r io.Reader) bool {
	limited, ok := r.(*io.LimitedReader)
	if !ok || limited.N < corkFrom {
		return false
	}
	file, _ := fileOf(limited.R)
	return file != nil
}

// DiskFile may be what a handler copies to a client: a file whose disk may hang.
type DiskFile interface {
	io.Reader
	// OSFile is the file itself, which is read in its places only.
	OSFile() *os.File
	sock.Places
}

// fileOf is the file that a handler copies, with the places in which to read it, if there are such; nil if it is none.
func fileOf(r io.Reader) (*os.File, sock.Places) {
	if f, ok := r.(DiskFile); ok {
		return f.OSFile(), f
	}
	file, _ := r.(*os.File)
	return file, nil
}

// pieces are what a file is read into before TLS: four records.
var pieces = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// copyFile sends a file by way of w, which leads through TLS to the connection. It must not be shared with another
// answer meanwhile, as in HTTP/2.
func (c *conn) copyFile(w io.Writer, file io.Reader) (int64, error) {
	c.lengthen(nil)
	_ = c.socket.Cork(true)
	defer func() { _ = c.socket.Cork(false) }()
	piece := pieces.Get().(*[64 << 10]byte)
	defer pieces.Put(piece)
	return io.CopyBuffer(struct{ io.Writer }{w}, file, piece[:]) // net/http's ReadFrom would take a smaller one
}
