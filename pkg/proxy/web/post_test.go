package web

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

const plainPost = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"

// A POST is sent once, whatever becomes of it: on a connection of its own, and not again.
func TestPostIsSentOnce(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testPostIsSentOnce)
}

func testPostIsSentOnce(t *testing.T, start starter) {
	for name, test := range map[string]struct {
		answer func(c net.Conn)
		code   int
		body   string
	}{
		"answers": {func(c net.Conn) { _, _ = io.WriteString(c, fine) }, 200, "ok"},
		"chunked": {func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
		}, 200, "ok"},
		"no content": {func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n") }, 204, ""},
		"answers slowly": {func(c net.Conn) {
			time.Sleep(3 * loop.Tick)
			_, _ = io.WriteString(c, fine)
		}, 200, "ok"},
		"long answer": {func(c net.Conn) {
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 2*http1.Piece,
				strings.Repeat("x", 2*http1.Piece))
		}, 200, strings.Repeat("x", 2*http1.Piece)},
		"closes":        {func(net.Conn) {}, 502, ""},
		"breaks off":    {func(c net.Conn) { _, _ = io.WriteString(c, fine[:20]) }, 502, ""},
		"resets":        {func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, 502, ""},
		"another world": {func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n") }, 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var gets, posts atomic.Int64
			addr, _ := rawEndpoint(t, func(conn net.Conn) {
				reader := bufio.NewReader(conn)
				for {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					body, _ := io.ReadAll(request.Body)
					if request.Method == http.MethodGet {
						gets.Add(1)
						_, _ = io.WriteString(conn, fine)
						continue
					}
					posts.Add(1)
					if string(body) != "hello" || request.Header.Get(http1.ForwardedFor) != "127.0.0.1" {
						t.Errorf("got %q from %s", body, request.Header.Get(http1.ForwardedFor))
					}
					test.answer(conn)
					if test.code == http.StatusBadGateway {
						return
					}
				}
			})
			p := pool(addr)
			r := start(t, Settings{Pool: p})
			c := r.talk(t)
			c.ask(t, plainGet) // leaves a connection to the endpoint
			response, body := c.ask(t, plainPost)
			if response.StatusCode != test.code || test.code < 300 && body != test.body {
				t.Errorf("got %d, %d bytes, want %d, %d bytes", response.StatusCode, len(body), test.code, len(test.body))
			}
			if stays := len(r.loopConns()) == 1; stays != (r.own == nil) {
				t.Errorf("stays in the loop: %v", stays)
			}
			if g, n := gets.Load(), posts.Load(); g != 1 || n != 1 {
				t.Errorf("the endpoint saw %d GETs and %d POSTs, want 1 of each", g, n)
			}
			code := fmt.Sprint(test.code)
			eventually(t, "the request is counted with "+code, func() bool {
				return r.settled() && testutil.ToFloat64(r.requests.WithLabelValues("r", code)) >= 1
			})
			failures := uint64(0)
			if test.code == http.StatusBadGateway {
				failures = 1
			}
			if s := p.Status()[0]; s.Active != 0 || s.Failures != failures {
				t.Errorf("the endpoint has %d requests and %d failures, want 0 and %d", s.Active, s.Failures, failures)
			}
			_ = c.Conn.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A POST goes to another endpoint where the first takes no connection: nothing of it was sent.
func TestPostFindsAnotherEndpoint(t *testing.T) { withAndWithout(t, testPostFindsAnotherEndpoint) }

func testPostFindsAnotherEndpoint(t *testing.T, start starter) {
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	r := start(t, Settings{Pool: pool(refused(t), addr)})
	for range 4 {
		if response, body := r.talk(t).ask(t, plainPost); response.StatusCode != 200 || body != "hello" {
			t.Errorf("got %d %q", response.StatusCode, body)
		}
	}
}

// A client that goes away ends the wait for the answer to its POST.
func TestPostOfAClientThatGoes(t *testing.T) { withAndWithout(t, testPostOfAClientThatGoes) }

func testPostOfAClientThatGoes(t *testing.T, start starter) {
	left := make(chan error, 1)
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		request, err := http.ReadRequest(reader)
		if err != nil { // the client has gone before the request was sent
			left <- err
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		_, err = reader.ReadByte()
		left <- err
	})
	r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Response: -1}})
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, plainPost)
	eventually(t, "the request comes", func() bool { return testutil.ToFloat64(r.flight.WithLabelValues("r")) == 1 })
	c.leave()
	select {
	case err := <-left:
		if err == nil {
			t.Error("the endpoint got more than the request")
		}
	case <-time.After(30 * time.Second):
		t.Error("the endpoint is still waited for")
	}
}

// There are clients that send a line's end behind a POST's body. It belongs to no request.
func TestLineEndBehindPost(t *testing.T) { withAndWithout(t, testLineEndBehindPost) }

