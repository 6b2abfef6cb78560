package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// blameless holds a pool to nobody being blamed, and nobody in use.
func blameless(t *testing.T, p *endpoint.Pool) {
	t.Helper()
	eventually(t, "no request is under way", func() bool { // handlers of HTTP/2 may end behind their connection
		return !slices.ContainsFunc(p.Status(), func(s endpoint.Status) bool { return s.Active != 0 })
	})
	for _, s := range p.Status() {
		if s.Failures != 0 || s.Health != "healthy" {
			t.Errorf("%s: %d failures, %s", s.Address, s.Failures, s.Health)
		}
	}
}

// reading is an endpoint that answers when it has read the body.
func reading(t *testing.T) string {
	return backend(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			fmt.Fprint(w, "ok")
		}
	})
}

// A body that its client wrote wrongly, did not end or did not go on with is the client's fault: 400 or 408, and no
// endpoint is blamed or left in use, however often.
func TestMalformedBodyBlamesNobody(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testMalformedBodyBlamesNobody)
}

func testMalformedBodyBlamesNobody(t *testing.T, start starter) {
	chunked := "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	const (
		stays  = iota
		closes // its side
		resets
	)
	for name, test := range map[string]struct {
		request string
		then    int
		code    int
		reason  string
	}{
		"no chunk size":            {chunked + "ZZ\r\n", stays, 400, "client_body"},
		"negative chunk size":      {chunked + "-3\r\nabc\r\n", stays, 400, "client_body"},
		"chunk size with 0x":       {chunked + "0x3\r\nabc\r\n0\r\n\r\n", stays, 400, "client_body"},
		"chunk size beyond 64 bit": {chunked + "10000000000000003\r\nabc\r\n", stays, 400, "client_body"},
		"chunk longer than said":   {chunked + "3\r\nabcd\r\n0\r\n\r\n", stays, 400, "client_body"},
		"second chunk":             {chunked + "3\r\nabc\r\nZ\r\n", stays, 400, "client_body"},
		"line feed alone":          {chunked + "3\nabc\r\n0\r\n\r\n", stays, 400, "client_body"},
		"long extension":           {chunked + "3;" + strings.Repeat("x", 8<<10) + "\r\nabc\r\n", stays, 400, "client_body"},
		"many extensions": {chunked + strings.Repeat("1;"+strings.Repeat("x", 2000)+"\r\na\r\n", 40), stays, 400,
			"client_body"},
		"malformed trailer":  {chunked + "3\r\nabc\r\n0\r\nno field\r\n\r\n", stays, 400, "client_body"},
		"chunks without end": {chunked + "3\r\nabc\r\n", closes, 400, "client_body"},
		"chunk without end":  {chunked + "9\r\nabc", closes, 400, "client_body"},
		"shorter than said":  {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", closes, 400, "client_body"},
		"reset within":       {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", resets, 0, ""},
		"stalled":            {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", stays, 408, "client_stalled"},
		"stalled in chunk":   {chunked + "9\r\nabc", stays, 408, "client_stalled"},
		"of a GET":           {strings.Replace(chunked, "POST", "GET", 1) + "ZZ\r\n", stays, 400, "client_body"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pool(reading(t), reading(t))
			r := start(t, Settings{Pool: p, Timeouts: Timeouts{Stall: 300 * time.Millisecond}})
			const times = 6
			for range times {
				c := r.talk(t)
				_, _ = io.WriteString(c.Conn, test.request)
				switch test.then {
				case closes:
					_ = c.Conn.(*net.TCPConn).CloseWrite()
				case resets:
					time.Sleep(20 * time.Millisecond) // the request is on its way: else nobody is asked
					_ = c.Conn.(*net.TCPConn).SetLinger(0)
					_ = c.Conn.Close()
				}
				if code := codeOf(c); code != test.code {
					t.Errorf("got %d, want %d", code, test.code)
				}
				_ = c.Conn.Close()
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			blameless(t, p)
			if n := testutil.ToFloat64(r.failures.WithLabelValues("r", test.reason)); n != times && test.then != resets {
				t.Errorf("%v failures are counted as %s, want %d", n, test.reason, times)
			}
		})
	}
}

// What a client asks to switch to in bytes that name no protocol is its own mistake, and never reaches an endpoint.
func TestOddUpgradeIsABadGateway(t *testing.T) {
	addr, received := recorder(t)
	p := pool(addr)
	r := start(t, Settings{Pool: p})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, upgrade := range []string{"\xff", "web\tsocket", "websocket, \xc3\xa9"} {
			c := r.talk(t)
			_, _ = fmt.Fprintf(c.Conn, "%s / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: %s\r\n\r\n", method, upgrade)
			if code := codeOf(c); code != http.StatusBadRequest {
				t.Errorf("%s, %q: got %d", method, upgrade, code)
			}
			_ = c.Conn.Close()
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	blameless(t, p)
	if got := received(); len(got) > 0 {
		t.Errorf("arrived: %q", got)
	}
}

// An endpoint that closes because its client is slow is not blamed for that; one that closes when it has all of the
// request is.
func TestImpatientEndpointIsNotEjected(t *testing.T) {
	closed := make(chan struct{}, 10)
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		b := make([]byte, 4<<10)
		for text := ""; !strings.Contains(text, "abc"); {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			text += string(b[:n])
		}
		_ = conn.Close()
		closed <- struct{}{}
	})
	p := pool(addr)
	r := start(t, Settings{Pool: p})
	for i, length := range []int{600, 3} {
		c := r.talk(t)
		_, _ = fmt.Fprintf(c.Conn, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\nabc", length)
		<-closed
		for range length - 3 { // so slowly that the endpoint did not wait for it
			time.Sleep(time.Millisecond)
			if _, err := io.WriteString(c.Conn, "d"); err != nil {
				break
			}
		}
		if code := codeOf(c); code != http.StatusBadGateway {
			t.Errorf("got %d", code)
		}
		_ = c.Conn.Close()
		eventually(t, "no request is under way", func() bool { return p.Status()[0].Active == 0 })
		if got := p.Status()[0].Failures; got != uint64(i) {
			t.Errorf("%d failures, want %d", got, i)
		}
	}
}

// The same by HTTP/2, to endpoints of HTTP/1.1 and, as gRPC, of HTTP/2: a stream that is reset, that is longer or shorter
// than it says, and a connection that ends.
func TestBrokenStreamsBlameNobody(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	secured := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}
	breaks := map[string]func(f *http2.Framer, conn net.Conn){
		"reset":   func(f *http2.Framer, _ net.Conn) { _ = f.WriteRSTStream(1, http2.ErrCodeCancel) },
		"refused": func(f *http2.Framer, _ net.Conn) { _ = f.WriteRSTStream(1, http2.ErrCodeInternal) },
		"short":   func(f *http2.Framer, _ net.Conn) { _ = f.WriteData(1, true, []byte("c")) },
		"long":    func(f *http2.Framer, _ net.Conn) { _ = f.WriteData(1, true, bytes.Repeat([]byte("c"), 50)) },
		"closed":  func(_ *http2.Framer, conn net.Conn) { _ = conn.Close() },
		"garbage": func(_ *http2.Framer, conn net.Conn) {
			_, _ = io.WriteString(conn, "\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		},
	}
	for kind, grpc := range map[string]bool{"http": false, "grpc": true} {
		for name, interrupt := range breaks {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				asked := make(chan struct{}, 100)
				handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadFull(r.Body, make([]byte, 3))
					asked <- struct{}{}
					_, _ = io.Copy(io.Discard, r.Body)
				})
				var addr string
				if grpc {
					addr = h2c(t, handler)
				} else {
					addr = backend(t, handler)
				}
				p := pool(addr)
				r := start(t, Settings{Pool: p, TLS: secured, GRPC: grpc})
				for range 6 {
					conn, err := tls.Dial("tcp", r.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
					if err != nil {
						t.Fatal(err)
					}
					_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
					var block bytes.Buffer
					encoder := hpack.NewEncoder(&block)
					for _, f := range [][2]string{
						{":method", "POST"}, {":scheme", "https"}, {":authority", "h"}, {":path", "/a"}, {"content-length", "9"},
						{"content-type", "application/grpc"}, {"te", "trailers"},
					} {
						_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
					}
					_, _ = io.WriteString(conn, http2.ClientPreface)
					framer := http2.NewFramer(conn, conn)
					_ = framer.WriteSettings()
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
					_ = framer.WriteData(1, false, []byte("abc"))
					<-asked // the endpoint has some of the body, and waits
					interrupt(framer, conn)
					_ = framer.WritePing(false, [8]byte{})
					for { // until what was sent has been read, or the connection is ended
						frame, err := framer.ReadFrame()
						if ping, ok := frame.(*http2.PingFrame); err != nil || ok && ping.IsAck() {
							break
						}
					}
					_ = conn.Close()
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				blameless(t, p)
			})
		}
	}
}
