package web

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// outOfTurn is an endpoint that talks out of turn: it answers with the client's address, as it is told, and the path,
// and sends one of ten answers again, 50 us to 5 ms later.
type outOfTurn struct {
	addr   string
	again  atomic.Int64 // answers that were sent twice
	conns  atomic.Int64
	shared atomic.Int64 // connections on which more than one client was
}

func (o *outOfTurn) serve(conn net.Conn) {
	o.conns.Add(1)
	var late sync.WaitGroup
	defer late.Wait()
	reader := bufio.NewReader(conn)
	for first := ""; ; {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, request.Body); err != nil {
			return
		}
		client := request.Header.Get(http1.RealIP)
		if first == "" {
			first = client
		} else if first != client && first != "several" {
			first = "several"
			o.shared.Add(1)
		}
		body := client + " " + request.URL.Path
		if strings.HasPrefix(request.URL.Path, "/long") {
			body += strings.Repeat(" ", http1.Piece)
		}
		answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if _, err := conn.Write(answer); err != nil {
			return
		}
		if rand.IntN(10) == 0 {
			late.Go(func() {
				time.Sleep(outOfTurnDelay())
				if _, err := conn.Write(answer); err == nil {
					o.again.Add(1)
				}
			})
		}
	}
}

func outOfTurnDelay() time.Duration {
	return 50*time.Microsecond + time.Duration(rand.Int64N(int64(4950*time.Microsecond)))
}

// askAll has 16 clients ask many times, and counts the answers that are another client's. Dial and request are given the
// number of the client, which is 127.0.1.number; paths begin with path.
func askAll(
	t *testing.T, requests int, dial func(n int) (net.Conn, error), request func(n int, path string) string,
) (foreign, own int) {
	t.Helper()
	const clients = 16
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := 1; n <= clients; n++ {
		all.Go(func() {
			var conn net.Conn
			var reader *bufio.Reader
			defer func() {
				if conn != nil {
					_ = conn.Close()
				}
			}()
			for i := range requests / clients {
				if conn == nil {
					var err error
					if conn, err = dial(n); err != nil {
						t.Error(err)
						return
					}
					reader = bufio.NewReader(conn)
					_ = conn.SetDeadline(time.Now().Add(time.Minute))
				}
				path := fmt.Sprintf("/%d/%d", n, i)
				if rand.IntN(40) == 0 {
					path = "/long" + path
				}
				if _, err := io.WriteString(conn, request(n, path)); err != nil {
					t.Errorf("failed to ask for %s: %v", path, err)
					return
				}
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Errorf("failed to read the answer to %s: %v", path, err)
					return
				}
				body, err := io.ReadAll(response.Body)
				if err != nil {
					t.Errorf("failed to read the answer's body to %s: %v", path, err)
					return
				}
				to, about, _ := strings.Cut(strings.TrimSpace(string(body)), " ")
				mu.Lock()
				switch {
				case to != fmt.Sprintf("127.0.1.%d", n):
					if foreign++; foreign == 1 {
						t.Logf("client %d got %d %.80q", n, response.StatusCode, body)
					}
				case about != path:
					own++ // an earlier answer to this client
				}
				mu.Unlock()
				if response.Close || rand.IntN(50) == 0 {
					_ = conn.Close()
					conn = nil
				}
			}
		})
	}
	all.Wait()
	return foreign, own
}

// An endpoint that talks out of turn answers the client that it talks to, and no other: no way to it uses a connection
// for several clients. 12,800 requests by each way are tried when STACK_SLOW is set.
func TestAnswerOutOfTurnReachesNobodyElse(t *testing.T) {
	t.Parallel()
	requests := 480
	if os.Getenv("STACK_SLOW") != "" {
		requests = 12_800
	}
	from := func(r running, local string) (net.Conn, error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
		return dialer.DialContext(t.Context(), "tcp", r.Addr().String())
	}
	get := func(header string) func(int, string) string {
		return func(_ int, path string) string {
			return "GET " + path + " HTTP/1.1\r\nHost: h\r\n" + header + "\r\n"
		}
	}
	post := func(_ int, path string) string {
		return "POST " + path + " HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab"
	}
	plain, notPlain := get(""), get("Via: 1.1 a\r\n")
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	for name, test := range map[string]struct {
		settings Settings
		loops    bool
		secure   bool // the endpoint
		share    int  // of the requests
		request  func(n int, path string) string
		dial     func(r running, n int) (net.Conn, error) // default from 127.0.1.n
	}{
		"loop":           {loops: true, request: plain},
		"goroutine":      {request: plain},
		"net/http":       {loops: true, request: notPlain},
		"behind a gate":  {loops: true, settings: Settings{Gate: &open{}}, request: plain},
		"backend by TLS": {loops: true, secure: true, settings: Settings{Secure: trusting{}}, request: plain},
		"bodies":         {loops: true, request: post},
		"bodies, backend by TLS": {loops: true, secure: true, share: 8, // each is a handshake
			settings: Settings{Secure: trusting{}}, request: post},
		"from one way to another": {loops: true, request: func(n int, path string) string {
			return []func(int, string) string{plain, plain, plain, plain, plain, notPlain, post}[rand.IntN(7)](n, path)
		}},
		// Several clients on one connection of a proxy that is believed.
		"trusted proxy": {
			loops: true, settings: Settings{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}},
			request: func(n int, path string) string {
				return get(fmt.Sprintf("X-Forwarded-For: 127.0.1.%d\r\n", n))(n, path)
			},
			dial: func(r running, _ int) (net.Conn, error) { return from(r, "127.0.0.1") },
		},
		"PROXY header": {
			loops: true, settings: Settings{AcceptProxy: loopback}, request: plain,
			dial: func(r running, n int) (net.Conn, error) {
				conn, err := from(r, "127.0.0.1")
				if err == nil {
					_, err = fmt.Fprintf(conn, "PROXY TCP4 127.0.1.%d 127.0.0.1 1024 80\r\n", n)
				}
				return conn, err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			requests := requests / max(test.share, 1)
			o := &outOfTurn{}
			if test.secure {
				o.addr, _ = secureEndpoint(t, o.serve)
			} else {
				o.addr, _ = rawEndpoint(t, o.serve)
			}
			s := test.settings
			s.Pool = pool(o.addr)
			starting := start
			if !test.loops {
				starting = func(t *testing.T, s Settings) running { return startOn(t, s, io.Discard, nil) }
			}
			r := starting(t, s)
			dial := func(n int) (net.Conn, error) { return from(r, fmt.Sprintf("127.0.1.%d", n)) }
			if test.dial != nil {
				dial = func(n int) (net.Conn, error) { return test.dial(r, n) }
			}
			foreign, own := askAll(t, requests, dial, test.request)
			if err := r.stop(); err != nil { // or the endpoint waits for us
				t.Error(err)
			}
			t.Logf("%d requests on %d connections, %d answers sent twice: %d went to another client, %d to the same one",
				requests, o.conns.Load(), o.again.Load(), foreign, own)
			if n := o.shared.Load(); n > 0 || foreign > 0 {
				t.Errorf("%d clients got another's answer, %d connections had requests of several clients", foreign, n)
			}
			if o.again.Load() == 0 && requests > 400 && o.conns.Load() < int64(requests) { // else each has its connection
				t.Error("the endpoint has sent no answer twice")
			}
		})
	}
}

