package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// raw is a backend that answers each request of a connection with the next of some texts, and closes after the last.
func raw(t *testing.T, answers ...string) (addr string, connections *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			reader := bufio.NewReader(conn)
			for _, answer := range answers {
				if _, err := http.ReadRequest(reader); err != nil {
					break
				}
				_, _ = io.WriteString(conn, answer)
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String(), connections
}

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The endpoint closes a kept connection at the moment it is used again: the request is sent on another one.
func TestStaleConnection(t *testing.T) { withAndWithout(t, testStaleConnection) }

func testStaleConnection(t *testing.T, start starter) {
	addr, connections := raw(t, fine)
	r := start(t, Settings{Pool: pool(addr)})
	for i := range 3 {
		if code, body := r.get(t, "/"); code != 200 || body != "ok" {
			t.Fatalf("request %d got %d %q", i, code, body)
		}
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

// The engine keeps connections; ReverseProxy has one for each request.
func TestConnectionsAreKept(t *testing.T) {
	addr, connections := raw(t, fine, fine, "HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", fine)
	r := start(t, Settings{Pool: pool(addr)})
	for range 5 {
		r.get(t, "/")
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for 5 requests, want 1", n)
	}
}

// What an endpoint says beyond its answer must not become the next client's answer.
func TestSurplusIsNotTheNextAnswer(t *testing.T) { withAndWithout(t, testSurplusIsNotTheNextAnswer) }

func testSurplusIsNotTheNextAnswer(t *testing.T, start starter) {
	addr, connections := raw(t, fine+"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison", fine)
	r := start(t, Settings{Pool: pool(addr)})
	for range 2 {
		if _, body := r.get(t, "/"); body != "ok" {
			t.Errorf("got %q", body)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// An endpoint that closes idle connections may say so first. That is not the answer to what comes next.
func TestLateSurplusIsNotTheNextAnswer(t *testing.T) {
	withAndWithout(t, testLateSurplusIsNotTheNextAnswer)
}

func testLateSurplusIsNotTheNextAnswer(t *testing.T, start starter) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	late, done := make(chan net.Conn, 1), make(chan struct{})
	go func() {
		defer close(done)
		for range 2 {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
				return
			}
			_, _ = io.WriteString(conn, fine)
			late <- conn
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	r := start(t, Settings{Pool: pool(listener.Addr().String())})
	if code, body := r.get(t, "/"); code != 200 || body != "ok" {
		t.Fatalf("first request got %d %q", code, body)
	}
	conn := <-late
	_, _ = io.WriteString(conn, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate")
	// On the loopback what was written has arrived.
	if code, body := r.get(t, "/"); code != 200 || body != "ok" {
		t.Errorf("second request got %d %q", code, body)
	}
}

func TestAnswerHeaders(t *testing.T) { withAndWithout(t, testAnswerHeaders) }

func testAnswerHeaders(t *testing.T, start starter) {
	addr, _ := raw(t, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 418 I'm a teapot\r\nConnection: X-Hop\r\n"+
		"X-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-Two: a\r\nX-Two: b\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"+
		"Content-Length: 6\r\n\r\n<html>")
	r := start(t, Settings{Pool: pool(addr)})
	response, err := r.http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	want := http.Header{"X-Two": {"a", "b"}, "Date": {"Thu, 01 Jan 1970 00:00:00 GMT"}, "Content-Length": {"6"}}
	if diff := cmp.Diff(want, response.Header); diff != "" || response.StatusCode != 418 || string(body) != "<html>" {
		t.Errorf("%d %q\n%s", response.StatusCode, body, diff)
	}
}

func TestHead(t *testing.T) { withAndWithout(t, testHead) }

func testHead(t *testing.T, start starter) {
	addr, _ := raw(t, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
	r := start(t, Settings{Pool: pool(addr)})
	response, err := r.http.Head(r.url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.ContentLength != 1000000 {
		t.Errorf("the length is %d", response.ContentLength)
	}
}

// A stream without a length: each piece reaches the client when it comes.
func TestStreamIsFlushed(t *testing.T) { withAndWithout(t, testStreamIsFlushed) }

func testStreamIsFlushed(t *testing.T, start starter) {
	more := make(chan struct{})
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			_ = http.NewResponseController(w).Flush()
			<-more
		}
	}))})
	response, err := r.http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	for i := range 3 {
		if line, err := reader.ReadString('\n'); line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("got %q, %v", line, err)
		}
		more <- struct{}{}
	}
}

// A client that goes away, by a reset, ends the request at the endpoint, before the answer's head and within its body.
func TestClientGone(t *testing.T) { withAndWithout(t, testClientGone) }

func testClientGone(t *testing.T, start starter) {
	for _, flush := range []bool{false, true} {
		asked, ended := make(chan struct{}), make(chan struct{})
		r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
			if flush {
				_, _ = w.Write([]byte("x"))
				_ = http.NewResponseController(w).Flush()
			}
			close(asked)
			<-r.Context().Done()
			close(ended)
		}))})
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, plainGet)
		<-asked
		c.leave()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("flush %v: the endpoint still works for a client that is gone", flush)
		}
	}
}

