package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
)

// mirror answers after a pause, and then sends a piece after each pause.
type mirror struct {
	pieces int
	pause  time.Duration
	ctx    context.Context
}

func (m *mirror) RoundTrip(r *http.Request) (*http.Response, error) {
	m.ctx = r.Context()
	if err := m.wait(); err != nil {
		return nil, err
	}
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: io.NopCloser(m), Request: r}, nil
}

func (m *mirror) Read(b []byte) (int, error) {
	if m.pieces--; m.pieces < 0 {
		return 0, io.EOF
	}
	return copy(b, "piece"), m.wait()
}

func (m *mirror) wait() error {
	select {
	case <-time.After(m.pause):
		return nil
	case <-m.ctx.Done():
		return m.ctx.Err()
	}
}

// A list of checksums that comes slowly is waited for, as an artifact is. One that stalls is not.
func TestSlowListIsNotStalled(t *testing.T) {
	for _, test := range []struct {
		name  string
		pause time.Duration
		cause error
	}{{"slow", 9 * time.Second, nil}, {"stalls", 11 * time.Second, errStalled}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &downloader{
					client: &http.Client{Transport: &mirror{pieces: 20, pause: test.pause}},
					config: Config{StallTimeout: setting.Duration(10 * time.Second)},
				}
				text, err := d.listOnce(t.Context(), "http://192.0.2.1/checksum.txt")
				if want := strings.Repeat("piece", 20); test.cause == nil && (err != nil || string(text) != want) {
					t.Errorf("got %q, %v", text, err)
				}
				if !errors.Is(err, test.cause) {
					t.Errorf("got %v, want %v", err, test.cause)
				}
			})
		})
	}
}

// What makes requests of its own is watched by its answers, however many there are.
func TestClientIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, watch := Config{StallTimeout: setting.Duration(10 * time.Second)}.watch(t.Context())
		defer watch.end()
		client := watch.client(&http.Client{Transport: &mirror{pieces: 3, pause: 9 * time.Second}})
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://192.0.2.1/", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(answer.Body); err != nil {
			t.Error(err)
		}
		if err := answer.Body.Close(); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errStalled) {
			t.Errorf("got %v", context.Cause(ctx))
		}
	})
}