// A thousand clients do not have a thousand connections kept.
func TestKeptConnectionsAreBounded(t *testing.T) {
	var open atomic.Int64
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		open.Add(1)
		defer open.Add(-1)
		reader := bufio.NewReader(conn)
		for {
			if _, err := http.ReadRequest(reader); err != nil {
				return
			}
			_, _ = io.WriteString(conn, fine)
		}
	})
	r := start(t, Settings{Pool: pool(addr)})
	for n := range 600 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+n/250), byte(1+n%250))}}
		conn, err := dialer.DialContext(t.Context(), "tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		(talk{conn, bufio.NewReader(conn)}).ask(t, plainGet)
		_ = conn.Close()
	}
	eventually(t, "surplus connections are closed", func() bool { return open.Load() <= upstreamsKept })
	if n := open.Load(); n < upstreamsKept/2 {
		t.Errorf("%d connections are kept", n)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	eventually(t, "all connections are closed", func() bool { return open.Load() == 0 })
}

// In HTTP/2 an answer says which request it is for. One that is sent again is nobody's, although all clients share a
// connection.
func TestGRPCAnswerOutOfTurnReachesNobodyElse(t *testing.T) {
	var again atomic.Int64
	addr, _ := rawEndpoint(t, func(conn net.Conn) { serveTwice(conn, &again) })
	r := start(t, Settings{GRPC: true, Pool: pool(addr)})
	var all sync.WaitGroup
	for n := 1; n <= 8; n++ {
		all.Go(func() {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(n))}}
			transport := &http.Transport{Protocols: new(http.Protocols), DialContext: dialer.DialContext}
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: time.Minute}
			for i := range 60 {
				path := fmt.Sprintf("/%d/%d", n, i)
				response, err := client.Post(r.url+path, "application/grpc", strings.NewReader("ab"))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if want := fmt.Sprintf("127.0.1.%d %s", n, path); string(body) != want || err != nil {
					t.Errorf("got %q, %v, want %q", body, err, want)
				}
			}
		})
	}
	all.Wait()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if again.Load() == 0 {
		t.Error("the endpoint has sent no answer twice")
	}
}

// serveTwice is outOfTurn's serve for HTTP/2.
func serveTwice(conn net.Conn, again *atomic.Int64) {
	var late sync.WaitGroup
	defer late.Wait()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil {
		return
	}
	var mu sync.Mutex // of what is written
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	mu.Lock()
	_ = framer.WriteSettings()
	mu.Unlock()
	answer := func(stream uint32, body string) error {
		mu.Lock()
		defer mu.Unlock()
		var block bytes.Buffer
		encoder := hpack.NewEncoder(&block)
		encoder.SetMaxDynamicTableSize(0)
		_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
		return errors.Join(framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true,
		}), framer.WriteData(stream, true, []byte(body)))
	}
	bodies := map[uint32]string{}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				mu.Lock()
				_ = framer.WriteSettingsAck()
				mu.Unlock()
			}
		case *http2.PingFrame:
			mu.Lock()
			_ = framer.WritePing(true, f.Data)
			mu.Unlock()
		case *http2.MetaHeadersFrame:
			client := ""
			for _, field := range f.Fields {
				if field.Name == strings.ToLower(http1.RealIP) {
					client = field.Value
				}
			}
			bodies[f.StreamID] = client + " " + f.PseudoValue("path")
		case *http2.DataFrame:
			if !f.StreamEnded() {
				continue
			}
			stream, body := f.StreamID, bodies[f.StreamID]
			delete(bodies, stream)
			if answer(stream, body) != nil {
				return
			}
			if rand.IntN(10) == 0 {
				late.Go(func() {
					time.Sleep(outOfTurnDelay())
					if answer(stream, body) == nil {
						again.Add(1)
					}
				})
			}
		}
	}
}
