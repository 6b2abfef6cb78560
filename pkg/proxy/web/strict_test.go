package web

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2/hpack"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// strictEndpoint answers the requests that it reads by the letter, and keeps what else it gets.
type strictEndpoint struct {
	addr string

	mu    sync.Mutex
	saw   []string // requests
	wrong []string // what is no request
}

func newStrictEndpoint(t testing.TB) *strictEndpoint {
	t.Helper()
	e := &strictEndpoint{}
	e.addr, _ = rawEndpoint(t, e.serve)
	return e
}

func (e *strictEndpoint) serve(conn net.Conn) {
	var text []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		for text = append(text, buffer[:n]...); len(text) > 0; {
			request, rest, err := readStrictRequest(text)
			if errors.Is(err, errShort) {
				break
			}
			e.mu.Lock()
			if err != nil {
				e.wrong = append(e.wrong, fmt.Sprintf("%v: %q", err, text))
				e.mu.Unlock()
				return
			}
			name := request.Fields.Values("Host")[0]
			if name == e.addr { // net/http's Transport writes it for a request of HTTP/1.0 without a Host
				name = ""
			}
			e.saw = append(e.saw, fmt.Sprintf("%s %s %s %q", request.Method, request.Target, name, request.Body))
			e.mu.Unlock()
			text = rest
			answer := fine
			if request.Method == http.MethodHead {
				answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
			}
			_, _ = io.WriteString(conn, answer)
		}
	}
}

// taken gives what came since it was asked last.
func (e *strictEndpoint) taken() (saw, wrong []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	saw, wrong = e.saw, e.wrong
	e.saw, e.wrong = nil, nil
	return saw, wrong
}

// strictFront is a front for one way: by goroutines, by loops, or by net/http's server alone.
type strictFront struct {
	way      string
	addr     string
	endpoint *strictEndpoint
}

// passing is a gate for all.
type passing struct{}

func (passing) Ready() error                        { return nil }
func (passing) Wrap(next http.Handler) http.Handler { return next }
func (passing) PassesTarget() func([]byte) bool     { return nil }

func strictFronts(t testing.TB) (fronts []strictFront) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	loops := loop.NewGroup(1)
	loopCtx, endLoops := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loops.Run(loopCtx) }()
	t.Cleanup(func() {
		group.Wait()
		endLoops()
		<-ended
	})
	for _, way := range []string{"plain", "loop", "pool"} {
		e := newStrictEndpoint(t)
		limit := 300 * time.Millisecond
		s := Settings{
			Pool: pool(e.addr), Drain: time.Second, MaxHeader: 16 << 10, Timeouts: Timeouts{Header: limit, Stall: limit, Idle: limit},
		}
		c := Config{Route: "r", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: s}
		switch way {
		case "loop":
			c.Loops = loops
		case "pool":
			c.Gate = passing{}
		}
		f, err := Listen(c)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() { _ = f.Serve(ctx) })
		fronts = append(fronts, strictFront{way, f.Addr().String(), e})
	}
	t.Cleanup(cancel)
	return fronts
}

// lastRequest is sent behind what is tried, so that the connection comes to an end.
const lastRequest = "GET /last HTTP/1.1\r\nHost: last\r\nConnection: close\r\n\r\n"

// arrives sends a text to each front, and holds them to the strict grammar and to each other.
func arrives(t *testing.T, fronts []strictFront, text string) {
	t.Helper()
	seen := map[string][]string{}
	for _, f := range fronts {
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, text+lastRequest)
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
		saw, wrong := f.endpoint.taken()
		for _, each := range wrong {
			t.Errorf("%s: what left is not of the grammar: %s\nof %q", f.way, each, text)
		}
		seen[f.way] = saw
	}
	for _, way := range []string{"plain", "loop"} {
		if diff := cmp.Diff(seen["pool"], seen[way]); diff != "" {
			t.Errorf("%s is read in another way than by net/http (-):\n%s\n%q", way, diff, text)
		}
	}
}

// What comes of the corpora is refused, or leaves by the letter and is read as net/http reads it, on each way.
func TestCorpusRequests(t *testing.T) {
	t.Parallel()
	fronts := strictFronts(t)
	for _, text := range corpusRequests {
		arrives(t, fronts, text)
	}
	for _, each := range smuggling() {
		arrives(t, fronts, each.raw)
	}
}

// The same in two pieces, at each byte of a few: h1spec's fragments.
func TestCorpusFragments(t *testing.T) {
	addr, received := recorder(t)
	r := start(t, Settings{Pool: pool(addr)})
	const text = "POST /a?b HTTP/1.1\r\nHost: h\r\nX-A: \tb \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
	for at := 1; at < len(text); at++ {
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, text[:at])
		time.Sleep(time.Millisecond)
		_, _ = io.WriteString(c.Conn, text[at:])
		if code := codeOf(c); code != http.StatusOK {
			t.Errorf("cut at %d: got %d", at, code)
		}
		_ = c.Conn.Close()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	count := 0
	judge(t, received(), func(got strictRequest) {
		if count++; got.Target != "/a?b" || got.Body != "ok" || !slices.Equal(got.Fields.Values("X-A"), []string{"b"}) {
			t.Errorf("arrived: %+v", got)
		}
	})
	if count != len(text)-1 {
		t.Errorf("%d arrived of %d", count, len(text)-1)
	}
}

