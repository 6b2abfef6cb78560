package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/setting"
)

// mirror answers after a pause, and then sends a piece after each pause.
type mirror struct {
	pieces int
	pause  time.Duration
	stuck  int // the pieces after which it sends no more; 0: never
	ranges bool
	ctx    context.Context
}

func (m *mirror) RoundTrip(r *http.Request) (*http.Response, error) {
	m.ctx = r.Context()
	if err := m.wait(); err != nil {
		return nil, err
	}
	answer := &http.Response{
		StatusCode: http.StatusOK, Body: io.NopCloser(m), Request: r, ContentLength: -1,
		Header: http.Header{"Etag": {`"1"`}},
	}
	if from := r.Header.Get("Range"); from != "" && m.ranges {
		answer.StatusCode = http.StatusPartialContent
		answer.Header.Set("Content-Range", strings.Replace(from, "=", " ", 1)+"99/100")
	}
	return answer, nil
}

func (m *mirror) Read(b []byte) (int, error) {
	if m.pieces--; m.pieces < 0 {
		return 0, io.EOF
	}
	if m.stuck > 0 {
		if m.stuck--; m.stuck == 0 {
			m.pause = 24 * time.Hour
		}
	}
	if err := m.wait(); err != nil {
		return 0, err
	}
	return copy(b, "piece"), nil
}

func (m *mirror) wait() error {
	select {
	case <-time.After(m.pause):
		return nil
	case <-m.ctx.Done():
		return m.ctx.Err()
	}
}

// An artifact that comes slowly is fetched however long it takes. One that stalls is given up, and the error says how
// many bytes of it there are, those of earlier attempts included.
func TestSlowArtifactIsNotStalled(t *testing.T) {
	const pieces = 20
	whole := strings.Repeat("piece", pieces)
	for _, test := range []struct {
		name     string
		attempts []mirror
		faults   []string // of the attempts
	}{
		{"slow", []mirror{{pieces: pieces, pause: 9 * time.Second}}, []string{""}},
		{"no answer", []mirror{{pieces: pieces, pause: 11 * time.Second}}, []string{
			"transfer broke: no byte arrived in time: none for 10s, 0 bytes had come",
		}},
		{
			"stalls twice", []mirror{
				{pieces: pieces, pause: time.Second, stuck: 4},
				{pieces: pieces - 3, pause: time.Second, stuck: 3, ranges: true},
				{pieces: pieces - 5, pause: 9 * time.Second, ranges: true},
			}, []string{
				"transfer broke: no byte arrived in time: none for 10s, 15 bytes had come",
				"transfer broke: no byte arrived in time: none for 10s, 25 bytes had come", "",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &downloader{
					dir: t.TempDir(), log: slog.New(slog.DiscardHandler),
					metrics: NewMetrics(prometheus.NewPedanticRegistry()),
					config:  Config{StallTimeout: setting.Duration(10 * time.Second), MaxSize: 1 << 20},
				}
				sum := sha256.Sum256([]byte(whole))
				a := artifact{
					set: "os", name: "image", url: "http://192.0.2.1/image",
					digest: digest("sha256:" + hex.EncodeToString(sum[:])),
				}
				for i, fault := range test.faults {
					d.client = &http.Client{Transport: &test.attempts[i]}
					err := d.attempt(t.Context(), a, &progress{})
					if got := fmt.Sprint(err); err != nil && got != fault || err == nil && fault != "" {
						t.Fatalf("attempt %d: got %v, want %q", i, err, fault)
					}
					if err != nil && !errors.Is(err, errStalled) {
						t.Errorf("attempt %d: %v is no stall", i, err)
					}
				}
				if last := len(test.faults) - 1; test.faults[last] == "" {
					if got, err := os.ReadFile(d.path(a)); err != nil || string(got) != whole {
						t.Errorf("got %q, %v", got, err)
					}
				}
			})
		})
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
