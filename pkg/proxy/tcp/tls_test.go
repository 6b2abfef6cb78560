package tcp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/testcert"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const tlsName = "tink.example.org"

// identity is a certificate for a name, and a pool that trusts it.
func identity(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	return testcert.SelfSigned(t, elliptic.P256(), time.Hour, name)
}

// trusting is a Secure.
type trusting struct{ pool *x509.CertPool }

func (s trusting) Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error) {
	c := tls.Client(conn, &tls.Config{RootCAs: s.pool, ServerName: tlsName, NextProtos: protocols})
	return c, c.HandshakeContext(ctx)
}

// secureBackend is a backend behind TLS.
func secureBackend(t *testing.T, config *tls.Config, serve func(*tls.Conn)) netip.AddrPort {
	return backend(t, func(conn *net.TCPConn) {
		inner := tls.Server(conn, config)
		_ = inner.SetDeadline(time.Now().Add(20 * time.Second))
		if inner.HandshakeContext(context.Background()) == nil {
			serve(inner)
		}
	})
}

func secureEcho(conn *tls.Conn) {
	_, _ = io.Copy(conn, conn)
	_ = conn.CloseWrite()
}

// TestSecure passes streams of many sizes by TLS on either side, and on both, with a half-close at the end of each.
func TestSecure(t *testing.T) {
	t.Parallel()
	cert, pool := identity(t, tlsName)
	served := &tls.Config{Certificates: []tls.Certificate{cert}}
	for name, test := range map[string]struct{ in, out bool }{
		"ended here": {in: true}, "made here": {out: true}, "both": {in: true, out: true},
	} {
		for _, size := range []int{0, 1, 16 << 10, len(sock.Scratch{}) + 1, spliceAfter + 4*sock.PipeSize + 17} {
			settings := Settings{Dial: time.Duration(size%2) * -time.Second} // none, or the default
			var addr netip.AddrPort
			if test.in {
				settings.TLS = served
			}
			if test.out {
				settings.Secure, addr = trusting{pool}, secureBackend(t, served, secureEcho)
			} else {
				addr = backend(t, echo)
			}
			r := start(t, settings, addr)
			raw := r.dial(t)
			var conn stream = raw
			if test.in {
				conn = tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: tlsName})
			}
			sent := make([]byte, size)
			_, _ = rand.Read(sent)
			go func() {
				_, _ = conn.Write(sent)
				if secure, ok := conn.(*tls.Conn); ok && size == 0 {
					_ = secure.HandshakeContext(t.Context())
				}
				_ = conn.CloseWrite()
			}()
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s, size %d: got %d bytes, equal %v, error %v", name, size, len(got), bytes.Equal(got, sent), err)
			}
			_ = raw.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			for _, direction := range []string{"in", "out"} {
				if n := testutil.ToFloat64(r.transferred.WithLabelValues("r", direction)); n != float64(size) {
					t.Errorf("%s, size %d: counted %v bytes %s", name, size, n, direction)
				}
			}
		}
	}
}

// A FIN without a close_notify is an end between two records. Within a record it tears the stream, which the endpoint
// must not take for a whole one.
func TestSecureTruncated(t *testing.T) {
	cert, pool := identity(t, tlsName)
	for name, torn := range map[string]bool{"between records": false, "within a record": true} {
		t.Run(name, func(t *testing.T) {
			saw := make(chan error, 1)
			r := start(t, Settings{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}}, backend(t, func(conn *net.TCPConn) {
				_, err := io.Copy(io.Discard, conn)
				saw <- err
			}))
			raw := r.dial(t)
			conn := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: tlsName})
			if _, err := conn.Write([]byte("half")); err != nil {
				t.Fatal(err)
			}
			if torn {
				_, _ = raw.Write([]byte{23, 3, 3, 0, 100, 1, 2, 3})
			}
			_ = raw.CloseWrite()
			if err := <-saw; errors.Is(err, syscall.ECONNRESET) != torn {
				t.Errorf("the endpoint saw %v", err)
			}
			_ = raw.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if n := testutil.ToFloat64(r.aborted.WithLabelValues("r", "reset")); (n > 0) != torn {
				t.Errorf("%v were counted", n)
			}
		})
	}
}

func TestSecureIdle(t *testing.T) {
	t.Parallel()
	cert, pool := identity(t, tlsName)
	served := &tls.Config{Certificates: []tls.Certificate{cert}}
	r := start(t, Settings{Idle: time.Second, TLS: served, Secure: trusting{pool}}, secureBackend(t, served, secureEcho))
	conn := tls.Client(r.dial(t), &tls.Config{RootCAs: pool, ServerName: tlsName})
	for range 4 { // one direction at a time keeps both alive
		_, _ = conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a torn connection", err)
	}
	if n := testutil.ToFloat64(r.aborted.WithLabelValues("r", "idle")); n == 0 {
		t.Error("idle end was not counted")
	}
}

