package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

var (
	oddsOfHead = []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /2009-04-04/meta-data?a=b%20c HTTP/1.1\r\nHost: [2001:db8::1]:50061\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
		"GET / HTTP/1.1\r\nhost: h\r\nConnection: Keep-Alive\r\nKeep-Alive: 1\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nAccept:\t a \t\r\nX-A: 1\r\nx-a: 2\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: h\r\ncontent-length: 5\r\nContent-Type: x\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.0\r\nHost: h\r\nConnection: Keep-Alive\r\n\r\n",
		// Not plain, each for one reason.
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhell",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello!",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 05\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent_Length: 4\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
		"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
		"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /victim HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\nHost: h\n\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX: a\nTransfer-Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\ntransfer-ENCODING: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n",
		"GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"GET / HTTP/1.1\r\nX: y\r\n\r\n",
		"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n",
		"GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET //a HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: X-Real-IP\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nContent_Length: 5\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nTransfer_Encoding: chunked\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX : y\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX: \xff\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nX: y\r\n",
		"GET HTTP/1.1\r\nHost: h\r\n\r\n",
	}
	plainOdds = 9 // so many of them, from the first on, are plain
)

func TestPlainRequest(t *testing.T) {
	for i, head := range oddsOfHead {
		var p Request
		if got := p.parse([]byte(head)); got != (i < plainOdds) {
			t.Errorf("plain is %v for %q", got, head)
		}
	}
}

// What is plain is, to net/http, one request with nothing behind it, and goes to the endpoint as net/http's way would
// send it.
func FuzzPlainRequest(f *testing.F) {
	for _, head := range oddsOfHead {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		var p Request
		if !p.parse(head) {
			return
		}
		reader := bufio.NewReaderSize(bytes.NewReader(head), len(head)+16)
		r, err := http.ReadRequest(reader)
		if err != nil {
			t.Fatalf("net/http: %v", err)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || reader.Buffered() > 0 || !bytes.Equal(body, p.Body) {
			t.Fatalf("net/http: %v, body %q, want %q, %d bytes left", err, body, p.Body, reader.Buffered())
		}
		if p.Post != (r.Method == http.MethodPost) || !p.Post && r.Method != http.MethodGet || r.ProtoMajor != 1 || p.Old != (r.ProtoMinor == 0) ||
			len(r.TransferEncoding) > 0 || r.ContentLength != int64(len(p.Body)) ||
			r.Close != p.close || r.Host != string(p.Host) || r.RequestURI != string(p.Target) {
			t.Fatalf("net/http reads %+v", r)
		}
		for _, name := range []string{"Upgrade", "Expect", "Te", "Trailer", "Via", "Proxy-Authorization"} {
			if r.Header[name] != nil {
				t.Fatalf("net/http reads %s: %q", name, r.Header[name])
			}
		}
		sent := p.append(nil, []byte("X-Real-Ip: 192.0.2.7\r\nVia: 1.1 a\r\n"))
		if !bytes.HasSuffix(sent, p.Body) {
			t.Fatalf("%q is sent, want %q behind its head", sent, p.Body)
		}
		want := appendWithout(r, "Connection", "Keep-Alive", ForwardedFor, ForwardedProto, ForwardedHost, ForwardedField, RealIP)
		sameHead(t, sent[:len(sent)-len(p.Body)], want)
	})
}

// appendWithout is a request's head as it goes on: without the headers of these names, in any spelling, and with what
// the proxy adds.
func appendWithout(r *http.Request, names ...string) []byte {
	head := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.RequestURI, r.Host)
	for name, values := range r.Header {
		spelled := func(known string) bool { return strings.EqualFold(strings.ReplaceAll(name, "_", "-"), known) }
		if slices.ContainsFunc(names, spelled) {
			continue
		}
		for _, value := range values {
			head = fmt.Appendf(head, "%s: %s\r\n", name, value)
		}
	}
	return append(head, "X-Real-Ip: 192.0.2.7\r\nVia: 1.1 a\r\n\r\n"...)
}

