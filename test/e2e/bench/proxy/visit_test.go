package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		text, body string
		code       int
		fails      bool
	}{
		"body":      {text: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", code: 200, body: "ok"},
		"no body":   {text: "HTTP/1.1 204 No\r\ncontent-length: 0\r\n\r\n", code: 204},
		"version":   {text: "HTTP/1.0 502 No\r\nContent-Length: 1\r\n\r\nx", code: 502, body: "x"},
		"more":      {text: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore", fails: true},
		"torn body": {text: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", fails: true},
		"torn head": {text: "HTTP/1.1 200 OK\r\nContent-", fails: true},
		"no length": {text: "HTTP/1.1 200 OK\r\n\r\nok", fails: true},
		"too long for the buffer": {
			text: "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + strings.Repeat("x", 500), code: 200,
			body: strings.Repeat("x", 64-len("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")),
		},
	} {
		for way, r := range map[string]io.Reader{
			"whole": strings.NewReader(test.text), "by bytes": iotest.OneByteReader(strings.NewReader(test.text)),
		} {
			if name == "more" && way == "by bytes" {
				continue // it is not read
			}
			code, body, err := readAnswer(r, make([]byte, 64))
			if (err != nil) != test.fails || code != test.code || string(body) != test.body {
				t.Errorf("%s, %s: got %d %q, %v", name, way, code, body, err)
			}
		}
	}
}

// A visit asks what it is made of, from its address, and wants all answers and the end behind the last.
func TestVisit(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+from.Addr().String()+" "+string(body[:min(len(body), 1)]))
		if r.Host == "refuse" {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, "ok")
	}))
	defer server.Close()
	addr, buffer := strings.TrimPrefix(server.URL, "http://"), make([]byte, 4096)
	next := machines(300)
	for i, want := range map[int]int{0: 1, 1: 2, 299: 3} {
		if n, err := next(i).make(context.Background(), addr, buffer); n != want || err != nil {
			t.Errorf("visit %d got %d answers, %v, want %d", i, n, err, want)
		}
		if got, want := asked[len(asked)-1], "GET "+machine(i).String()+" "; got != want {
			t.Errorf("asked %q, want %q", got, want)
		}
	}
	if n, err := (visit{requests: []string{post}}).make(context.Background(), addr, buffer); n != 1 || err != nil {
		t.Errorf("a POST got %d answers, %v", n, err)
	}
	if got := asked[len(asked)-1]; got != "POST 127.0.0.1 x" {
		t.Errorf("asked %q", got)
	}
	refused := visit{requests: []string{"GET / HTTP/1.1\r\nHost: refuse\r\n\r\n"}}
	if n, err := refused.make(context.Background(), addr, buffer); n != 0 || err == nil {
		t.Errorf("an answer that is not 200 counts: %d, %v", n, err)
	}
}

// What the backend that talks out of turn does to a client that keeps its connection: it gets answers that are for it,
// and some twice.
func TestOutOfTurn(t *testing.T) {
	o, err := startOutOfTurn(context.Background())
	if err != nil {
		t.Skipf("cannot listen on %s: %v", outOfTurnAddr, err)
	}
	for range 20 {
		conn, err := dialer(netip.Addr{}).Dial("tcp", outOfTurnAddr)
		if err != nil {
			t.Fatal(err)
		}
		const request = "GET /a HTTP/1.1\r\nHost: h\r\nX-Real-IP: 127.1.0.1\r\nConnection: close\r\n\r\n"
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		if n := strings.Count(string(all), "127.1.0.1 /a"); n < 1 || n > 2 {
			t.Errorf("got %q", all)
		}
	}
	o.stop()
	if o.conns.Load() != 20 {
		t.Errorf("counted %d connections", o.conns.Load())
	}
}