// What an endpoint answers is passed on by the letter, or is a bad gateway, or a torn answer; and alike on each way.
func TestCorpusAnswers(t *testing.T) { withAndWithout(t, testCorpusAnswers) }

func testCorpusAnswers(t *testing.T, start starter) {
	for i, answer := range corpusAnswers {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			got := map[string]string{}
			for way, request := range ways {
				addr, _ := raw(t, answer)
				r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Response: 20 * time.Second}})
				conn := r.talk(t).Conn
				_, _ = io.WriteString(conn, request)
				got[way] = strictAnswer(t, way, answer, conn)
				_ = conn.Close()
			}
			for _, way := range []string{"plain", "Transport"} {
				if got[way] != got["pool"] {
					t.Errorf("%s passes %q on as %s, the pool as %s", way, answer, got[way], got["pool"])
				}
			}
		})
	}
}

// strictAnswer reads the final answer to a GET by the letter, from a connection that may stay open.
func strictAnswer(t *testing.T, way, answer string, conn net.Conn) string {
	t.Helper()
	var text []byte
	reader := bufio.NewReader(conn)
	for {
		b := make([]byte, 4<<10)
		n, err := reader.Read(b)
		text = append(text, b[:n]...)
		ended := err != nil
		for {
			response, rest, err := readStrictResponse(text, http.MethodGet, ended)
			switch {
			case errors.Is(err, errShort) && ended:
				return "torn"
			case errors.Is(err, errShort):
			case err != nil:
				t.Errorf("%s: %q is passed on against the grammar: %v: %q", way, answer, err, text)
				return "wrong"
			case response.Status < 200 && response.Status != 101:
				text = rest
				continue
			default:
				if len(rest) > 0 {
					t.Errorf("%s: behind the answer of %q comes %q", way, answer, rest)
				}
				if response.Status >= 500 {
					return fmt.Sprint(response.Status)
				}
				return fmt.Sprintf("%d %q", response.Status, response.Body)
			}
			break
		}
	}
}

// FuzzRequests holds what leaves to the grammar, whatever the client sends: `go test -fuzz FuzzRequests`.
func FuzzRequests(f *testing.F) {
	for _, text := range corpusRequests {
		f.Add([]byte(text))
	}
	for _, each := range smuggling() {
		f.Add([]byte(each.raw))
	}
	for _, target := range oddTargets {
		f.Add([]byte("GET " + target + " HTTP/1.1\r\nHost: h\r\n\r\n"))
	}
	fronts := strictFronts(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 8<<10 || bytes.Contains(bytes.ToLower(text), []byte("upgrade")) {
			return // what is switched to is not HTTP
		}
		arrives(t, fronts, string(text))
	})
}

// FuzzHTTP2Requests does so for requests by HTTP/2, whose fields may hold what HTTP/1.1 has no place for.
func FuzzHTTP2Requests(f *testing.F) {
	for _, seed := range [][5]string{
		{"GET", "/a", "h", "x", "y"}, {"GET", "/x?a HTTP/1.1", "h", "x", "y"}, {"GET", "/\"<>{}|\\^`[]?\"<>{}|\\^`[]", "h", "x", "y"},
		{"GET", "/\xff\x80?\xfe", "h", "x", "y"}, {"GET", "/\x01\x7f\t", "h", "x", "y"}, {"G T", "/", "h", "x", "y"},
		{"GET", "/", "h i", "x", "y"}, {"GET", "/", "h\"", "x", "y"}, {"GET", "/", "u@h", "x", "y"}, {"GET", "/", "", "host", "i"},
		{"GET", "/", "h", "x y", "z"}, {"GET", "/", "h", "x", " y\t"}, {"GET", "/", "h", "x", "\xff"}, {"GET", "/#a", "h", "x", "y"},
		{"GET", "foo:http://v/", "h", "x", "y"}, {"OPTIONS", "*", "h", "x", "y"}, {"GET", "*", "h", "x", "y"},
		{"GET", "/", "h", "content-length", "0"}, {"GET", "/%zz?%zz", "h", "te", "trailers"}, {"PRI", "*", "h", "x", "y"},
		{"CONNECT", "/", "h:80", "x", "y"}, {"GET", "//a", "[::1]:80", "cookie", "a; b"}, {"TRACE", "/", "[::1%eth0]", "x", "y"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	f.Cleanup(certificate.Close)
	e := newStrictEndpoint(f)
	front, err := Listen(Config{Route: "r", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{
		Pool: pool(e.addr), Drain: time.Second, TLS: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
		},
	}})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- front.Serve(ctx) }()
	f.Cleanup(func() {
		cancel()
		<-served
	})
	f.Fuzz(func(t *testing.T, method, path, authority, name, value string) {
		if len(method)+len(path)+len(authority)+len(name)+len(value) > 8<<10 {
			return
		}
		statusByHTTP2(t, front.Addr().String(), []hpack.HeaderField{
			{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: authority},
			{Name: ":path", Value: path}, {Name: name, Value: value},
		}, "")
		saw, wrong := e.taken()
		if len(wrong) > 0 || len(saw) > 1 {
			t.Errorf("left: %q, against the grammar: %q", saw, wrong)
		}
	})
}
