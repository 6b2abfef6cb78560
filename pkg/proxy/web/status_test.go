package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Requests for the same by each way; those of the second have a body.
var byEachWay = map[string]string{
	"plain":  plainGet,
	"pool":   "GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
	"post":   "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
	"chunks": "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"switch": "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
}

// A status that HTTP has not, or that nobody asked for, is a bad gateway on every way: no panic, no tunnel, and the
// endpoint's use ends with the request.
func TestStrangeStatusIsABadGateway(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testStrangeStatusIsABadGateway)
}

func testStrangeStatusIsABadGateway(t *testing.T, start starter) {
	statuses := []string{"1000 X", "2000 X", "-10 X", "-1 X", "+10 X", " 10 X", "10", "1", "", "0x1 X", "20O OK"}
	for _, code := range []int{0, 1, 9, 10, 42, 98, 99} {
		statuses = append(statuses, fmt.Sprintf("%03d X", code))
	}
	for _, more := range []string{"", "Connection: upgrade\r\n", "Upgrade: x\r\n", "Connection: upgrade\r\nUpgrade: x\r\n",
		"Connection: upgrade\r\nUpgrade: websocket, x\r\n", "Connection: upgrade\r\nUpgrade: websoc\u212aet\r\n"} {
		statuses = append(statuses, "101 Switching Protocols\r\n"+more)
	}
	for _, status := range statuses {
		for way, request := range byEachWay {
			t.Run(fmt.Sprintf("%.40q/%s", status, way), func(t *testing.T) {
				t.Parallel()
				head := strings.TrimSuffix("HTTP/1.1 "+status, "\r\n") + "\r\n"
				addr, _ := raw(t, head+"Content-Length: 2\r\n\r\nok", head+"\r\n", head+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "")
				p := pool(addr)
				var log lockedLog
				r := start(t, Settings{Pool: p}, &log)
				for range 3 {
					c := r.talk(t)
					if _, err := io.WriteString(c.Conn, request); err != nil {
						t.Fatal(err)
					}
					if code := codeOf(c); code != http.StatusBadGateway {
						t.Errorf("got %d", code)
					}
					_ = c.Conn.Close()
				}
				if err := r.stop(); err != nil {
					t.Error(err)
				}
				if s := p.Status()[0]; s.Active != 0 {
					t.Errorf("%d requests are under way", s.Active)
				}
				if strings.Contains(log.String(), "panic") {
					t.Error(log.String())
				}
			})
		}
	}
}

// Firmware expects no interim answers, and gets none, by whatever way and version.
func TestInterimAnswersEndHere(t *testing.T) {
	addr, _ := raw(t, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+fine)
	plain := start(t, Settings{Pool: pool(addr)})
	secure := start(t, Settings{Pool: pool(addr), TLS: certificate(t, "h2", "http/1.1")})
	for name, url := range map[string]string{"HTTP/1.1": plain.url, "HTTP/2.0": "https://" + secure.Addr().String()} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			transport := &http.Transport{
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
			}
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
					t.Errorf("%s by %s: got %d", method, name, code)
					return nil
				},
			})
			request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("ok"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			transport.CloseIdleConnections()
			if response.Proto != name || response.StatusCode != http.StatusOK || response.Header.Get("Link") != "" {
				t.Errorf("%s by %s: %s by %s, %v", method, name, response.Status, response.Proto, response.Header)
			}
		}
	}
}

// The same of an endpoint of gRPC, whose status is a field that may hold anything.
func TestStrangeStatusOfGRPC(t *testing.T) {
	for _, status := range []string{"0", "7", "42", "99", "1000", "99999", "-5", "+99", "101", "x", ""} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			addr, _ := rawEndpoint(t, func(conn net.Conn) { answerByHTTP2(conn, status) })
			p := pool(addr)
			r := start(t, Settings{Pool: p, GRPC: true})
			r.speakH2C(t)
			for range 3 {
				response, err := r.http.Post(r.url, "application/grpc", strings.NewReader("hello"))
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if got := response.Header.Get(headerStatus); response.StatusCode != 200 || got != "14" {
					t.Errorf("got %s, %q", response.Status, got)
				}
			}
			eventually(t, "no request is under way", func() bool { return p.Status()[0].Active == 0 })
		})
	}
}

// answerByHTTP2 answers each stream with a status alone.
func answerByHTTP2(conn net.Conn, status string) {
	if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		headers, ok := frame.(*http2.HeadersFrame)
		if !ok {
			continue
		}
		block.Reset()
		_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: status})
		_ = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: headers.StreamID, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true,
		})
	}
}
