package http1

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A request counts as not received only if the endpoint had ended its side before anything of it came.
func TestRequestThatWasNotReceived(t *testing.T) {
	const request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"
	for name, test := range map[string]struct {
		before, after func(*net.TCPConn) // the request is sent
		want          bool
	}{
		"closed before": {before: func(c *net.TCPConn) { _ = c.Close() }, want: true},
		"half-closed before": {before: func(c *net.TCPConn) { _ = c.CloseWrite() }, after: func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, len(request)))
			_ = c.Close() // acknowledges what was read
		}},
		"read, then closed": {after: func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, len(request)))
			_ = c.Close()
		}},
		"not read, then closed": {after: func(c *net.TCPConn) { _ = c.Close() }},
		"read, then reset": {after: func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, len(request)))
			_ = c.SetLinger(0)
			_ = c.Close()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			addr := listener.Addr().(*net.TCPAddr).AddrPort()
			fd := connected(t, addr)
			defer unix.Close(fd)
			endpoint, err := listener.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer endpoint.Close()
			if test.before != nil {
				test.before(endpoint)
				testwait.Until(t, "its end comes", func() bool { n, err := sock.Peek(fd); return n == 0 && err == nil })
			}
			n, err := sock.Write(fd, []byte(request))
			if n != len(request) {
				t.Fatalf("wrote %d bytes: %v", n, err)
			}
			if test.after != nil {
				test.after(endpoint)
			}
			testwait.Until(t, "an end comes", func() bool { _, err := sock.Peek(fd); return !errors.Is(err, unix.EAGAIN) })
			c := &Conn{exchange: &Exchange{sent: n}, upstream: &upstream{socket: socket{fd: fd}}}
			if got := c.unreceived(); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func connected(t *testing.T, addr netip.AddrPort) (fd int) {
	t.Helper()
	fd, err := sock.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	testwait.Success(t, "it connects", func() error {
		waiting, err := sock.Connect(fd, addr)
		if waiting {
			err = unix.EINPROGRESS
		}
		return err
	})
	return fd
}
