package web

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A client that takes an answer slowly is served on, also where the kernel took nothing more of a write until its deadline:
// it has room for more only when a part of its buffer is free. A client that takes nothing is not.
func TestSlowReaderIsNotStalled(t *testing.T) {
	const most, piece = 800 * time.Millisecond, 128 << 10
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	fd, err := sock.Duplicate(server.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	socket, err := sock.NewSocket(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	c := &stalling{wire: wire{socket: socket}, stall: most}
	fill := func() { // the kernel's buffers; a deadline could have passed before anything was tried
		t.Helper()
		for n, err := 1, error(nil); n > 0; time.Sleep(10 * time.Millisecond) {
			for n = 0; err == nil; n++ {
				_, err = unix.Write(fd, make([]byte, 64<<10))
			}
			if n--; !errors.Is(err, unix.EAGAIN) {
				t.Fatal(err)
			}
			err = nil
		}
	}
	fill()
	if err := c.arm(); err != nil {
		t.Fatal(err)
	}
	waits := func() bool { // as a write of which the kernel took nothing
		time.Sleep(time.Until(c.due))
		return c.mayGoOn(0, os.ErrDeadlineExceeded)
	}
	for begun := time.Now(); time.Since(begun) < 3*most; {
		if _, err := io.CopyN(io.Discard, client, piece); err != nil {
			t.Fatal(err)
		}
		if !waits() {
			t.Fatalf("cut after %s, although the client takes something", time.Since(begun))
		}
		fill() // they hold less than the client takes in all
	}
	begun := c.moved // its acknowledgements come when a good part of its buffer is free
	for looks := 0; waits(); looks++ {
		if looks > 3*stallLooks {
			t.Fatalf("a client that takes nothing is waited for")
		}
	}
	if waited := time.Since(begun); waited < most {
		t.Errorf("a client that takes nothing is cut after %s", waited)
	}
	if c.mayGoOn(0, io.ErrClosedPipe) {
		t.Error("a broken connection is waited for")
	}
}