// TestSecureRefused has the failures of TLS that make no connection, and how they are counted.
func TestSecureRefused(t *testing.T) {
	cert, pool := identity(t, tlsName)
	stranger, _ := identity(t, "other.example.org")
	served := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
	client := &tls.Config{RootCAs: pool, ServerName: tlsName}
	old := client.Clone()
	old.MaxVersion = tls.VersionTLS12
	tests := map[string]struct {
		settings Settings
		client   *tls.Config // nil sends no TLS
		backend  netip.AddrPort
		refused  string
		dial     string
	}{
		"no TLS":         {Settings{TLS: served}, nil, backend(t, echo), "tls", ""},
		"an old version": {Settings{TLS: served}, old, backend(t, echo), "tls", ""},
		"endpoint is a stranger": {
			Settings{TLS: served, Secure: trusting{pool}}, client,
			secureBackend(t, &tls.Config{Certificates: []tls.Certificate{stranger}}, secureEcho), "backend", "tls",
		},
		"endpoint has no TLS": {Settings{TLS: served, Secure: trusting{pool}}, client, backend(t, echo), "backend", "tls"},
		"endpoint says nothing": {
			Settings{TLS: served, Secure: trusting{pool}, Dial: 200 * time.Millisecond}, client,
			backend(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), "backend", "timeout",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := start(t, test.settings, test.backend)
			raw := r.dial(t)
			var conn stream = raw
			if test.client != nil {
				conn = tls.Client(raw, test.client)
			}
			_, failure := conn.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n")) // the write or the read fails by the reset
			if got, err := io.ReadAll(conn); errors.Join(failure, err) == nil && test.client != nil || bytes.Contains(got, []byte("HTTP")) {
				t.Errorf("got %q, %v", got, err)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", test.refused)); n != 1 {
				t.Errorf("%v counted as refused by %s", n, test.refused)
			}
			if test.dial != "" && testutil.ToFloat64(r.dials.WithLabelValues("r", test.dial)) == 0 {
				t.Errorf("no failed dial counted as %s", test.dial)
			}
		})
	}
}

// TestSecureBehindProxyHeader has a PROXY header before TLS on both sides, sent in one piece with the ClientHello. The
// protocol of the client's TLS is negotiated with the endpoint as well.
func TestSecureBehindProxyHeader(t *testing.T) {
	cert, pool := identity(t, tlsName)
	served := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "x"}}
	client := netip.MustParseAddrPort("192.0.2.7:1234")
	header := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(client),
		net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:443")))
	addr := backend(t, func(conn *net.TCPConn) {
		reader := bufio.NewReader(conn)
		got, err := proxyproto.Read(reader)
		if err != nil || got.SourceAddr.String() != client.String() {
			t.Errorf("the endpoint got %v, %v", got, err)
			return
		}
		inner := tls.Server(&behind{conn, reader}, served)
		if err := inner.HandshakeContext(context.Background()); err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(inner, inner.ConnectionState().NegotiatedProtocol)
		_ = inner.CloseWrite()
	})
	r := start(t, Settings{
		AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, SendProxy: 2, TLS: served, Secure: trusting{pool},
	}, addr)
	var text bytes.Buffer
	if _, err := header.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	raw := r.dial(t)
	conn := tls.Client(&together{TCPConn: raw, first: text.Bytes()}, &tls.Config{
		RootCAs: pool, ServerName: tlsName, NextProtos: []string{"x"},
	})
	if got, err := io.ReadAll(conn); err != nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
}

// behind has read more than it wanted.
type behind struct {
	net.Conn
	reader io.Reader
}

func (b *behind) Read(p []byte) (int, error) { return b.reader.Read(p) }

// together sends its first bytes in one piece with those that are written first.
type together struct {
	*net.TCPConn
	first []byte
}

func (c *together) Write(b []byte) (int, error) {
	first := len(c.first)
	n, err := c.TCPConn.Write(append(c.first, b...))
	c.first = nil
	return max(0, n-first), err
}

// A handshake that does not go on does not hold up a drain beyond its deadline.
func TestSecureDrain(t *testing.T) {
	cert, _ := identity(t, tlsName)
	r := start(t, Settings{TLS: &tls.Config{Certificates: []tls.Certificate{cert}}, Drain: 100 * time.Millisecond}, backend(t, echo))
	conn := r.dial(t)
	_, _ = conn.Write([]byte{22})
	for r.Active() == 0 {
		time.Sleep(time.Millisecond)
	}
	started := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took >= handshakeTimeout {
		t.Errorf("the drain took %s", took)
	}
}

type notReady struct{}

func (notReady) Ready() error { return errors.New("no certificate") }

func TestReadyAsksGate(t *testing.T) {
	r := start(t, Settings{Gate: notReady{}}, backend(t, echo))
	if err := r.Ready(); err == nil || err.Error() != "no certificate" {
		t.Errorf("got %v", err)
	}
}
