package web

import (
	"io"
	"net"
	"net/http"

	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// An answer goes by the rate of its route. In HTTP/1.1 the connection sees to that, below TLS, since one answer is
// written at a time; in HTTP/2 each answer does.

// setFlow chooses by which rate the answer to a request goes.
func (r *response) setFlow(req *http.Request, s *Settings, under *conn) {
	switch {
	case s.Shaper == nil && under == nil:
	case under == nil:
		r.flow = shaper.Flow{Shaper: s.Shaper, Client: Client(req, s.Trusted), Done: req.Context().Done()}
	case s.Shaper.On() || len(s.Trusted) > 0:
		under.flow = shaper.Flow{Shaper: s.Shaper, Client: Client(req, s.Trusted)}
	default: // shaped finds the client, which is the peer
		under.flow = shaper.Flow{Shaper: s.Shaper}
	}
}

// shaped is the flow of the answer that is under way on the connection.
func (c *conn) shaped() *shaper.Flow {
	if !c.flow.Client.IsValid() {
		c.flow.Client = c.peer.Addr()
	}
	if c.flow.While == nil {
		c.flow.While = func() error {
			if c.lost() {
				return net.ErrClosed
			}
			c.charge.Touch() // it is we who hold the client up
			return nil
		}
	}
	return &c.flow
}

// send writes to the client, by the route's rate where the connection does not see to that.
func (r *response) send(b []byte) (int, error) {
	if r.flow.Shaper.On() && r.flow.While == nil {
		r.flow.While = func() error {
			r.charged.stream.Touch()
			return nil
		}
	}
	return r.flow.Write(r.ResponseWriter, b)
}

// copyShared is ReadFrom for an answer in HTTP/2: the rate may come, and go, while it is under way.
func (r *response) copyShared(source io.Reader) (total int64, err error) {
	buffer := sock.Borrow()
	defer buffer.Return()
	return io.CopyBuffer(writerFunc(r.send), struct{ io.Reader }{source}, buffer[:])
}

// writerFunc is a function that writes.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
