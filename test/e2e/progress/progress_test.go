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
