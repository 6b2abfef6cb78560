package web

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// filePiece of a file goes to the kernel at once. Between two, deadline, counters and the lease's progress move.
	// A slow machine takes one in less time than it would be taken for one that does not get on.
	filePiece = 256 << 10
	// corkFrom is how long a file has to be to be sent in full packets only. Otherwise sendfile(2) sends a short packet
	// after every 64 KiB, and TLS after every record, which costs a tenth more of processor time and more. For a shorter
	// file it does not pay for its two system calls.
	corkFrom = 256 << 10
)

// ReadFrom implements io.ReaderFrom: files leave by sendfile(2), in pieces.
func (c *conn) ReadFrom(r io.Reader) (total int64, err error) {
	limited, ok := r.(*io.LimitedReader)
	file, places := (*os.File)(nil), sock.Places(nil)
	if ok {
		file, places = fileOf(limited.R)
	}
	if file == nil {
		buffer := sock.Borrow()
		defer buffer.Return()
		return io.CopyBuffer(struct{ io.Writer }{c}, r, buffer[:])
	}
	begin := int64(-1)
	if isFile(r) {
		begin = position(file)
		c.lengthen(nil)
		_ = c.socket.Cork(true)
		defer func() { _ = c.socket.Cork(false) }()
	}
	for limited.N > 0 {
		piece := &io.LimitedReader{R: limited.R, N: min(limited.N, filePiece)}
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
		n, err := c.sendPiece(file, piece, places)
		total += n
		limited.N -= n
		c.listener.metrics.bytesOut(n)
		c.answered(n)
		if shaped && n < want {
			c.shaping.shaper.Return(c.shaping.client, want-n)
		}
		// Without sendfile(2) what was read and not written is lost.
		if c.slow(n, err) && begin >= 0 && position(file) == begin+total {
			continue
		}
		if err != nil || n < want {
			return total, err
		}
	}
	return total, nil
}

// sendPiece sends a piece of a file: by sendfile(2), where the file has it.
func (c *conn) sendPiece(file *os.File, piece *io.LimitedReader, places sock.Places) (int64, error) {
	if places != nil {
		places = disk{places, c}
	}
	total, err := c.socket.SendFile(file, piece.N, places)
	if !errors.Is(err, errors.ErrUnsupported) {
		return total, opError("sendfile", err)
	}
	piece.N -= total
	buffer := sock.Borrow()
	defer buffer.Return()
	n, err := io.CopyBuffer(struct{ io.Writer }{c.socket}, piece, buffer[:])
	return total + n, err
}

// position is how far a file has been read; -1 where that is not to be known.
func position(file *os.File) int64 {
	at, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return -1
	}
	return at
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

// disk has the places of a file that is sent to a client, who is not slow while the disk is.
type disk struct {
	sock.Places
	client *conn
}

// Wait implements sock.Places.
func (d disk) Wait() error {
	err := d.Places.Wait()
	if err == nil && d.client.stall.most > 0 {
		d.client.stall.armed = time.Time{}
		err = d.client.arm()
	}
	return err
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

// below is the key of the conn in its requests' contexts; below TLS, where there is.
type below struct{}

func withBelow(ctx context.Context, c net.Conn) context.Context {
	if under := connBelow(c); under != nil {
		return context.WithValue(ctx, below{}, under)
	}
	return ctx
}