func testLineEndBehindPost(t *testing.T, start starter) {
	asked, answer := make(chan struct{}), make(chan struct{})
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/wait" {
			asked <- struct{}{}
			<-answer
		}
		_, _ = w.Write(body)
	})
	r := start(t, Settings{Pool: pool(addr)})
	const head = "HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" // net/http's
	for name, parts := range map[string][]string{
		"with the next": {"\r\n" + plainGet},
		"alone":         {"\r\n", plainGet},
		"in pieces":     {"\r", "\n", "\r\n", plainGet},
		"net/http's":    {"\r\n" + head},
	} {
		t.Run(name, func(t *testing.T) {
			c := r.talk(t)
			received := func() float64 { return testutil.ToFloat64(r.transferred.WithLabelValues("r", "in")) }
			c.ask(t, plainPost)
			eventually(t, "the POST is counted", r.settled)
			for i, part := range parts {
				before := received()
				_, _ = io.WriteString(c.Conn, part)
				if i < len(parts)-1 {
					eventually(t, "it is read", func() bool { return received() == before+float64(len(part)) })
				}
			}
			response, err := http.ReadResponse(c.Reader, &http.Request{Method: http.MethodHead})
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusOK {
				t.Errorf("the next request gets %d", response.StatusCode)
			}
			_ = c.Conn.Close()
			eventually(t, "the connection ends", func() bool { return r.Active() == 0 })
		})
	}
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, strings.Replace(plainPost, "/a", "/wait", 1))
	<-asked // of a connection that the loop does not watch yet
	_, _ = io.WriteString(c.Conn, "\r\n")
	answer <- struct{}{}
	c.ask(t, "")
	if response, _ := c.ask(t, plainPost); response.StatusCode != http.StatusOK {
		t.Errorf("the request behind a line's end that came early gets %d", response.StatusCode)
	}
	if response, _ := c.ask(t, "\r\n\r\n\r\n"+plainGet); response.StatusCode != http.StatusBadRequest {
		t.Errorf("more of them get %d", response.StatusCode)
	}
}

// Clients that POST again and again drive out no connection that others keep, on one connection or on many.
func TestPostsLeaveOthersTheirConnections(t *testing.T) {
	t.Parallel()
	var accepted, open atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			accepted.Add(1)
			open.Add(1)
		case http.StateClosed:
			open.Add(-1)
		}
	}
	server.Start()
	defer server.Close()
	config := Config{
		Listen:   netip.MustParseAddrPort("0.0.0.0:0"),
		Settings: Settings{Pool: pool(strings.TrimPrefix(server.URL, "http://"))},
		Loops:    loops(t),
	}
	r := startBy(t, config)
	const clients, posts = 50, 150 // a loop keeps 128
	var idle []talk
	for i := range clients {
		c := r.talkFrom(t, fmt.Sprintf("127.0.3.%d", i+1))
		c.ask(t, plainGet)
		idle = append(idle, c)
	}
	for i := range 2 {
		address := fmt.Sprintf("127.0.4.%d", i+1)
		for range posts {
			c := r.talkFrom(t, address)
			c.ask(t, plainPost)
			_ = c.Close()
		}
		c := r.talkFrom(t, address)
		for range posts {
			c.ask(t, plainPost)
		}
	}
	eventually(t, "connections of POSTs end", func() bool { return open.Load() <= clients+10 })
	before := accepted.Load()
	for _, c := range idle {
		c.ask(t, plainGet)
	}
	if n := accepted.Load() - before; n != 0 {
		t.Errorf("%d clients of %d have lost their connection to the endpoint", n, clients)
	}
}

// An endpoint closes each connection behind its answer without a word, as uWSGI does, or as any server that is ending:
// the next POST must not go by that connection, since it may not be sent again when it is lost.
func TestPostsToAnEndpointThatClosesBehindEachAnswer(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		addr, _ := rawEndpoint(t, func(conn net.Conn) {
			request, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, _ = io.ReadAll(request.Body)
				_, _ = io.WriteString(conn, fine)
				time.Sleep(500 * time.Microsecond)
			}
		})
		c := start(t, Settings{Pool: pool(addr)}).talk(t)
		codes := map[int]int{}
		for range 200 {
			response, _ := c.ask(t, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok")
			codes[response.StatusCode]++
		}
		if codes[200] != 200 {
			t.Errorf("got %v", codes)
		}
	})
}

// An endpoint that has kept an idle connection open for a while gets POSTs on it, and on others, until it closes one.
func TestPostsGoOnConnectionsThatLast(t *testing.T) {
	t.Parallel()
	var accepted, posts atomic.Int64
	conns := make(chan net.Conn, 64)
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		accepted.Add(1)
		conns <- conn
		for reader := bufio.NewReader(conn); ; {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			posts.Add(1)
			_, _ = io.WriteString(conn, fine)
		}
	})
	c := startLogged(t, Settings{Pool: pool(addr)}, io.Discard).talk(t)
	post := func(n int) (opened int64) {
		before := accepted.Load()
		for range n {
			if response, body := c.ask(t, plainPost); response.StatusCode != 200 || body != "ok" {
				t.Fatalf("got %d %q", response.StatusCode, body)
			}
		}
		return accepted.Load() - before
	}
	if n := post(3); n != 3 {
		t.Errorf("%d connections for 3 POSTs to an endpoint of which nothing is known", n)
	}
	time.Sleep(1100 * time.Millisecond)
	if n := post(20); n != 0 {
		t.Errorf("%d connections for POSTs to an endpoint that keeps them", n)
	}
	for len(conns) > 0 {
		_ = (<-conns).Close()
	}
	time.Sleep(loop.Tick)
	if n := post(3); n != 3 {
		t.Errorf("%d connections for 3 POSTs to an endpoint that has closed one", n)
	}
	if n := posts.Load(); n != 26 {
		t.Errorf("the endpoint saw %d POSTs, want 26", n)
	}
}
