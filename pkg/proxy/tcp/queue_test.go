package tcp

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/queue"
)

// dialFrom connects from an address.
func (r running) dialFrom(t *testing.T, from string) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	c, err := dialer.Dial("tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

func await(t *testing.T, q *queue.Queue, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); q.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d machines wait, want %d", q.Waiting(), n)
		}
	}
}

// One machine is served. The next waits with its connection open, a connection that finds the queue full is reset, and
// a machine that resets its connection leaves the queue.
func TestMachinesWaitForTheirTurn(t *testing.T) {
	q := &queue.Queue{}
	q.SetLimits(1, 2)
	r := start(t, Settings{Queue: q, Machines: 1, Drain: time.Second}, backend(t, echo))
	a := r.dialFrom(t, "127.0.0.2")
	if _, err := a.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	gone := r.dialFrom(t, "127.0.0.3")
	await(t, q, 1)
	b := r.dialFrom(t, "127.0.0.4")
	_, _ = b.Write([]byte("b"))
	await(t, q, 2)
	if err := r.refusalFrom("127.0.0.5"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v beyond the queue, want a reset", err)
	}
	_ = gone.SetLinger(0)
	_ = gone.Close()
	await(t, q, 1)
	_ = a.CloseWrite()
	if _, err := io.ReadAll(a); err != nil {
		t.Error(err)
	}
	if _, err := b.Read(make([]byte, 1)); err != nil {
		t.Errorf("the next one got %v", err)
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "queue")); n != 2 {
		t.Errorf("%v connections are counted as refused", n)
	}
	_ = b.Close()
}

// The end of a drain ends the wait.
func TestDrainOfAQueue(t *testing.T) {
	q := &queue.Queue{}
	q.SetLimits(1, 2)
	r := start(t, Settings{Queue: q, Machines: 1, Drain: 200 * time.Millisecond}, backend(t, echo))
	a := r.dialFrom(t, "127.0.0.2")
	_, _ = a.Write([]byte("a"))
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	b := r.dialFrom(t, "127.0.0.3")
	await(t, q, 1)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	if n := q.Waiting(); n != 0 {
		t.Errorf("%d machines wait", n)
	}
}
