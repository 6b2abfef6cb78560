package web

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// roomy starts a front whose connections are charged to an account.
func roomy(t *testing.T, s Settings, l admission.Limits) running {
	t.Helper()
	return startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: s, Loops: loops(t), Account: admission.New(l, nil),
	})
}

// served makes a request by a source address on a connection that stays open.
func served(t *testing.T, r running, source, request string) (net.Conn, error) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	c, err := dialer.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Addr().Port()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		return c, err
	}
	_, err = http.ReadResponse(bufio.NewReader(c), nil)
	return c, err
}

// gone waits until one of some connections has been closed.
func gone(t *testing.T, all ...net.Conn) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		for _, c := range all {
			_ = c.SetDeadline(time.Now().Add(time.Millisecond))
			if _, err := io.Copy(io.Discard, c); !errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
		}
	}
	t.Error("nothing was given up")
}

// Connections that hold headers without end are given up, for a client that has none; in every way that a connection
// may be served.
func TestUnfinishedHeadersMakeRoom(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })
	for name, s := range map[string]Settings{
		"plain": {Pool: pool(backend(t, handler))}, "handler": {Handler: handler},
	} {
		t.Run(name, func(t *testing.T) {
			r := roomy(t, s, admission.Limits{Memory: 1 << 20, Descriptors: 10000})
			var held []net.Conn
			for i := range 12 {
				c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Addr().Port()))
				if err != nil {
					continue // refused already
				}
				defer c.Close()
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nX: "+strings.Repeat("a", 60000))
				held = append(held, c)
				if _, err := served(t, r, fmt.Sprintf("127.0.0.%d", 10+i), plainGet); err != nil {
					t.Errorf("client %d: %v", i, err)
				}
			}
			gone(t, held...)
			for _, c := range held {
				_ = c.Close()
			}
		})
	}
}

// Requests are charged while they are under way: too many of one client are turned down, another's is served.
func TestBodiesUnderWayMakeRoom(t *testing.T) {
	r := roomy(t, Settings{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "here")
	})}, admission.Limits{Memory: 1 << 20, Descriptors: 10000})
	for range 20 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Addr().Port()))
		if err != nil {
			continue // refused already
		}
		defer c.Close()
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx")
	}
	refused := func() float64 { return testutil.ToFloat64(r.refusals.WithLabelValues("r", "client_share")) }
	for deadline := time.Now().Add(20 * time.Second); refused() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("20 bodies have half of the room")
		}
	}
	if _, err := served(t, r, "127.0.0.10", plainGet); err != nil {
		t.Error(err)
	}
}

// An endpoint has carried out what it was asked to: its long answers get to their client though there is no room for
// all of them at a time.
func TestLongAnswersWithoutRoom(t *testing.T) {
	var asked atomic.Int64
	answer, over := make(chan struct{}), make(chan struct{})
	body := strings.Repeat("x", 200<<10)
	r := roomy(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		<-answer
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = io.WriteString(w, body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		<-over
		_, _ = io.WriteString(w, body[len(body)/2:])
	}))}, admission.Limits{Memory: 1 << 20, Descriptors: 10000})
	var clients []talk
	for range 20 { // which have almost half of the memory, a client's share
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok")
		clients = append(clients, c)
	}
	wait := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("not so in time: ", what)
			}
		}
	}
	wait("all are asked", func() bool { return asked.Load() == int64(len(clients)) })
	close(answer)
	for i, c := range clients {
		if _, err := c.Reader.Peek(1); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
	close(over)
	for i, c := range clients {
		response, err := http.ReadResponse(c.Reader, nil)
		if err != nil {
			t.Errorf("client %d: %v", i, err)
			continue
		}
		got, err := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusOK || string(got) != body {
			t.Errorf("client %d got %d with %d bytes, %v", i, response.StatusCode, len(got), err)
		}
	}
}

// A connection in a loop is given up, too.
func TestEvictFromLoop(t *testing.T) {
	r := roomy(t, Settings{Pool: pool(backend(t, func(http.ResponseWriter, *http.Request) {}))},
		admission.Limits{Memory: 1 << 20, Descriptors: 8})
	first, err := served(t, r, "127.0.0.10", plainGet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := served(t, r, "127.0.0.10", plainGet); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // there is room for four
		if _, err := served(t, r, fmt.Sprintf("127.0.0.%d", 20+i), plainGet); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
	gone(t, first)
}

// Streams of HTTP/2 are charged one by one, and reset one by one.
func TestStreamsAreCharged(t *testing.T) {
	r := roomy(t, Settings{GRPC: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	})}, admission.Limits{Memory: 1 << 20, Descriptors: 10000})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols, TLSClientConfig: &tls.Config{}}
	defer transport.CloseIdleConnections()
	codes := map[int]int{}
	for range 12 {
		body, end := io.Pipe()
		defer end.Close()
		request, _ := http.NewRequest(http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/", r.Addr().Port()), body)
		response, err := transport.RoundTrip(request)
		if err != nil {
			break // turned down too often
		}
		defer response.Body.Close()
		codes[response.StatusCode]++
	}
	if codes[http.StatusOK] < 3 || codes[http.StatusServiceUnavailable] < 3 {
		t.Errorf("got %v, want some of each", codes)
	}
}

// IPv6 clients are counted by /64, as by the limits of requests.
func TestClientLimitCountsPrefixes(t *testing.T) {
	ns := nstest.New(t)
	for _, a := range []string{"2001:db8::1/64", "2001:db8::2/64", "2001:db8:0:1::1/64"} {
		ns.Addr(t, "lo", a)
	}
	var r running
	ns.Do(t, func() error {
		r = startBy(t, Config{
			Listen: netip.MustParseAddrPort("[::]:0"), Settings: Settings{MaxPerClient: 1, Handler: http.NotFoundHandler()},
		})
		return nil
	})
	for i, test := range []struct {
		from  string
		taken bool
	}{{"2001:db8::1", true}, {"2001:db8::2", false}, {"2001:db8:0:1::1", true}} {
		ns.Do(t, func() error {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(test.from)}}
			var c net.Conn
			err := error(syscall.ENETUNREACH)
			for errors.Is(err, syscall.ENETUNREACH) && t.Context().Err() == nil { // until the address is there
				c, err = dialer.Dial("tcp", fmt.Sprintf("[2001:db8::1]:%d", r.Addr().Port()))
			}
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
				_, _ = io.WriteString(c, plainGet)
				_, err = http.ReadResponse(bufio.NewReader(c), nil)
			}
			if (err == nil) != test.taken {
				t.Errorf("connection %d from %s: %v", i, test.from, err)
			}
			return nil
		})
	}
}

// What an open connection of HTTP/2 sends besides requests (pings, windows) is not charged for ever: a worker's stream
// may last for months.
func TestPingsAreForgotten(t *testing.T) {
	var u unread
	now := time.Now()
	for range 90 * 24 * 120 { // every 30 s
		now = now.Add(30 * time.Second)
		u.fade(now)
		u.bytes.Add(17)
	}
	if held := u.bytes.Load(); held > unreadFree {
		t.Errorf("%d bytes of pings are held", held)
	}
	for range 1000 { // windows, for a large answer
		u.fade(now)
		u.bytes.Add(16 << 10)
	}
	if held := u.bytes.Load(); held > unreadMost+16<<10 {
		t.Errorf("%d bytes are held", held)
	}
}
