package web

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
)

// A connection of HTTP/2 that sends more pings and the like than its requests account for is ended, with a GOAWAY that
// says why where the client reads, and counted; others go on. A client that does not read is ended as well.
func TestHTTP2FloodEndsItsConnection(t *testing.T) {
	for name, s := range map[string]Settings{"h2c": {GRPC: true}, "TLS": {TLS: secured(t)}} {
		for _, reads := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := s
				s.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
				r := start(t, s)
				_, good := multiplexed(t, r)
				opens(t, good, 1, true)
				if _, err := until[*http2.HeadersFrame](t, good); err != nil {
					t.Fatal(err)
				}
				c, f := multiplexed(t, r)
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				said := make(chan *http2.GoAwayFrame, 1)
				if reads {
					go func() {
						last, _ := until[*http2.GoAwayFrame](t, f)
						said <- last
						_, _ = io.Copy(io.Discard, c)
					}()
				}
				opens(t, f, 1, true)
				sent := 0
				for sent < 1_000_000 && f.WritePing(false, [8]byte{}) == nil {
					sent++
				}
				if sent == 1_000_000 {
					t.Error("a flood of pings does not end the connection")
				}
				if reads {
					// A reset may overtake it.
					if last := <-said; last != nil && (last.ErrCode != http2.ErrCodeEnhanceYourCalm || last.LastStreamID != 1) {
						t.Errorf("the client is told %v", last)
					}
				}
				eventually(t, "it is counted", func() bool {
					return testutil.ToFloat64(r.refusals.WithLabelValues("r", "http2_flood")) == 1
				})
				opens(t, good, 3, true)
				if answer, err := until[*http2.HeadersFrame](t, good); err != nil || answer.StreamID != 3 {
					t.Errorf("another client got %v: %v", answer, err)
				}
			})
		}
	}
}

// A header that comes in frames without an end is given up at its time, counted from its first frame.
func TestHTTP2HeaderHasATime(t *testing.T) {
	for name, s := range map[string]Settings{"h2c": {GRPC: true}, "TLS": {TLS: secured(t)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Handler = http.NotFoundHandler()
			s.Header = 300 * time.Millisecond
			r := start(t, s)
			c, f := multiplexed(t, r)
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			opens(t, f, 1, true)
			if _, err := until[*http2.HeadersFrame](t, f); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * s.Header) // nothing is late between requests
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0x82}}); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			for f.WriteContinuation(3, false, nil) == nil && time.Since(begin) < 30*time.Second {
				time.Sleep(s.Header / 10)
			}
			if took := time.Since(begin); took >= 30*time.Second {
				t.Error("the connection does not end")
			}
			eventually(t, "it is counted", func() bool {
				return testutil.ToFloat64(r.refusals.WithLabelValues("r", "http2_header")) == 1
			})
		})
	}
}

// What begins as HTTP/2 by TLS's word but is not ends, in the time of a header.
func TestHTTP2WithoutItsPreface(t *testing.T) {
	s := Settings{TLS: secured(t), Handler: http.NotFoundHandler(), Timeouts: Timeouts{Header: 300 * time.Millisecond}}
	for _, text := range []string{"", "PRI * HT", strings.Repeat("GET / HTTP/1.1\r\n", 2)} {
		r := start(t, s)
		c, err := tls.Dial("tcp", r.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = io.WriteString(c, text)
		if rest, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") || strings.Contains(string(rest), "HTTP/1") {
			t.Errorf("%q: got %q, %v", text, rest, err)
		}
	}
}