// net/http's server, which looks closer than its reader of requests, refuses nothing that is plain.
func FuzzPlainRequestIsServed(f *testing.F) {
	for _, head := range oddsOfHead {
		f.Add([]byte(head))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Asked", r.Method+" "+r.RequestURI+" "+r.Host)
	}))
	defer server.Close()
	f.Fuzz(func(t *testing.T, head []byte) {
		var p Request
		if !p.parse(head) {
			return
		}
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Skip(err)
		}
		defer conn.Close()
		_, _ = conn.Write(head)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("net/http: %v", err)
		}
		_ = response.Body.Close()
		want := p.Method() + " " + string(p.Target) + " " + string(p.Host)
		if got := response.Header.Get("X-Asked"); response.StatusCode != http.StatusOK || got != want || response.Close != p.close {
			t.Fatalf("net/http answers %s to %q, want %q", response.Status, got, want)
		}
	})
}

// sameHead is whether net/http reads two heads alike.
func sameHead(t *testing.T, got, want []byte) {
	t.Helper()
	var read [2]*http.Request
	for i, text := range [][]byte{got, want} {
		reader := bufio.NewReaderSize(bytes.NewReader(text), len(text)+16)
		r, err := http.ReadRequest(reader)
		if err != nil || reader.Buffered() > 0 {
			t.Fatalf("net/http: %v, %d bytes left of %q", err, reader.Buffered(), text)
		}
		read[i] = r
	}
	a, b := read[0], read[1]
	if a.Method != b.Method || a.RequestURI != b.RequestURI || a.Host != b.Host || len(a.Header) != len(b.Header) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
	for name, values := range b.Header {
		if strings.Join(a.Header[name], "\n") != strings.Join(values, "\n") {
			t.Fatalf("%s is %q, want %q", name, a.Header[name], values)
		}
	}
}

var answerHeads = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 404 Not Found\r\ncontent-length:0\r\nConnection: close\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
	"HTTP/1.1 206 \r\nContent-Length: 7\r\nContent-Range: bytes 0-6/7\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive\r\n\r\n",
	// Not plain.
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\n\r\n",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
	"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
	"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTrailer: X\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: a\r\n b\r\n\r\n",
}

func TestPlainAnswer(t *testing.T) {
	for i, head := range answerHeads {
		var p answer
		if got := p.parse([]byte(head)); got != (i < 3) {
			t.Errorf("plain is %v for %q", got, head)
		}
	}
}

// What is plain has, to net/http, the same length and code; and what the client gets has the same length again, is
// kept open, has a date, and no header of the other hop.
func FuzzPlainAnswer(f *testing.F) {
	for _, head := range answerHeads {
		f.Add([]byte(head))
	}
	f.Fuzz(func(t *testing.T, head []byte) {
		var p answer
		if !p.parse(head) {
			return
		}
		asked := &http.Request{Method: http.MethodGet}
		read := func(head []byte) *http.Response {
			reader := bufio.NewReaderSize(bytes.NewReader(head), len(head)+16)
			r, err := http.ReadResponse(reader, asked)
			if err != nil || reader.Buffered() > 0 {
				t.Fatalf("net/http: %v, %d bytes left of %q", err, reader.Buffered(), head)
			}
			if len(r.TransferEncoding) > 0 || r.ContentLength != p.length || r.StatusCode != p.code {
				t.Fatalf("net/http reads %+v of %q", r, head)
			}
			return r
		}
		if r := read(head); r.Close != p.close {
			t.Fatalf("close is %v, to net/http %v", p.close, r.Close)
		}
		for _, last := range []bool{false, true} {
			r := read(p.append(nil, &Request{close: last}))
			if r.Close != last || r.Header.Get("Date") == "" && !p.dated || r.Header.Get("Keep-Alive") != "" {
				t.Fatalf("the client gets %+v", r)
			}
		}
	})
}
