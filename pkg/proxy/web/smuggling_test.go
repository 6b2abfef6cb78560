package web

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Requests whose end two readers could see at different places. None may reach the backend as anything but what the
// client's connection is answered for: either refused, or one request with one meaning.
func TestSmuggling(t *testing.T) {
	const victim = "GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"
	tests := map[string]struct {
		raw      string
		code     int    // of the first answer
		reaches  string // what the backend sees, in order: method path body
		requests int    // answers on the connection; 0 is 1
	}{
		"plain":     {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 200, "POST /a abc", 1},
		"pipelined": {"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", 200, "GET /a ;GET /b ", 2},
		"chunked": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200,
			"POST /a abc", 1},
		// RFC 9112, section 6.1: the length is dropped, the chunks count, the connection ends.
		"length and chunks": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"0\r\n\r\n" + victim, 200, "POST /a ", 0},
		"two lengths":       {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc" + victim, 400, "", 0},
		"a list of lengths": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 30\r\n\r\nabc" + victim, 400, "", 0},
		"signed length":     {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc" + victim, 400, "", 0},
		"negative length":   {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\nabc" + victim, 400, "", 0},
		"hex length":        {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\nabc" + victim, 400, "", 0},
		"huge length": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551619\r\n\r\nabc" + victim, 400, "",
			0},
		"unknown coding": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + victim, 501, "", 0},
		"two codings": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" +
			"0\r\n\r\n" + victim, 501, "", 0},
		"chunked twice": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + victim, 501, "",
			0},
		"space before colon": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length : 3\r\n\r\nabc" + victim, 400, "", 0},
		"tab in coding's name": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + victim, 400, "",
			0},
		"no host":              {"GET /a HTTP/1.1\r\n\r\n", 400, "", 0},
		"two hosts":            {"GET /a HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400, "", 0},
		"bad host":             {"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "", 0},
		"no version":           {"GET /a\r\nHost: h\r\n\r\n", 400, "", 0},
		"strange version":      {"GET /a HTTP/1.10\r\nHost: h\r\n\r\n", 400, "", 0},
		"bare carriage return": {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\rContent-Length: 3\r\n\r\nabc", 400, "", 0},
		"NUL in header":        {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", 400, "", 0},
		"header without name":  {"GET /a HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", 400, "", 0},
		"space in name":        {"GET /a HTTP/1.1\r\nHost: h\r\nX Y: x\r\n\r\n", 400, "", 0},
		"space before first":   {"GET /a HTTP/1.1\r\n Host: h\r\n\r\n", 400, "", 0},
		"chunk size garbage": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3x\r\nabc\r\n0\r\n\r\n" + victim,
			502, "*", 0},
		"chunk without CRLF": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX0\r\n\r\n" + victim,
			502, "*", 0},
		"line break in path":  {"GET /a\nX: y HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"HTTP/2 preface":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "", 0},
		"tunnel":              {"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: h\r\n\r\n", 405, "", 0},
		"obs-fold in a value": {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 200, "GET /a ", 1},
		"folded coding":       {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 200, "POST /a ", 1},
		"bare LF":             {"GET /a HTTP/1.1\nHost: h\n\n", 200, "GET /a ", 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var seen []string
			r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					body = []byte("!")
				}
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
			}))})
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, test.raw)
			reader := bufio.NewReader(conn)
			first, answers := 0, 0
			for {
				// The first answer has all the time; another one would follow at once.
				wait := 10 * time.Second
				if answers > 0 {
					wait = 150 * time.Millisecond
				}
				_ = conn.SetReadDeadline(time.Now().Add(wait))
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if answers++; answers == 1 {
					first = response.StatusCode
				}
			}
			if want := max(test.requests, 1); answers != want || first != test.code {
				t.Errorf("%d answers, the first %d; want %d and %d", answers, first, want, test.code)
			}
			_ = conn.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got := strings.Join(seen, ";")
			// "*": whether the backend saw the begin of the torn request is a matter of time.
			if got != test.reaches && test.reaches != "*" || strings.Contains(got, "victim") {
				t.Errorf("the backend saw %q, want %q", got, test.reaches)
			}
		})
	}
}

// A header beyond the limit is refused, not read to its end.
func TestHeaderLimit(t *testing.T) {
	r := start(t, Settings{Pool: pool(), MaxHeader: 8 << 10})
	code, _ := r.get(t, "/", "X-Large", strings.Repeat("x", 16<<10))
	if code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %d", code)
	}
}
