package web

import (
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// shaping says to which client, and by which route's rate, an answer goes. In HTTP/1.1 a connection has it, since one
// answer is written at a time, and below TLS; in HTTP/2 each answer has its own. The zero shaping has no rate.
type shaping struct {
	shaper *shaper.Shaper // in force now, so that answers under way follow the settings
	client netip.Addr     // invalid is the peer of the connection
}

// shape begins with the answer to a request.
func (r *response) shape(req *http.Request, s *Settings, under *conn) {
	switch {
	case s.Shaper == nil && under == nil:
	case under == nil:
		r.shaping, r.done = shaping{s.Shaper, Client(req, s.Trusted)}, req.Context().Done()
	case s.Shaper.On() || len(s.Trusted) > 0:
		under.shaping = shaping{s.Shaper, Client(req, s.Trusted)}
	default: // it costs nothing to find the client when it is asked for
		under.shaping = shaping{shaper: s.Shaper}
	}
}

// take waits until n bytes may be sent.
func (s shaping) take(done <-chan struct{}, n int64, lease *admission.Lease, closed func() bool) error {
	return s.shaper.Take(done, s.client, n, func() error {
		if closed() {
			return net.ErrClosed
		}
		lease.Touch() // it is we who hold the client up
		return nil
	})
}

// take waits until n bytes of an answer may be sent on the connection.
func (c *conn) take(n int64) error {
	if !c.shaping.client.IsValid() {
		c.shaping.client = c.peer.Addr()
	}
	return c.shaping.take(nil, n, &c.lease, c.lost)
}

// write writes in pieces, each when it may be sent.
func (s *shaping) write(b []byte, take func(int64) error, write func([]byte) (int, error)) (total int, err error) {
	for total < len(b) {
		n := s.shaper.Piece(int64(len(b) - total))
		if err := take(n); err != nil {
			return total, err
		}
		written, err := write(b[total : total+int(n)])
		total += written
		if err != nil {
			s.shaper.Return(s.client, n-int64(written))
			return total, err
		}
	}
	return total, nil
}

// writeShaped is Write for a route with a rate.
func (c *conn) writeShaped(b []byte) (int, error) { return c.shaping.write(b, c.take, c.write) }

// shapedPiece is how much of a file's next n bytes may be sent now. It waits for some of them.
func (c *conn) shapedPiece(n int64) (int64, error) {
	n = c.shaping.shaper.Piece(n)
	return n, c.take(n)
}

// send writes to the client, by the route's rate where the connection does not see to that.
func (r *response) send(b []byte) (int, error) {
	if r.shaping.shaper.On() {
		return r.writeShaped(b)
	}
	return r.ResponseWriter.Write(b)
}

func (r *response) writeShaped(b []byte) (int, error) {
	take := func(n int64) error { return r.shaping.take(r.done, n, &r.share.stream, never) }
	return r.shaping.write(b, take, r.ResponseWriter.Write)
}

func never() bool { return false }

// copyShared is ReadFrom for an answer in HTTP/2: the rate may come, and go, while it is under way.
func (r *response) copyShared(source io.Reader) (total int64, err error) {
	buffer := sock.Borrow()
	defer buffer.Return()
	return io.CopyBuffer(writerFunc(r.send), struct{ io.Reader }{source}, buffer[:])
}

// writerFunc is a function that writes.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
