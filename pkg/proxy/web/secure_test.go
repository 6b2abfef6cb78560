package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// trusting takes any certificate.
type trusting struct{}

func (trusting) Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error) {
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	return secured, secured.HandshakeContext(ctx)
}

// secureEndpoint serves each connection by TLS, and counts them.
func secureEndpoint(t *testing.T, serve func(conn net.Conn)) (addr string, count *atomic.Int64) {
	t.Helper()
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	config := certificates.TLS.Clone()
	certificates.Close()
	config.NextProtos = nil
	count = new(atomic.Int64)
	addr, _ = rawEndpoint(t, func(conn net.Conn) {
		count.Add(1)
		secured := tls.Server(conn, config)
		defer secured.Close()
		serve(secured)
	})
	return addr, count
}

// An endpoint that speaks TLS and says more than its answer: wherever the rest is when the next request comes, it is
// nobody's answer.
func TestSecureSurplus(t *testing.T) {
	const poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
	for name, say := range map[string]func(conn net.Conn, answer string){
		"none":               func(c net.Conn, a string) { _, _ = io.WriteString(c, a) },
		"in the same record": func(c net.Conn, a string) { _, _ = io.WriteString(c, a+poison) },
		"more of a record than a read takes": func(c net.Conn, a string) {
			_, _ = io.WriteString(c, a+strings.Repeat(poison, 200))
		},
		"in the next record": func(c net.Conn, a string) {
			_, _ = io.WriteString(c, a)
			_, _ = io.WriteString(c, poison)
		},
		"in a record that begins a read": func(c net.Conn, a string) {
			// The answer fills a buffer of the proxy's to its end: what follows stays in TLS.
			_, _ = io.WriteString(c, strings.Replace(a, "\r\n\r\n", "\r\nX: "+strings.Repeat("x", 4<<10-len(a)-5)+"\r\n\r\n", 1))
			_, _ = io.WriteString(c, poison)
		},
	} {
		t.Run(name, func(t *testing.T) {
			served := make(chan struct{}, 100) // an answer and its surplus have been written
			addr, connections := secureEndpoint(t, func(conn net.Conn) {
				reader := bufio.NewReader(conn)
				for {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					path := request.URL.Path
					say(conn, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(path), path))
					served <- struct{}{}
				}
			})
			r := start(t, Settings{Pool: pool(addr), Secure: trusting{}, Timeouts: Timeouts{Response: 20 * time.Second}})
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for i := range 20 {
				path := fmt.Sprintf("/%d", i)
				response, err := client.Get("http://" + r.Addr().String() + path)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if string(body) != path || err != nil {
					t.Errorf("%s got %s %.80q, %v", path, response.Status, body, err)
				}
				<-served
			}
			if n := connections.Load(); n != 20 {
				t.Errorf("%d connections to the endpoint, want one for each request", n)
			}
		})
	}
}
