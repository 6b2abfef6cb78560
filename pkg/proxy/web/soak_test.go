package web

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// moody is an endpoint that answers each request with its path, in many manners, well or badly.
func moody(t *testing.T) (addr string) {
	t.Helper()
	addr, _ = rawEndpoint(t, func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			body, err := io.ReadAll(request.Body)
			if err != nil || !answerMoodily(conn, request.URL.Path+string(body)) {
				return
			}
		}
	})
	return addr
}

// answerMoodily tells whether the connection goes on.
func answerMoodily(conn net.Conn, text string) bool {
	length := "HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(text)) + "\r\n"
	long := strings.Repeat(text, 5000)
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(text), text)
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	send := func(pieces ...string) {
		for _, piece := range pieces {
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
			time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		}
	}
	switch rand.IntN(14) {
	case 0:
		send(chunked, chunk, "0\r\n\r\n")
	case 1:
		send(chunked, chunk) // breaks off
		return false
	case 2:
		send(length, "Connection: close\r\n\r\n"+text)
		return false
	case 3:
		send(length + "\r\n" + text + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
	case 4:
		send(length+"\r\n", text[:len(text)/2])
		return false
	case 5:
		send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", length+"\r\n"+text)
	case 6:
		send(length, "\r\n", text)
		return false // without a word
	case 7:
		send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", text)
		return false
	case 8:
		send("HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(long))+"\r\n\r\n", long)
	case 9:
		return false
	default:
		send(length + "\r\n" + text)
	}
	return true
}

// Many clients, of which some leave, endpoints that answer well or badly, and reloads meanwhile: nobody is answered with
// what another asked for, and in the end nothing is left over.
func TestNobodyGetsAnothersAnswer(t *testing.T) {
	a, b := moody(t), moody(t)
	p := pool(a, b)
	settings := func(i int) Settings {
		s := Settings{Pool: p, Drain: 20 * time.Second}
		switch i % 5 {
		case 1:
			s.Gate = &open{}
		case 2:
			s.Timeouts.Header = 9 * time.Second // another server
		case 3:
			s.Trusted = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		case 4:
			s.Timeouts.Dial = 3 * time.Second // another pool of connections
		}
		return s
	}
	before := descriptors(t)
	r := start(t, settings(0))
	var answered, torn atomic.Int64
	var clients sync.WaitGroup
	const rounds = 40
	for client := range 24 {
		clients.Go(func() {
			var c *talk
			for i := range rounds {
				if c == nil {
					conn, err := net.Dial("tcp", r.Addr().String())
					if err != nil {
						t.Error(err)
						return
					}
					_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
					c = &talk{conn, bufio.NewReader(conn)}
				}
				path := fmt.Sprintf("/client-%d/request-%d/", client, i)
				if !oneTalk(t, c, path, &answered, &torn) {
					_ = c.Conn.Close()
					c = nil
				}
			}
			if c != nil {
				_ = c.Conn.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		clients.Wait()
		close(done)
	}()
	for i := 1; ; i++ {
		select {
		case <-done:
		case <-time.After(20 * time.Millisecond):
			r.Update(settings(i))
			continue
		}
		break
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if answered.Load() == 0 {
		t.Error("nobody was answered")
	}
	t.Logf("%d answered, %d torn", answered.Load(), torn.Load())
	for name, n := range map[string]float64{
		"in flight": testutil.ToFloat64(r.flight.WithLabelValues("r")),
		"open":      testutil.ToFloat64(r.open.WithLabelValues("r")),
	} {
		if n != 0 {
			t.Errorf("%v %s", n, name)
		}
	}
	for _, s := range p.Status() {
		if s.Active != 0 {
			t.Errorf("%d requests are still said to be at %s", s.Active, s.Address)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); descriptors(t) > before+4; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors, before %d", descriptors(t), before)
		}
	}
}

// oneTalk asks once, by a random way, and tells whether the connection goes on.
func oneTalk(t *testing.T, c *talk, path string, answered, torn *atomic.Int64) bool {
	requests := []string{
		"GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: h\r\nTe: trailers\r\n\r\n",
		"POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
	}
	which := min(rand.IntN(12), 11)
	want := path
	switch {
	case which > 3:
		which = 0
	case which == 3:
		want += "abc"
	}
	text := requests[which]
	if rand.IntN(10) == 0 { // in two pieces
		at := 1 + rand.IntN(len(text)-1)
		_, _ = io.WriteString(c.Conn, text[:at])
		time.Sleep(100 * time.Microsecond)
		text = text[at:]
	}
	_, _ = io.WriteString(c.Conn, text)
	if rand.IntN(40) == 0 {
		return false // leaves
	}
	response, err := http.ReadResponse(c.Reader, nil)
	for err == nil && response.StatusCode < 200 {
		response, err = http.ReadResponse(c.Reader, nil)
	}
	if err != nil {
		if os.IsTimeout(err) {
			t.Errorf("%s: %v", path, err)
		}
		torn.Add(1)
		return false
	}
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		torn.Add(1)
		if rest := strings.ReplaceAll(string(body), want, ""); !strings.HasPrefix(want, rest) {
			t.Errorf("%s got a piece of %.200q", path, body)
		}
		return false
	case response.StatusCode == http.StatusOK:
		answered.Add(1)
		if strings.ReplaceAll(string(body), want, "") != "" {
			t.Errorf("%s got %.200q", path, body)
		}
	case response.StatusCode != http.StatusBadGateway && response.StatusCode != http.StatusServiceUnavailable:
		t.Errorf("%s got %s", path, response.Status)
	}
	return !response.Close
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc")
	}
	return len(entries)
}

// An endpoint that says more than its answer, in one piece with it, while many requests wait for its connections.
func TestSurplusUnderLoad(t *testing.T) {
	serve := func(conn net.Conn) {
		reader := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			path := request.URL.Path
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
				len(path), path)
		}
	}
	addr, _ := rawEndpoint(t, serve)
	secure, _ := secureEndpoint(t, serve)
	for way, request := range ways {
		surplusUnderLoad(t, way, request, Settings{Pool: pool(addr)})
		surplusUnderLoad(t, way+" by TLS", request, Settings{Pool: pool(secure), Secure: trusting{}})
	}
}

func surplusUnderLoad(t *testing.T, way, request string, s Settings) {
	t.Helper()
	r := start(t, s)
	requests := 30
	if s.Secure != nil { // each takes a connection, and a handshake
		requests = 5
	}
	var clients sync.WaitGroup
	for i := range 32 {
		c := r.talk(t)
		clients.Go(func() {
			for j := range requests {
				path := fmt.Sprintf("/client-%d/request-%d", i, j)
				_, _ = io.WriteString(c.Conn, strings.Replace(request, "/", path, 1))
				response, err := http.ReadResponse(c.Reader, nil)
				if err != nil {
					t.Errorf("%s: %v", way, err)
					return
				}
				if body, err := io.ReadAll(response.Body); string(body) != path && response.StatusCode == http.StatusOK {
					t.Errorf("%s: %s got %.80q, %v", way, path, body, err)
					return
				}
			}
		})
	}
	clients.Wait()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
