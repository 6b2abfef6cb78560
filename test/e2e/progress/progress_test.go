package progress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// A step that moves slowly is not given up, however long it takes. It is, when it stands still for its patience.
func TestSlowIsNotStalled(t *testing.T) {
	const patience = 10 * time.Second
	var marks atomic.Int64
	for name, move := range map[string]func(*progress.Watch, int){
		"what is told": func(w *progress.Watch, i int) { w.Moved(strings.Repeat("x", i)) },
		"bytes":        func(w *progress.Watch, _ int) { w.Bytes(1) },
		"a reader": func(w *progress.Watch, _ int) {
			_, _ = io.ReadAll(w.Reader(strings.NewReader("b")))
		},
		"a connection": func(w *progress.Watch, _ int) {
			near, far := net.Pipe()
			c, err := w.Dialer(func(context.Context, string, string) (net.Conn, error) { return near, nil })(t.Context(), "", "")
			if err != nil {
				t.Error(err)
			}
			go func() { _, _ = far.Write([]byte("b")); _ = far.Close() }()
			_, _ = io.ReadAll(c)
		},
		"a sign": func(*progress.Watch, int) { marks.Add(1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				marks.Store(0)
				sign := func() string { return strings.Repeat("x", int(marks.Load())) }
				ctx, w := progress.Begin(t.Context(), progress.Patience{
					Quiet: patience, Signs: []func() string{sign},
				})
				defer w.End()
				for i := range 60 {
					time.Sleep(9 * time.Second)
					if err := context.Cause(ctx); err != nil {
						t.Fatalf("given up at move %d: %v", i, err)
					}
					move(w, i)
				}
				began := time.Now()
				<-ctx.Done()
				// A sign is seen when it is looked at.
				if quiet := time.Since(began); quiet < patience || quiet > patience+patience/8 {
					t.Errorf("given up after %s without a movement", quiet)
				}
				if stalled := new(progress.Stalled); !errors.As(context.Cause(ctx), &stalled) || len(stalled.Far) != 1 {
					t.Errorf("got %v", context.Cause(ctx))
				}
			})
		})
	}
}

func TestStalledSaysHowFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sign := func() string { return "the firmware's last line: Start PXE" }
		ctx, w := progress.Begin(t.Context(), progress.Patience{Quiet: 10 * time.Second, Signs: []func() string{sign}})
		defer w.End()
		time.Sleep(5 * time.Second)
		w.Moved("block 7")
		w.Bytes(1234)
		w.Bytes(0)
		<-ctx.Done()
		const want = "nothing moved for 10s, given up after 15s: " +
			"block 7; 1234 bytes came; the firmware's last line: Start PXE"
		if got := context.Cause(ctx).Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		other := errors.New("unexpected EOF")
		if got := w.Why(ctx, other); !errors.Is(got, other) || !strings.HasPrefix(got.Error(), want) {
			t.Errorf("got %v", got)
		}
		if w.Why(ctx, nil) != nil {
			t.Error("what did not fail has a reason")
		}
	})
}

// Time in which a process wants a processor and gets none is not the process's.
func TestWaitingForAProcessorDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		waited := func() time.Duration { return min(time.Since(began)*9/10, 90*time.Second) }
		ctx, w := progress.Begin(t.Context(), progress.Patience{Quiet: 20 * time.Second, Waited: waited})
		defer w.End()
		<-ctx.Done()
		if after := time.Since(began); after != 110*time.Second {
			t.Errorf("given up after %s, want 20 s more than the 90 in which it waited", after)
		}
	})
}

func TestEndedByTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer, cancel := context.WithCancelCause(t.Context())
		ctx, w := progress.Begin(outer, progress.Patience{Quiet: time.Second})
		defer w.End()
		ctrlC := errors.New("Ctrl-C")
		cancel(ctrlC)
		<-ctx.Done()
		if err := context.Cause(ctx); !errors.Is(err, ctrlC) {
			t.Errorf("got %v", err)
		}
		if err := w.Why(ctx, io.EOF); !errors.Is(err, io.EOF) || errors.Is(err, ctrlC) {
			t.Errorf("got %v", err)
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		began := time.Now()
		look := func(context.Context) error {
			looks.Add(1)
			if time.Since(began) > time.Minute {
				return nil
			}
			return errors.New("not yet")
		}
		patience := progress.Patience{Quiet: 10 * time.Second, Signs: []func() string{func() string { return fmt.Sprint(looks.Load()) }}}
		if err := progress.Until(t.Context(), patience, 5*time.Second, look); err != nil {
			t.Error(err)
		}
		began = time.Now()
		patience.Signs = nil
		err := progress.Until(t.Context(), patience, 5*time.Second, look)
		if err == nil || err.Error() != "nothing moved for 10s: not yet" {
			t.Errorf("got %v", err)
		}
		began = time.Now()
		err = progress.Until(t.Context(), patience, 5*time.Second, func(context.Context) error {
			return progress.Final(io.ErrUnexpectedEOF)
		})
		if !errors.Is(err, io.ErrUnexpectedEOF) || !time.Now().Equal(began) {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
	})
}

