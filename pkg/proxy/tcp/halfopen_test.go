package tcp

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A client vanishes silently, like a machine that is switched off. Keepalive finds an idle one, TCP_USER_TIMEOUT one
// that does not acknowledge its answer. The endpoint's connection is closed, and another client may connect.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]bool{"idle": false, "answer under way": true} {
		t.Run(name, func(t *testing.T) {
			client, proxy := nstest.New(t), nstest.New(t)
			nstest.Veth(t, client, "c0", proxy, "p0")
			client.Addr(t, "c0", "192.0.2.1/24")
			proxy.Addr(t, "p0", "192.0.2.2/24")
			gone := make(chan error, 1)
			vanished := make(chan struct{})
			addr := backend(t, func(conn *net.TCPConn) {
				_, _ = io.CopyN(conn, conn, 1)
				<-vanished
				if busy {
					_, _ = conn.Write(make([]byte, 1000))
				}
				_, err := io.Copy(io.Discard, conn)
				gone <- err
			})
			metrics := NewMetrics(prometheus.NewRegistry())
			var f *Front
			group := loops(t)
			proxy.Do(t, func() (err error) {
				f, err = Listen(Config{
					Route: "r", Listen: netip.MustParseAddrPort("192.0.2.2:42113"), Metrics: metrics, Loops: group,
					Options: sock.Options{Keepalive: time.Second, UserTimeout: 3 * time.Second},
					Settings: Settings{
						Pool: endpoint.NewPool(endpoint.Config{Sources: []endpoint.Source{endpoint.Fixed(addr)}}),
					},
				})
				return err
			})
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- f.Serve(ctx) }()
			defer func() {
				cancel()
				if err := <-served; err != nil {
					t.Error(err)
				}
			}()
			var conn net.Conn
			client.Do(t, func() (err error) {
				conn, err = net.Dial("tcp", "192.0.2.2:42113")
				return err
			})
			defer conn.Close()
			_, _ = conn.Write([]byte("x"))
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if err := client.Links().LinkSetDown(client.Link(t, "c0")); err != nil {
				t.Fatal(err)
			}
			close(vanished)
			select {
			case err := <-gone:
				if err == nil {
					t.Error("the endpoint saw the client end in order")
				}
			case <-time.After(time.Minute):
				t.Fatal("the endpoint waits for a client that is gone")
			}
			for deadline := time.Now().Add(20 * time.Second); f.Active() > 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the connection of a client that is gone is still open")
				}
			}
			if n := testutil.ToFloat64(metrics.aborted.WithLabelValues("r", "timeout")); n != 1 {
				t.Errorf("counted %v time-outs", n)
			}
		})
	}
}

// A client ends its side, and is reset later, as by a machine that went down: its session ends though the endpoint says
// nothing and does not end its side.
func TestResetAfterHalfClose(t *testing.T) {
	ended, over := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{}, backend(t, func(conn *net.TCPConn) {
		_, _ = io.ReadAll(conn) // the client's FIN
		close(ended)
		<-over
	}))
	defer close(over)
	conn := r.dial(t)
	_, _ = conn.Write([]byte("x"))
	_ = conn.CloseWrite()
	<-ended
	_ = conn.SetLinger(0)
	_ = conn.Close() // RST
	for deadline := time.Now().Add(5 * time.Second); r.Active() > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the session of a client that was reset is still open")
		}
	}
}

// So it is with a client that has ended its side before the endpoint was connected.
func TestResetAfterAnEarlyHalfClose(t *testing.T) {
	ended, over := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		backend(t, func(conn *net.TCPConn) {
			_, _ = io.ReadAll(conn) // the client's FIN
			close(ended)
			<-over
		}))
	defer close(over)
	conn := r.dial(t)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// The header and the FIN come as one packet, and the endpoint is connected to behind the header.
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "PROXY TCP4 192.0.2.7 192.0.2.1 1000 80\r\n")
	_ = conn.CloseWrite()
	<-ended
	_ = conn.SetLinger(0)
	_ = conn.Close() // RST
	testwait.Until(t, "the session of a client that was reset ends", func() bool { return r.Active() == 0 })
}
