package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// When a client resets while both directions are in use, the kernel reports the reset to only one of them, and an end
// to the other. The endpoint must not take that for an end of the client's stream.
func TestResetWhileStalled(t *testing.T) {
	saw, stalled := make(chan error, 1), make(chan struct{}, 1)
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		// More than all buffers hold, so that the direction to the client waits. This test must not write when the reset
		// comes, or the kernel would report the reset to its write.
		_ = conn.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = conn.Write(make([]byte, 32<<20))
		stalled <- struct{}{}
		_, err := io.Copy(io.Discard, conn)
		saw <- err
	}))
	for i := range 50 {
		conn := r.dial(t)
		if _, err := conn.Write([]byte("part")); err != nil {
			t.Fatal(err)
		}
		<-stalled
		_ = conn.SetLinger(0)
		_ = conn.Close()
		if err := <-saw; err == nil {
			t.Fatalf("connection %d: the endpoint saw a clean end of a torn stream", i)
		}
	}
}

// A read ends at an urgent byte (RFC 6093), though there are bytes behind it, which the kernel does not report again.
func TestUrgent(t *testing.T) {
	r := start(t, Settings{}, backend(t, echo))
	conn := r.dial(t)
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	_, _ = conn.Write([]byte("a"))
	expect("a")
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	for _, l := range r.config.Loops.Loops() { // so that all bytes are there when the loop reads
		l.Do(func() { <-hold })
	}
	_ = raw.Control(func(fd uintptr) { err = unix.Send(int(fd), []byte("b!"), unix.MSG_OOB) })
	if _, failure := conn.Write([]byte("c")); err != nil || failure != nil {
		t.Fatal(err, failure)
	}
	close(hold)
	expect("bc")
}

// An endpoint that has said all it wants is gone, and resets its connection when the client says something more: what
// the client has not taken by then still gets to it.
func TestEndpointResetBehindItsEnd(t *testing.T) {
	want := 64 << 10
	closed := make(chan struct{})
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		defer close(closed)
		_, _ = conn.Write(make([]byte, want))
		_ = conn.Close()
	}))
	conn := r.dial(t)
	_ = conn.SetReadBuffer(1)
	<-closed
	time.Sleep(50 * time.Millisecond) // until the end has been passed on, as far as it goes
	_, _ = conn.Write([]byte("x"))
	time.Sleep(50 * time.Millisecond) // until the endpoint's reset has come
	if got, err := io.ReadAll(conn); err != nil || len(got) != want {
		t.Errorf("got %d bytes of %d, %v", len(got), want, err)
	}
}
