package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/internal/testclock"
)

// Bytes in one direction keep the session from being idle: the other direction passes bytes on later. Waiting takes no
// time.
func TestIdleOneWay(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	r := start(t, Settings{Idle: time.Second}, backend(t, func(conn *net.TCPConn) {
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					_, _ = conn.Write([]byte("x"))
				}
			}
		}()
		text, _ := io.ReadAll(conn)
		close(stop)
		<-ended
		got <- string(text)
	}))
	conn := r.dial(t)
	before := cpu(t)
	for range 35 {
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if took := cpu(t) - before; took > 1500*time.Millisecond {
		t.Errorf("waiting took %s of the processor", took)
	}
	_, _ = conn.Write([]byte("late"))
	_ = conn.CloseWrite()
	if text := <-got; text != "late" {
		t.Errorf("the endpoint got %q of what came after the pause", text)
	}
	if n := testutil.ToFloat64(r.aborted.WithLabelValues("r", "error")); n != 0 {
		t.Errorf("%v errors were counted", n)
	}
}

// A client that reads slowly is not idle, though its socket takes no more bytes from us for long.
func TestIdleSlowReader(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	r := start(t, Settings{Idle: 2 * time.Second}, backend(t, func(conn *net.TCPConn) {
		_, _ = conn.Write(make([]byte, size))
		_, _ = io.Copy(io.Discard, conn)
	}))
	conn := r.dial(t)
	_ = conn.SetReadBuffer(128 << 10)
	total := 0
	for began := time.Now(); time.Since(began) < 4*time.Second; time.Sleep(100 * time.Millisecond) {
		n, err := conn.Read(make([]byte, 32<<10))
		if total += n; err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	rest, err := io.Copy(io.Discard, conn) // until the client is idle
	if total += int(rest); total != size || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %d bytes, %v", total, err)
	}
}

func cpu(t *testing.T) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// A session without bytes ends after its idle timeout, although the clock is set back meanwhile.
func TestClockSetBackKeepsNoIdleSession(t *testing.T) {
	testclock.Add(t, 0)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo) // in a virtual machine it is down
	}
	if err != nil {
		t.Fatal(err)
	}
	var settings Settings
	settings.Idle = time.Second
	r := start(t, settings, backend(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }))
	conn := r.dial(t)
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	testclock.Add(t, -time.Hour)
	begun := time.Now()
	_ = conn.SetReadDeadline(begun.Add(time.Minute))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after %v the session lives, %v", time.Since(begun), err)
	}
}