// A large answer arrives whole.
func TestLargeAnswer(t *testing.T) { withAndWithout(t, testLargeAnswer) }

func testLargeAnswer(t *testing.T, start starter) {
	text := strings.Repeat("0123456789abcdef", 1<<18)
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
	}))})
	if _, body := r.get(t, "/"); body != text {
		t.Errorf("got %d bytes of %d", len(body), len(text))
	}
}

// An answer that breaks off gives its endpoint back.
func TestTornAnswerReleasesItsEndpoint(t *testing.T) {
	withAndWithout(t, testTornAnswerReleasesItsEndpoint)
}

func testTornAnswerReleasesItsEndpoint(t *testing.T, start starter) {
	torn := "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
	for name, request := range map[string]string{
		"plain": plainGet, "pool": "GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
		"Transport": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
	} {
		addr, _ := raw(t, torn)
		p := pool(addr)
		r := start(t, Settings{Pool: p})
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, request)
		if response, err := http.ReadResponse(c.Reader, nil); err == nil {
			if body, err := io.ReadAll(response.Body); err == nil {
				t.Errorf("%s: got %q and a clean end", name, body)
			}
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if s := p.Status(); s[0].Active != 0 {
			t.Errorf("%s: %d requests are still said to be at the endpoint", name, s[0].Active)
		}
		if n := testutil.ToFloat64(r.failures.WithLabelValues("r", "torn")); n != 1 {
			t.Errorf("%s: counted %v torn answers", name, n)
		}
	}
}

// That we have no descriptor left is no endpoint's fault.
func TestExhausted(t *testing.T) {
	for way, request := range ways {
		p := pool("127.0.0.1:1", "127.0.0.1:2")
		r := startOn(t, Settings{Pool: p}, io.Discard, nil)
		fail := func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
		}
		one := r.current.Load().sites[0].proxy
		one.transport.standard.DialContext = fail
		if response, body := r.talk(t).ask(t, request); response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d %q", way, response.StatusCode, body)
		}
		for _, s := range p.Status() {
			if s.Failures != 0 || s.Active != 0 {
				t.Errorf("%s: %v has %d failures, and is used %d times", way, s.Address, s.Failures, s.Active)
			}
		}
	}
}

// What has come of an answer is passed on, however long the rest takes.
func TestHalfAnAnswerIsPassedOn(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		requests := maps.Clone(ways)
		requests["body"] = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
		for way, request := range requests {
			arrived := make(chan struct{})
			r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "2000")
				_, _ = w.Write(make([]byte, 1000))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-arrived:
				case <-r.Context().Done():
				}
				_, _ = w.Write(make([]byte, 1000))
			}))})
			c := r.talk(t)
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			_, _ = io.WriteString(c.Conn, request)
			response, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				t.Fatal(way, err)
			}
			if n, err := io.ReadFull(response.Body, make([]byte, 1000)); err != nil {
				t.Errorf("%s: got %d bytes of the half that has come: %v", way, n, err)
			}
			close(arrived)
			if n, err := io.Copy(io.Discard, response.Body); n != 1000 || err != nil {
				t.Errorf("%s: got %d bytes of the rest: %v", way, n, err)
			}
		}
	})
}

// An answer without a body may have trailers, by each way.
func TestTrailersOfAnEmptyAnswer(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		for way, request := range ways {
			addr, _ := raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n0\r\nX-Sum: 7\r\n\r\n")
			r := start(t, Settings{Pool: pool(addr)})
			c := r.talk(t)
			_, _ = io.WriteString(c.Conn, request)
			response, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				t.Fatal(way, err)
			}
			if _, announced := response.Trailer["X-Sum"]; !announced {
				t.Errorf("%s: the trailer is not announced", way)
			}
			body, err := io.ReadAll(response.Body)
			if got := response.Trailer.Get("X-Sum"); got != "7" || len(body) > 0 || err != nil {
				t.Errorf("%s: got trailer %q behind %q, %v", way, got, body, err)
			}
		}
	})
}

// Requests of HTTP/2 clients go to an HTTP/1.1 endpoint by a connection each.
func TestHTTP2ClientsShareNoConnection(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	var connections atomic.Int64
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		connections.Add(1)
		for reader, first := bufio.NewReader(conn), ""; ; {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			client := request.Header.Get(http1.RealIP)
			if first == "" {
				first = client
			}
			if via := request.Header.Get("Via"); client != first || via != "2.0 "+pseudonym {
				t.Errorf("%s asks on a connection of %s, via %s", client, first, via)
			}
			_, _ = io.WriteString(conn, fine)
		}
	})
	r := start(t, Settings{Pool: pool(addr), TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}})
	for n := range 6 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+n%2))}}
		client := http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, DialContext: dialer.DialContext,
		}}
		response, err := client.Get("https://" + r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		client.CloseIdleConnections()
		if response.Proto != "HTTP/2.0" || string(body) != "ok" {
			t.Errorf("got %s, %q", response.Proto, body)
		}
	}
	if n := connections.Load(); n != 6 {
		t.Errorf("%d connections for 6 requests, want one for each", n)
	}
	if err := r.stop(); err != nil { // or the endpoint waits for us
		t.Error(err)
	}
}