// slowly is an answer that comes in pieces.
type slowly struct {
	pieces int
	pause  time.Duration
	ctx    context.Context
}

func (s *slowly) RoundTrip(r *http.Request) (*http.Response, error) {
	s.ctx = r.Context()
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: io.NopCloser(s), Request: r}, nil
}

func (s *slowly) Read(b []byte) (int, error) {
	if s.pieces == 0 {
		return 0, io.EOF
	}
	s.pieces--
	select {
	case <-time.After(s.pause):
		return copy(b, "piece"), nil
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
}

func TestTransport(t *testing.T) {
	for _, test := range []struct {
		pause time.Duration
		bytes int
		fault string
	}{
		{9 * time.Second, 500, ""},
		{11 * time.Second, 0, "nothing moved for 10s, given up after 10s: 200 OK (context canceled)"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := http.Client{Transport: progress.Transport{
				RoundTripper: &slowly{pieces: 100, pause: test.pause}, Patience: progress.Patience{Quiet: 10 * time.Second},
			}}
			response, err := client.Get("http://192.0.2.1/")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(response.Body)
			if len(got) != test.bytes || (err == nil) != (test.fault == "") || err != nil && err.Error() != test.fault {
				t.Errorf("a piece each %s: got %d bytes, %v", test.pause, len(got), err)
			}
			if err := response.Body.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A connection on which something moves in either direction goes on; one on which nothing moves does not.
func TestConn(t *testing.T) {
	for _, test := range []struct {
		name  string
		pause time.Duration
		stuck int // the pieces after which the peer does nothing more
		sends bool
		fault string
	}{
		{name: "slow to send", pause: 9 * time.Second, stuck: 100, sends: true},
		{name: "slow to read", pause: 9 * time.Second, stuck: 100},
		{"stops sending", time.Second, 7, true, "nothing moved for 10s, given up after 17s: 35 bytes came"},
		{"stops reading", time.Second, 2, false, "nothing moved for 10s, given up after 12s: 131072 bytes were sent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				over, err := progress.Over(near, progress.Patience{Quiet: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				const pieces, size = 20, 64 << 10
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := range pieces {
						if time.Sleep(test.pause); i == test.stuck {
							time.Sleep(time.Hour)
						}
						if test.sends {
							_, _ = far.Write([]byte("piece"))
						} else {
							_, _ = io.ReadFull(far, make([]byte, size))
						}
					}
					_ = far.Close()
				}()
				if test.sends {
					_, err = io.ReadAll(over)
				} else {
					_, err = over.Write(make([]byte, pieces*size))
				}
				if (err == nil) != (test.fault == "") || err != nil && !strings.HasPrefix(err.Error(), test.fault+" (") {
					t.Errorf("got %v, want %q", err, test.fault)
				}
				if stalled := new(progress.Stalled); errors.As(err, &stalled) != (test.fault != "") {
					t.Errorf("got %v", err)
				}
				_ = over.Close()
				<-done
			})
		})
	}
}

// swallow reads a request's body in pieces, and answers then.
type swallow struct {
	pause time.Duration
	stuck int
}

func (s swallow) RoundTrip(r *http.Request) (*http.Response, error) {
	for i := 0; ; i++ {
		pause := s.pause
		if i == s.stuck {
			pause = time.Hour
		}
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if n, _ := io.ReadFull(r.Body, make([]byte, 5)); n < 5 {
			return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
		}
	}
}

// An upload that goes out slowly is not given up.
func TestTransportUpload(t *testing.T) {
	for _, test := range []struct {
		swallow
		fault string
	}{
		{swallow{9 * time.Second, 1000}, ""},
		{swallow{9 * time.Second, 4}, "nothing moved for 10s, given up after 46s: 20 bytes were sent"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := http.Client{Transport: progress.Transport{
				RoundTripper: test.swallow, Patience: progress.Patience{Quiet: 10 * time.Second},
			}}
			response, err := client.Post("http://192.0.2.1/", "text/plain", strings.NewReader(strings.Repeat("piece", 100)))
			if err == nil {
				_ = response.Body.Close()
			}
			if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got %v, want %q", err, test.fault)
			}
		})
	}
}
