package fetch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/internal/watch"
)

// TestSettingsReload replaces the settings file under a running fetcher: by another set while the first stalls, by a
// wrong file, by one of another volume, and by SIGHUP alone.
func TestSettingsReload(t *testing.T) {
	first, second := newRelease(t), newRelease(t)
	first.set(map[string][]byte{"vmlinuz": []byte("one")})
	first.fail("checksum.txt", stall)
	second.set(map[string][]byte{"vmlinuz": []byte("two")})
	dir := t.TempDir()
	c := configFor(filepath.Join(dir, "volume"), Set{Name: "first", URL: first.URL, Names: []string{"*"}})
	c.StallTimeout = setting.Duration(time.Hour) // only the reload ends it
	f := newFetcher(t, c)
	file := filepath.Join(dir, "artifacts.yaml")
	text := func(name, url, volume string) string {
		return "volume: " + volume + "\nsets:\n- {name: " + name + ", url: '" + url + "', names: '*'}\n"
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(text("first", first.URL, c.Volume))
	hangups := make(chan os.Signal)
	load := func() (Config, error) {
		text, err := os.ReadFile(file)
		if err != nil {
			return Config{}, err
		}
		return Parse(text)
	}
	r := &watch.Task{Files: watch.New(file, hangups), Reload: func(context.Context) { f.Reload(load) }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- f.Run(ctx) }()
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	}()
	testwait.Until(t, "the stall", func() bool { first.mu.Lock(); defer first.mu.Unlock(); return first.requests["checksum.txt"] > 0 })

	write(text("second", second.URL, c.Volume))
	testwait.Until(t, "the second set", func() bool { return served(t, f)["vmlinuz"] == "two" })
	testwait.Until(t, "its state", func() bool {
		s := f.Status().Sets
		return len(s) == 1 && s[0].Name == "second" && s[0].State == "current"
	})
	if got := testutil.CollectAndCount(f.metrics.state); got != int(states) {
		t.Errorf("%d states are shown, want those of one set", got)
	}
	ok, bad := f.metrics.reloads[0], f.metrics.reloads[1]
	if testutil.ToFloat64(ok) != 1 || testutil.ToFloat64(bad) != 0 {
		t.Errorf("%v reloads went well and %v did not", testutil.ToFloat64(ok), testutil.ToFloat64(bad))
	}

	for i, wrong := range []string{"volume: [", text("Second", second.URL, c.Volume), text("second", second.URL, dir+"/elsewhere")} {
		write(wrong)
		testwait.Until(t, "a counted fault", func() bool { return testutil.ToFloat64(bad) == float64(i+1) })
		if got := testutil.ToFloat64(f.metrics.last); got != 0 {
			t.Errorf("the last reload is told as %v after a fault", got)
		}
	}
	second.set(map[string][]byte{"vmlinuz": []byte("three")})
	write(text("second", second.URL, c.Volume))
	testwait.Until(t, "the next release", func() bool { return served(t, f)["vmlinuz"] == "three" })
	testwait.Until(t, "a mended file", func() bool { return testutil.ToFloat64(f.metrics.last) == 1 })

	second.set(map[string][]byte{"vmlinuz": []byte("four")})
	hangups <- syscall.SIGHUP
	testwait.Until(t, "the release after that", func() bool { return served(t, f)["vmlinuz"] == "four" })
	if err := f.Ready(); err != nil || !strings.HasPrefix(f.Directory(), c.Volume) {
		t.Errorf("got %v, %s", err, f.Directory())
	}
}
