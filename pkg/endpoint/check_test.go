package endpoint

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
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
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz":
		case "/moved":
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		case "/grpc.health.v1.Health/Check":
			request, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			status := map[string]byte{"": 1, "tink": 1, "sick": 2}[strings.TrimLeft(string(request[5:]), "\n\x04")]
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
	tests := map[string]struct {
		check Check
		addr  netip.AddrPort
		fault string
	}{
		"tcp":               {CheckTCP(), addr, ""},
		"tcp, nobody":       {CheckTCP(), nobody, "refused"},
		"http":              {CheckHTTP("/healthz"), addr, ""},
		"http, redirect":    {CheckHTTP("/moved"), addr, ""},
		"http, 503":         {CheckHTTP(""), addr, "503"},
		"http, nobody":      {CheckHTTP(""), nobody, "refused"},
		"grpc, server":      {CheckGRPC(""), addr, ""},
		"grpc, service":     {CheckGRPC("tink"), addr, ""},
		"grpc, not serving": {CheckGRPC("sick"), addr, "status 2"},
		"grpc, unknown":     {CheckGRPC("none"), addr, `grpc-status "5"`},
		"grpc, nobody":      {CheckGRPC(""), nobody, "refused"},
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
