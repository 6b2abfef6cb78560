package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

func serve(t *testing.T, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return netip.MustParseAddrPort(server.Listener.Addr().String())
}

func TestChecks(t *testing.T) {
	gone := httptest.NewServer(nil)
	nobody := netip.MustParseAddrPort(gone.Listener.Addr().String())
	gone.Close()
	var serving atomic.Uint32
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
		case "/moved":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case "/grpc.health.v1.Health/Check":
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			status := byte(serving.Load())
			if status == 0 {
				w.Header().Set("Grpc-Status", "5")
				return
			}
			_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, status})
			w.Header().Set("Grpc-Status", "0")
		default:
			http.Error(w, "no", http.StatusServiceUnavailable)
		}
	})
	grpcOf := func(status uint32) Check { // 1 is SERVING, 0 none
		return func(ctx context.Context, addr netip.AddrPort) error {
			serving.Store(status)
			return CheckGRPC(nil)(ctx, addr)
		}
	}
	tests := map[string]struct {
		check Check
		addr  netip.AddrPort
		fault string
	}{
		"tcp":               {CheckTCP(nil), addr, ""},
		"tcp, nobody":       {CheckTCP(nil), nobody, "refused"},
		"http":              {CheckHTTP("/healthz", nil), addr, ""},
		"http, redirect":    {CheckHTTP("/moved", nil), addr, ""},
		"http, 503":         {CheckHTTP("", nil), addr, "503"},
		"http, nobody":      {CheckHTTP("", nil), nobody, "refused"},
		"grpc, server":      {grpcOf(1), addr, ""},
		"grpc, not serving": {grpcOf(2), addr, "status 2"},
		"grpc, unknown":     {grpcOf(0), addr, `grpc-status "5"`},
		"grpc, nobody":      {CheckGRPC(nil), nobody, "refused"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.check(t.Context(), test.addr)
			if test.fault == "" && err != nil || test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)) {
				t.Errorf("got %v, want %q", err, test.fault)
			}
		})
	}
}

// trusting is a Secure of the tests' server.
type trusting struct {
	pool *x509.CertPool
	name string
}

func (s trusting) Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error) {
	c := tls.Client(conn, &tls.Config{RootCAs: s.pool, ServerName: s.name, NextProtos: protocols})
	return c, c.HandshakeContext(ctx)
}

func (s trusting) Name() string { return s.name }

// TestChecksByTLS asks endpoints that speak TLS, as themselves and as somebody else.
func TestChecksByTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "example.com" || r.TLS == nil {
			http.Error(w, r.Host, http.StatusMisdirectedRequest)
			return
		}
		if r.URL.Path != "/grpc.health.v1.Health/Check" {
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 8, 1})
		w.Header().Set("Grpc-Status", "0")
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	addr := netip.MustParseAddrPort(server.Listener.Addr().String())
	plain := serve(t, func(http.ResponseWriter, *http.Request) {})
	for name, check := range map[string]func(Secure) Check{
		"tcp":  CheckTCP,
		"http": func(s Secure) Check { return CheckHTTP("/healthz", s) },
		"grpc": CheckGRPC,
	} {
		if err := check(trusting{pool, "example.com"})(t.Context(), addr); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := check(trusting{pool, "example.net"})(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "example.net") {
			t.Errorf("%s, another's certificate: %v", name, err)
		}
		if check(trusting{pool, "example.com"})(t.Context(), plain) == nil {
			t.Errorf("%s: an endpoint without TLS is well", name)
		}
	}
}
