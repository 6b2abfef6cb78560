package fetch

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/setting"
)

// TestReplicasCheckAtTheSameTime: whenever they began.
func TestReplicasCheckAtTheSameTime(t *testing.T) {
	c := Config{CheckEvery: setting.Duration(6 * time.Hour), Sets: []Set{{Name: "hook", URL: "https://a.example"}}}
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	first := start.Add(c.untilCheck(start))
	for _, late := range []time.Duration{time.Nanosecond, time.Second, 3 * time.Hour, 5 * time.Hour} {
		now := first.Add(-6 * time.Hour).Add(late)
		if got := now.Add(c.untilCheck(now)); !got.Equal(first) {
			t.Errorf("a replica that looks at %v checks at %v, want %v", now, got, first)
		}
	}
	if got := c.untilCheck(first); got != 6*time.Hour {
		t.Errorf("after a check: %v to the next, want 6h", got)
	}
	once := Config{}
	if got := once.untilCheck(start); got != 0 {
		t.Errorf("never asked for, and due in %v", got)
	}
}

// TestReplicasFetchTheSame: two replicas with a volume each, and a release that changes between their checks. Neither
// ever serves files of two releases, one that has not finished serves nothing or all of the old release, and after the
// next check both serve the same bytes.
func TestReplicasFetchTheSame(t *testing.T) {
	files := func(version string) map[string]string {
		return map[string]string{"vmlinuz": "kernel " + version, "initramfs": "initramfs " + version}
	}
	r := newRelease(t)
	release := func(version string) {
		bytes := map[string][]byte{}
		for name, text := range files(version) {
			bytes[name] = []byte(text)
		}
		r.set(bytes)
	}
	replica := func() *Fetcher {
		return newFetcher(t, configFor(t.TempDir(), Set{Name: "os", URL: r.URL, Names: []string{"*"}}))
	}
	check := func(f *Fetcher, what string, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, served(t, f)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	once := func(f *Fetcher) {
		t.Helper()
		if err := f.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first, second := replica(), replica()

	release("1")
	once(first)
	check(first, "the first", files("1"))
	check(second, "the second, not begun", map[string]string{})
	if err := second.Ready(); err == nil {
		t.Error("a replica without files is ready")
	}

	// The release changes; the second replica stops in the middle of it, one of its files being there already.
	release("2")
	r.fail("vmlinuz", stall, stall, stall, stall, stall, stall)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	if err := second.Once(ctx); err == nil {
		t.Fatal("the second has all files")
	}
	cancel()
	check(second, "the second, interrupted", map[string]string{})
	if err := second.Ready(); err == nil {
		t.Error("a replica with one file of two is ready")
	}
	r.reset()
	once(second)
	check(second, "the second", files("2"))
	if err := second.Ready(); err != nil {
		t.Error(err)
	}
	check(first, "the first, which has not looked", files("1"))

	// The first is interrupted, too: it has one file of the new release, and serves the old one.
	r.fail("initramfs", stall, stall, stall, stall, stall, stall)
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	if err := first.Once(ctx); err == nil {
		t.Fatal("the first has all files")
	}
	cancel()
	check(first, "the first, interrupted", files("1"))
	r.reset()
	once(first)
	check(first, "the first", files("2"))
	check(second, "the second, meanwhile", files("2"))
}
