package web

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// leave resets the connection: a client that only ends its side may still read.
func (c talk) leave() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
}

// A client that leaves is counted alike on each way, and the endpoint is given back: before the answer, in the midst of
// one that pauses, and in the midst of one that does not.
func TestWaysAgreeOnAClientThatLeaves(t *testing.T) {
	withAndWithout(t, testWaysAgreeOnAClientThatLeaves)
}

func testWaysAgreeOnAClientThatLeaves(t *testing.T, start starter) {
	much := strings.Repeat("x", 16<<10) // net/http holds less of it back
	for name, test := range map[string]struct {
		begin string
		more  bool
		want  string
	}{
		"before the answer": {"", false, "499 client_gone"},
		"in a pause":        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + much, false, "200 client_gone"},
		"in the midst":      {"", true, "200 client_gone"},
	} {
		for way, request := range ways {
			t.Run(name+", "+way, func(t *testing.T) {
				t.Parallel()
				asked := make(chan struct{})
				p := pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
					conn, _, err := http.NewResponseController(w).Hijack()
					if err != nil {
						t.Error(err)
						return
					}
					defer conn.Close()
					_, _ = io.WriteString(conn, test.begin)
					close(asked)
					if _, err := conn.Read(make([]byte, 1)); err == nil {
						t.Error("the endpoint got more")
					}
				}))
				if test.more {
					p = pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Length", "99999999")
						piece := strings.Repeat("x", 1<<16)
						for i := 0; ; i++ {
							if i == 1 {
								close(asked)
							}
							if _, err := io.WriteString(w, piece); err != nil {
								return
							}
						}
					}))
				}
				var log lockedLog
				r := start(t, Settings{Pool: p, AccessLog: "errors"}, &log)
				c := r.talk(t)
				_, _ = io.WriteString(c.Conn, request)
				<-asked
				if test.begin != "" || test.more {
					_, _ = c.Peek(1)
				}
				c.leave()
				counted := func() (got string) {
					for _, code := range []string{"200", "499", "502"} {
						if testutil.ToFloat64(r.requests.WithLabelValues("r", code)) == 1 {
							got += code
						}
					}
					for _, reason := range []string{"torn", "error", "timeout", "client_gone"} {
						if testutil.ToFloat64(r.failures.WithLabelValues("r", reason)) == 1 {
							got += " " + reason
						}
					}
					return got
				}
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
					if r.Active() == 0 && r.settled() && counted() == test.want {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("counted %q, want %q; %d connections", counted(), test.want, r.Active())
					}
				}
				if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
					t.Errorf("the endpoint has %d requests and %d failures", s.Active, s.Failures)
				}
				if strings.Contains(log.String(), "torn=true") {
					t.Errorf("logged as torn: %s", log.String())
				}
			})
		}
	}
}

// What a client that has gone is answered is for the counters: it says nothing of an endpoint, and has no body.
func TestNobodyIsToldWhoHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	metrics := NewMetrics(prometheus.NewRegistry())
	w := httptest.NewRecorder()
	(&proxy{route: "r", metrics: metrics.route("r")}).
		fail(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/x", nil), fmt.Errorf("read: %w", context.Canceled), 0)
	if w.Code != http1.CodeGone || w.Body.Len() > 0 {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
	if n := testutil.ToFloat64(metrics.failures.WithLabelValues("r", boot.ReasonClientGone)); n != 1 {
		t.Errorf("%v are counted", n)
	}
}
