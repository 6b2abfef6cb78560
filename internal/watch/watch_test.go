package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// place puts a new file in the place of another, as editors do.
func place(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// mount puts a directory of files in force as the kubelet does: by a link that is renamed.
func mount(t *testing.T, dir string, n int, names ...string) {
	t.Helper()
	data := fmt.Sprint("..", n)
	if err := os.Mkdir(filepath.Join(dir, data), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		write(t, filepath.Join(dir, data, name), fmt.Sprint(name, n))
		_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)) // it is there the second time
	}
	if err := os.Symlink(data, filepath.Join(dir, "..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// run counts the reloads of some files in a bubble.
func run(t *testing.T, f *Files, steps func(reloads func() int)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var reloads atomic.Int64
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.Run(ctx, func() { reloads.Add(1) })
		}()
		synctest.Wait()
		steps(func() int { return int(reloads.Load()) })
		cancel()
		<-ended
	})
}

// TestRun: however a file is replaced, its change is one reload, and nothing else is.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	mount(t, dir, 1, "a")
	write(t, b, "one")
	f := &Files{Paths: []string{a, b}}
	_, _, _ = f.Read()
	run(t, f, func(reloads func() int) {
		for _, step := range []struct {
			what string
			do   func()
			want int
		}{
			{"nothing", func() {}, 0},
			{"written in place, with the same size", func() { write(t, b, "two") }, 1},
			{"the same text again", func() { write(t, b, "two") }, 0},
			{"another file in its place", func() { place(t, b, "three") }, 1},
			{"another file with the same text", func() { place(t, b, "three") }, 0},
			{"a ConfigMap's new directory", func() { mount(t, dir, 2, "a") }, 1},
			{"both", func() { place(t, b, "four"); mount(t, dir, 3, "a") }, 1},
			{"gone", func() { _ = os.Remove(b) }, 1},
			{"still gone", func() {}, 0},
			{"back", func() { write(t, b, "four") }, 1},
		} {
			before := reloads()
			step.do()
			time.Sleep(10 * every)
			synctest.Wait()
			if got := reloads() - before; got != step.want {
				t.Errorf("%s: %d reloads, want %d", step.what, got, step.want)
			}
		}
	})
}

// TestRunWaitsUntilFilesSettle: a certificate and its key that are written one after the other are one change, and a
// file that always changes is noticed all the same.
func TestRunWaitsUntilFilesSettle(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "one")
	write(t, b, "one")
	f := &Files{Paths: []string{a, b}}
	_, _, _ = f.Read()
	run(t, f, func(reloads func() int) {
		time.Sleep(every - settle/4)
		write(t, a, "two")
		time.Sleep(settle / 2) // the first has been noticed
		write(t, b, "two")
		synctest.Wait()
		if reloads() != 0 {
			t.Fatal("reloaded between the two")
		}
		time.Sleep(2 * every)
		if reloads() != 1 {
			t.Fatalf("%d reloads of one change", reloads())
		}
		for n := range 600 {
			write(t, a, fmt.Sprint(n))
			time.Sleep(settle / 4)
		}
		if reloads() < 2 {
			t.Error("a file that always changes is never noticed")
		}
	})
}

// TestRequest: SIGHUP reloads although nothing changed, and without files.
func TestRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := make(chan os.Signal)
		ctx, cancel := context.WithCancel(t.Context())
		reloads, ended := 0, make(chan struct{})
		go func() {
			defer close(ended)
			New("", requests).Run(ctx, func() { reloads++ })
		}()
		requests <- syscall.SIGHUP
		time.Sleep(10 * every)
		cancel()
		<-ended
		if reloads != 1 {
			t.Errorf("%d reloads by one request", reloads)
		}
	})
}

// TestChangeBeforeRun: a change between New and Run is not missed.
func TestChangeBeforeRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	write(t, path, "one")
	f := New(path, nil)
	if texts, changed, err := f.Read(); err != nil || changed || string(texts[0]) != "one" {
		t.Fatalf("got %q, %v, %v", texts, changed, err)
	}
	write(t, path, "two")
	run(t, f, func(reloads func() int) {
		time.Sleep(2 * every)
		if reloads() != 1 {
			t.Errorf("%d reloads", reloads())
		}
	})
}

func TestReadFaults(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := (&Files{Paths: []string{filepath.Join(dir, "none")}}).Read(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v", err)
	}
	large := filepath.Join(dir, "large")
	write(t, large, "")
	if err := os.Truncate(large, maxSize+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(large); err == nil || !strings.Contains(err.Error(), large+" is larger than 16777216 bytes") {
		t.Errorf("a large file: got %v", err)
	}
}
