package web

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An endpoint ends while the client of an upload is silent: the client hears of it at once, is not blamed, and its next
// upload goes well on a connection of its own.
func TestClientHearsOfALostUpload(t *testing.T) { withAndWithout(t, testClientHearsOfALostUpload) }

func testClientHearsOfALostUpload(t *testing.T, start starter) {
	serve := func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.ReadFull(request.Body, make([]byte, 10)); err != nil || request.URL.Path == "/lost" {
			if c, ok := conn.(*net.TCPConn); ok && request.ContentLength < 0 {
				_ = c.SetLinger(0)
			}
			_ = conn.Close()
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
	plain, _ := rawEndpoint(t, serve)
	secure, _ := secureEndpoint(t, serve)
	for name, s := range map[string]Settings{
		"plain": {Pool: pool(plain)}, "by TLS": {Pool: pool(secure), Secure: trusting{}},
	} {
		s.Stall = time.Hour
		var log strings.Builder
		r := start(t, s, &log)
		upload := func(path, head, body string) *http.Response {
			t.Helper()
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: h\r\n"+head+"\r\n\r\n"+body)
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%s: the client of %s got no answer: %v", name, path, err)
			}
			return response
		}
		for head, body := range map[string]string{
			"Content-Length: 20":         "0123456789",
			"Transfer-Encoding: chunked": "a\r\n0123456789\r\n",
		} {
			if response := upload("/lost", head, body); response.StatusCode != http.StatusBadGateway || !response.Close {
				t.Errorf("%s, %s: got %s, close %t", name, head, response.Status, response.Close)
			}
		}
		if response := upload("/", "Content-Length: 10", "0123456789"); response.StatusCode != http.StatusOK {
			t.Errorf("%s: the next upload: %s", name, response.Status)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "reason=error") != 2 || strings.Contains(text, "client_body") {
			t.Errorf("%s: the log says:\n%s", name, text)
		}
	}
}
