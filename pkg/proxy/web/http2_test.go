package web

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
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
	for name, test := range map[string]struct {
		s    Settings
		more []byte // of a header, in each further frame
	}{
		"h2c, empty frames": {Settings{GRPC: true}, nil}, "TLS, empty frames": {Settings{TLS: secured(t)}, nil},
		"h2c, frames of a byte": {Settings{GRPC: true}, []byte{0x90}},
		"TLS, frames of a byte": {Settings{TLS: secured(t)}, []byte{0x90}},
	} {
		s := test.s
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
			for f.WriteContinuation(3, false, test.more) == nil && time.Since(begin) < 30*time.Second {
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

// While ten clients flood their connections of HTTP/2, others are served on theirs, and messages of a stream go both
// ways.
func TestHTTP2FloodsLeaveOthersTheirs(t *testing.T) {
	r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		for message := make([]byte, 100); ; {
			n, err := r.Body.Read(message)
			if _, failed := w.Write(message[:n]); err != nil || failed != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
		}
	}))})
	_, stream := multiplexed(t, r)
	opens(t, stream, 1, false)
	if _, err := until[*http2.HeadersFrame](t, stream); err != nil {
		t.Fatal(err)
	}
	const clients = 10
	var floods sync.WaitGroup
	for range clients {
		c, f := multiplexed(t, r)
		floods.Go(func() {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			for f.WritePing(false, [8]byte{}) == nil {
			}
		})
	}
	r.speakH2C(t)
	for i := range 100 {
		if err := stream.WriteData(1, false, []byte("echo")); err != nil {
			t.Fatal(err)
		}
		if message, err := until[*http2.DataFrame](t, stream); err != nil || string(message.Data()) != "echo" {
			t.Fatalf("message %d: %v", i, err)
		}
		response, err := r.http.Post(r.url+"/s/Call", "application/grpc", strings.NewReader("call"))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(text) != "call" {
			t.Fatalf("call %d: %q, %v", i, text, err)
		}
	}
	floods.Wait()
	eventually(t, "each flood is counted, and nobody else", func() bool {
		return testutil.ToFloat64(r.refusals.WithLabelValues("r", "http2_flood")) == clients
	})
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
