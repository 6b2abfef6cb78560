package web

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A client that ends its side behind its request, as nc -N does, gets its answer whole, and then the end: on each way,
// however long the endpoint takes. The endpoint sees no client that goes.
func TestHalfClosedClientGetsItsAnswer(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testHalfClosedClientGetsItsAnswer)
}

func testHalfClosedClientGetsItsAnswer(t *testing.T, start starter) {
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	requests := map[string]string{
		"GET":      "GET /x HTTP/1.1\r\nHost: h\r\n\r\n",
		"HTTP/1.0": "GET /x HTTP/1.0\r\nHost: h\r\n\r\n",
		"POST":     plainPost,
		"chunked":  "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"long":     "GET /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\nHost: h\r\n\r\n",
	}
	for _, level := range []AccessLog{"errors", "all"} {
		for _, secure := range []bool{false, true} {
			for _, wait := range []time.Duration{0, 1200 * time.Millisecond} {
				for name, request := range requests {
					t.Run(fmt.Sprintf("%s, %s, TLS %v, %v", level, name, secure, wait), func(t *testing.T) {
						t.Parallel()
						gone := make(chan bool, 1)
						addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
							_, _ = io.Copy(io.Discard, r.Body)
							select {
							case <-r.Context().Done():
								gone <- true
							case <-time.After(wait):
								gone <- false
							}
							_, _ = io.WriteString(w, "the answer")
						})
						var log lockedLog
						s := Settings{Pool: pool(addr), AccessLog: level}
						if secure {
							s.TLS = &tls.Config{Certificates: certificates.TLS.Certificates}
						}
						r := start(t, s, &log)
						conn := r.talk(t).Conn
						closeWrite := conn.(*net.TCPConn).CloseWrite
						if secure {
							inner := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
							conn, closeWrite = inner, inner.CloseWrite
						}
						if _, err := io.WriteString(conn, request); err != nil {
							t.Fatal(err)
						}
						if err := closeWrite(); err != nil {
							t.Fatal(err)
						}
						reader := bufio.NewReader(conn)
						response, err := http.ReadResponse(reader, nil)
						if err != nil {
							t.Fatal(err)
						}
						body, err := io.ReadAll(response.Body)
						if err != nil || response.StatusCode != http.StatusOK || string(body) != "the answer" {
							t.Errorf("got %d %q, %v", response.StatusCode, body, err)
						}
						if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
							t.Errorf("then came %q, %v", rest, err)
						}
						if <-gone {
							t.Error("the endpoint lost its client")
						}
						if err := r.stop(); err != nil {
							t.Error(err)
						}
						if strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), "code=499") {
							t.Errorf("the log says %s", log.String())
						}
					})
				}
			}
		}
	}
}

// A client that resets the connection, at once or behind its end, ends the wait for the endpoint.
func TestHalfClosedClientThatGoes(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testHalfClosedClientThatGoes)
}

func testHalfClosedClientThatGoes(t *testing.T, start starter) {
	asked, left := make(chan struct{}), make(chan struct{})
	p := pool(backend(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
		close(left)
	}))
	var log lockedLog
	r := start(t, Settings{Pool: p, AccessLog: "errors"}, &log)
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, plainGet)
	<-asked
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
		t.Error("the endpoint has lost its client that may still read")
	case <-time.After(3 * lostCheck):
	}
	c.leave()
	select {
	case <-left:
	case <-time.After(30 * time.Second):
		t.Fatal("the endpoint is still waited for")
	}
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(r.requests.WithLabelValues("r", "499")) == 1 && r.settled()
	})
	if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
		t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
	}
}

// The two directions of a protocol that the endpoint has switched to end on their own: behind the client's end the
// endpoint may speak on, and behind the endpoint's the client may.
func TestUpgradedStreamIsHalfClosed(t *testing.T) {
	for _, first := range []string{"client", "endpoint"} {
		t.Run(first, func(t *testing.T) {
			heard := make(chan string, 1)
			addr, _ := rawEndpoint(t, func(conn net.Conn) {
				reader := bufio.NewReader(conn)
				_, _ = http.ReadRequest(reader)
				_, _ = io.WriteString(conn, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				if first == "endpoint" {
					_, _ = io.WriteString(conn, "said")
					_ = conn.(*net.TCPConn).CloseWrite()
				}
				got, err := io.ReadAll(reader)
				heard <- fmt.Sprint(string(got), err)
				if first == "client" {
					_, _ = io.WriteString(conn, "said")
				}
			})
			c := start(t, Settings{Pool: pool(addr)}).talk(t)
			_, _ = io.WriteString(c.Conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			if response, err := http.ReadResponse(c.Reader, nil); err != nil || response.StatusCode != 101 {
				t.Fatalf("got %v, %v", response, err)
			}
			speak := func() {
				_, _ = io.WriteString(c.Conn, "hello")
				_ = c.Conn.(*net.TCPConn).CloseWrite()
			}
			listen := func() {
				if got, err := io.ReadAll(c.Reader); string(got) != "said" || err != nil {
					t.Errorf("the client got %q, %v", got, err)
				}
			}
			if first == "client" {
				speak()
				listen()
			} else {
				listen()
				speak()
			}
			if got := <-heard; got != "hello<nil>" {
				t.Errorf("the endpoint got %q", got)
			}
		})
	}
}
