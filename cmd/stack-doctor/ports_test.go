package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// serveHTTP serves a handler on loopback, over HTTP/1 and cleartext HTTP/2, and gives host:port.
func serveHTTP(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// serveUDP answers datagrams on loopback with what answer returns, or not at all.
func serveUDP(t *testing.T, answer func(request []byte) []byte) string {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := answer(buffer[:n]); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return conn.LocalAddr().String()
}

func TestPortsAreAsked(t *testing.T) {
	web := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead && r.URL.String() == "/vmlinuz-x86_64" {
			w.Header().Set("Content-Length", "6")
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
	dead := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host == "edge.example" && r.TLS.ServerName == "edge.example" && r.URL.RawQuery == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(secure.Close)
	tink := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		if r.ProtoMajor != 2 || r.URL.Path != "/proto.WorkflowService/GetWorkflowContexts" {
			w.Header().Set("Grpc-Status", "13")
			return
		}
		w.Header().Set("Grpc-Status", "3")
	})
	files := serveUDP(t, func(request []byte) []byte {
		if !bytes.Equal(request, []byte("\x00\x01undionly.kpxe\x00octet\x00tsize\x000\x00")) {
			return append([]byte{0, 5, 0, 1}, "no such file\x00"...)
		}
		return append([]byte{0, 6}, "tsize\x0072586\x00"...)
	})
	var relayed atomic.Int64
	relay := serveUDP(t, func(request []byte) []byte {
		if m := dhcp.Message(request); m.Check() == dhcp.OK && m.Type() == dhcp.Inform {
			relayed.Add(1)
		}
		return nil
	})
	counters := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		const line = "dhcp_relay_packets_total{direction=%q,listener=\"unicast\",type=%q} %d\n"
		fmt.Fprintf(w, line, "to-server", dhcp.Inform, relayed.Load())
		fmt.Fprintf(w, line, "to-client", dhcp.Inform, 7)
	})
	silent := serveUDP(t, func([]byte) []byte { return nil })
	metadata := func(believes bool) string {
		return serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			if !believes || r.Header.Get("X-Forwarded-For") != "192.0.2.101" {
				w.WriteHeader(http.StatusNotFound)
			}
		})
	}
	trusting, wary := metadata(true), metadata(false)
	redirected := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://127.0.0.1:1"+r.URL.Path, http.StatusPermanentRedirect)
	})
	refused := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "stack-proxy: route https: the backend's certificate is by another CA", http.StatusBadGateway)
	})

	watched := "?metrics=http://" + counters + "/metrics"
	for name, test := range map[string]struct {
		check, timeout, want string
		code                 int
	}{
		"http that finds nothing is an answer": {"smee=http://" + web + "/", "5s", "status 404 Not Found", 0},
		"http without a backend":               {"smee=http://" + dead + "/", "5s", "failed to reach the backend", 2},
		"a file that is there":                 {"files=http://" + web + "/vmlinuz-x86_64?file", "5s", "/vmlinuz-x86_64 has 6 bytes", 0},
		"a file that is not there":             {"files=http://" + web + "/vmlinuz-aarch64?file", "5s", "failed to find file http://" + web + "/vmlinuz-aarch64: status 404", 2},
		"another layout answers":               {"http=http://" + dead + "/?other=classic@127.0.0.1:1&other=tinkerbell-0.22@" + web, "5s", web + " answers: set preset to tinkerbell-0.22", 2},
		"why the backend is not reached":       {"https=http://" + refused + "/", "5s", "certificate is by another CA", 2},
		"a redirect to a dead port":            {"http=http://" + redirected + "/2009-04-04/", "5s", "it sends machines to https://127.0.0.1:1/2009-04-04/, which does not answer", 2},
		"trust":                                {"trust=trust://" + trusting + "/2009-04-04/?machine=192.0.2.101&through=" + wary, "5s", "knows 192.0.2.101 by X-Forwarded-For", 0},
		"trust that is missing":                {"trust=trust://" + wary + "/?machine=192.0.2.101&through=" + wary, "5s", "does not know 192.0.2.101 when 127.0.0.1 names that by X-Forwarded-For (status 404): add the network", 2},
		"trust in a stranger":                  {"trust=trust://" + trusting + "/?machine=192.0.2.101&through=" + trusting, "5s", "believes 127.0.0.1 when that says to be 192.0.2.101", 2},
		"trust in nobody":                      {"trust=trust://" + trusting + "/", "5s", "no ?machine=ADDRESS", 2},
		"https asks for a name":                {"edge=" + secure.URL + "/?host=edge.example", "5s", "status 401 Unauthorized", 0},
		"https on a port without TLS":          {"edge=https://" + web + "/", "5s", "server gave HTTP response", 2},
		"tcp":                                  {"ssh=tcp://" + web, "5s", "connected to " + web, 0},
		"grpc that refuses is an answer":       {"tink=grpc://" + tink, "5s", "grpc-status 3", 0},
		"grpc that is none":                    {"tink=grpc://" + web, "5s", "failed to find gRPC", 2},
		"tftp":                                 {"tftp=tftp://" + files + "/undionly.kpxe", "5s", "has 72586 bytes", 0},
		"tftp without the file":                {"tftp=tftp://" + files + "/other", "5s", `server says "no such file"`, 2},
		"tftp without an answer":               {"tftp=tftp://" + silent + "/x", "300ms", "no answer", 2},
		"dhcp":                                 {"dhcp=dhcp://" + relay + watched, "5s", "passed a request on", 0},
		"dhcp that is not relayed":             {"dhcp=dhcp://" + silent + watched, "700ms", "did not move", 2},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run([]string{"-timeout", test.timeout, test.check}, &stdout, &stderr)
			if code != test.code || !strings.Contains(stdout.String(), test.want) {
				t.Errorf("exit %d, want %d; stdout %q, want %q; stderr %q", code, test.code, &stdout, test.want, &stderr)
			}
		})
	}
}

func TestEveryWrongCheckIsNamed(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"http://x:1", "a=ftp://x:1,b=http://x", "c=tftp://x:69/", "d=tcp://x:1"}, &stdout, &stderr); code != 3 {
		t.Errorf("exit %d, want 3", code)
	}
	for _, want := range []string{"http://x:1", "a=ftp://x:1", "b=http://x", "c=tftp://x:69/"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in %q", want, &stderr)
		}
	}
}
