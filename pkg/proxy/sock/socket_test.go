package sock

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// backend serves connections with a function and tells its address.
func backend(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// connect is a connection that the test closes.
func connect(t *testing.T, addr netip.AddrPort) *Socket {
	t.Helper()
	dialed, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	fd, err := Duplicate(dialed.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewSocket(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestEnded tells a stream's end from a torn stream, whether a read or a write got the error.
func TestEnded(t *testing.T) {
	for name, test := range map[string]struct {
		other func(*net.TCPConn)
		write bool // write until ECONNRESET before the read
		want  error
	}{
		"FIN":                 {func(c *net.TCPConn) { _ = c.CloseWrite() }, false, io.EOF},
		"reset":               {func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, false, syscall.ECONNRESET},
		"reset, told before":  {func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, true, syscall.ECONNRESET},
		"FIN, and then reset": {func(c *net.TCPConn) { _ = c.Close() }, false, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			ready := make(chan *net.TCPConn, 1)
			hold := make(chan struct{})
			addr := backend(t, func(c *net.TCPConn) {
				_, _ = c.Write([]byte("x"))
				ready <- c
				<-hold
			})
			defer close(hold)
			c := connect(t, addr)
			n, err := c.Read(make([]byte, 1))
			if n != 1 {
				t.Fatal(err)
			}
			test.other(<-ready)
			if test.write { // until the kernel tells us
				for err == nil {
					_, err = c.Write([]byte("y"))
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Fatal(err)
				}
			}
			if name == "FIN, and then reset" {
				_, _ = c.Write([]byte("y"))
				for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
					var state error
					_ = c.raw.Control(func(fd uintptr) { _, state = unix.Getpeername(int(fd)) })
					if errors.Is(state, unix.ENOTCONN) {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestEndedWhileWeEnd has us end our stream between reading the other's end and asking why it has ended: the connection
// is closed then, but was not reset.
func TestEndedWhileWeEnd(t *testing.T) {
	c := connect(t, backend(t, func(c *net.TCPConn) {
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	}))
	real := c.raw
	c.raw = asked{real, func() {
		c.raw = real
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
		for deadline := time.Now().Add(20 * time.Second); c.RemoteAddr().(*net.TCPAddr).Port > 0; {
			if time.Now().After(deadline) {
				t.Fatal("the connection is not closed")
			}
			time.Sleep(time.Millisecond)
		}
	}}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want an end", err)
	}
}

// asked calls before the kernel is asked for something.
type asked struct {
	syscall.RawConn
	before func()
}

func (a asked) Control(f func(uintptr)) error {
	a.before()
	return a.RawConn.Control(f)
}
