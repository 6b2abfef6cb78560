package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// forbidden is why there is no network namespace.
var forbidden error

func TestMain(m *testing.M) {
	done, err := network.Enter(context.Background())
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case errors.Is(err, os.ErrPermission):
		forbidden = err
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case done:
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// raceProxy is the proxy with the race detector.
func raceProxy(t *testing.T) string {
	t.Helper()
	return program.ForTest(t, "stack-proxy", "-race")
}

// The soak in short, with the race detector in the proxy. "make soak" is the long form, which judges the trends too.
func TestSoak(t *testing.T) {
	if forbidden != nil {
		t.Skip(forbidden)
	}
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	dir := t.TempDir()
	result, err := Run(t.Context(), Options{
		Proxy: raceProxy(t), Duration: 20 * time.Second, Idle: 6 * time.Second, Reload: time.Second, Churn: 2 * time.Second, Dir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, failure := range result.Failures {
		t.Error(failure)
	}
	t.Log("\n" + result.Markdown())
	if t.Failed() {
		text, _ := os.ReadFile(filepath.Join(dir, "stack-proxy.log"))
		t.Logf("the proxy said:\n%s", text[max(0, len(text)-8000):])
	}
}

func TestTrends(t *testing.T) {
	var flat, growing []Sample
	for i := range 300 {
		n := float64(100 + i%7)
		flat = append(flat, Sample{Goroutines: n, Descriptors: n, RSS: n * (1 << 20), Heap: n * (1 << 20)})
		n += float64(i) / 3
		growing = append(growing, Sample{Goroutines: n, Descriptors: n, RSS: n * (1 << 20), Heap: n * (1 << 20)})
	}
	for i, each := range Trends(flat) {
		if each.Grown {
			t.Errorf("flat: %+v", each)
		}
		if grown := Trends(growing)[i]; !grown.Grown {
			t.Errorf("growing: %+v", grown)
		}
	}
}

// Memory that rises until a collection is no growth, wherever the samples happen to be between two of them; what is left
// after collections is, though resident memory does not show it yet.
func TestTrendsOfAProgramThatRarelyCollects(t *testing.T) {
	const mib = 1 << 20
	grown := func(period int, leak float64) []string {
		var samples []Sample
		for i := range 180 {
			kept := 10 + leak*float64(i)
			s := Sample{Goroutines: 40, Descriptors: 100, Heap: (kept + 40*float64(i%period)/float64(period)) * mib}
			s.RSS = 85 * mib
			if i < 10 { // until the first collection
				s.RSS = (40 + 4*float64(i)) * mib
			}
			if i%9 == 0 {
				s.Live = kept * mib
			}
			samples = append(samples, s)
		}
		var all []string
		for _, each := range Trends(samples) {
			if each.Grown {
				all = append(all, each.Metric)
			}
		}
		return all
	}
	for _, period := range []int{9, 11, 37, 70} {
		if all := grown(period, 0); len(all) > 0 {
			t.Errorf("collected every %d samples: %q have grown", period, all)
		}
		if all := grown(period, 0.03); !slices.Equal(all, []string{"live_bytes"}) {
			t.Errorf("collected every %d samples, with a leak: %q have grown", period, all)
		}
	}
}
