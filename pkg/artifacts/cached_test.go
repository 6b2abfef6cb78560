package artifacts

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testclock"
)

// cachedHandler serves a directory in a file system from which files are had without waiting.
func cachedHandler(t *testing.T, directory string) *Handler {
	t.Helper()
	h := New(Config{Directory: directory, Metrics: nil})
	t.Cleanup(func() { _ = h.Close() })
	if err := h.Ready(); err != nil {
		t.Fatal(err)
	}
	if h.gen.mayBeInMemory.Load() {
		return h
	}
	t.Skip("the file system of the tests' directory is none of which files are served from memory")
	return nil
}

// content sends a file, and returns its bytes.
func (c *Cached) content(t *testing.T) []byte {
	t.Helper()
	to, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	for at := int64(0); at < c.Size(); {
		n, err := c.InMemory(at)
		if n == 0 && err == nil {
			if err = c.Load(at, nil); err == nil {
				continue
			}
		}
		if err == nil {
			n, err = c.Send(int(to.Fd()), at, n)
		}
		if err != nil {
			t.Fatal(err)
		}
		at += n
	}
	text, err := os.ReadFile(to.Name())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// An answer from memory is that of ServeHTTP, which has the last word about each path that is not answered from memory.
func TestCachedAgreesWithServeHTTP(t *testing.T) {
	directory := files(t)
	old := filepath.Join(directory, "old.IPXE")
	if err := os.WriteFile(old, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Time{}, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"longest": CachedSize, "too-long": CachedSize + 1} {
		if err := os.WriteFile(filepath.Join(directory, name), bytes.Repeat([]byte{'x'}, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(directory, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	h := cachedHandler(t, directory)
	for path, want := range map[string]bool{
		"/vmlinuz-x86_64": true, "/sub/initramfs.gz": true, "//sub//initramfs.gz": true, "/in": true, "/old.IPXE": true,
		"/longest": true, "/too-long": false, "/out": false, "/up": false, "/": false, "/sub": false, "/sub/": false,
		"/.hidden": false, "/.git/config": false, "/../../etc/passwd": false, "/absent": false, "/a\x00b": false,
		"/fifo": false, "/vmlinuz-x86_64/x": false,
	} {
		w, c := httptest.NewRecorder(), (*Cached)(nil)
		for range 100 { // the kernel may have lost something of it, or want to note that a link was read
			w = httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "http://h/", nil)
			r.URL.Path = path
			h.ServeHTTP(w, r)
			if c = h.Cached(path); c != nil || !want {
				break
			}
		}
		if (c != nil) != want {
			t.Errorf("%q from memory: %v, want %v", path, c != nil, want)
		}
		if c == nil {
			continue
		}
		body := c.content(t)
		text := append(append(c.AppendHeader([]byte("HTTP/1.1 ")), "\r\n"...), body...)
		c.Close()
		got, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		if err != nil {
			t.Fatalf("%q: %v", path, err)
		}
		if diff := cmp.Diff(w.Result().Header, got.Header); diff != "" || w.Code != got.StatusCode {
			t.Errorf("%q: %d, from memory %d (-want +got):\n%s", path, w.Code, got.StatusCode, diff)
		}
		if all, _ := io.ReadAll(got.Body); !bytes.Equal(all, w.Body.Bytes()) {
			t.Errorf("%q: the body has %d bytes, want %d", path, len(all), w.Body.Len())
		}
	}
}

// eventually reads until there is something: the kernel may have lost something of it, or want to note that a link was
// read.
func eventually(read func() string, h *Handler) (got string) {
	for range 100 {
		if got = read(); got != "" {
			break
		}
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/kernel", nil))
	}
	return got
}

// Each set of files that is published is served at once, and no mixture of two. A file that is not the manifest's is
// not served from memory.
func TestCachedFollowsTheDirectory(t *testing.T) {
	base := t.TempDir()
	current := filepath.Join(base, "current")
	publish := func(name, text string, size int64) {
		t.Helper()
		directory := filepath.Join(base, name)
		m := Manifest{Files: map[string]File{"kernel": {Size: size, SHA256: "digest-of-" + name}}}
		encoded, err := m.Encode()
		if err := errors.Join(err, os.Mkdir(directory, 0o755),
			os.WriteFile(filepath.Join(directory, "kernel"), []byte(text), 0o644),
			os.WriteFile(filepath.Join(directory, ManifestName), encoded, 0o644),
			os.Symlink(name, current+".new"), os.Rename(current+".new", current)); err != nil {
			t.Fatal(err)
		}
	}
	publish("a", "first", 5)
	h := cachedHandler(t, current)
	read := func() string {
		c := h.Cached("/kernel")
		if c == nil {
			return ""
		}
		defer c.Close()
		b := c.content(t)
		_, tag, _ := strings.Cut(string(c.AppendHeader(nil)), "Etag: ")
		tag, _, _ = strings.Cut(tag, "\r\n")
		return tag + " " + string(b)
	}
	if got := eventually(read, h); got != `"digest-of-a" first` {
		t.Errorf("got %s", got)
	}
	publish("b", "second", 6)
	time.Sleep(2 * trustFor)
	if got := read(); got != "" {
		t.Errorf("got %s, from a directory that ServeHTTP has not opened", got)
	}
	if err := h.Ready(); err != nil {
		t.Fatal(err)
	}
	if got := eventually(read, h); got != `"digest-of-b" second` {
		t.Errorf("got %s", got)
	}
	publish("c", "third", 999)
	if err := h.Ready(); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != "" {
		t.Errorf("got %s, a file that is damaged", got)
	}
	if err := os.RemoveAll(filepath.Join(base, "c")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * trustFor)
	if got := read(); got != "" {
		t.Errorf("got %s, of a directory that is gone", got)
	}
}

// A file that becomes shorter while it is sent is an error, and does not wait for ever.
func TestCachedTruncated(t *testing.T) {
	directory := files(t)
	h := cachedHandler(t, directory)
	c := h.Cached("/vmlinuz-x86_64")
	if c == nil {
		t.Fatal("the file is not in memory")
	}
	defer c.Close()
	if err := os.Truncate(filepath.Join(directory, "vmlinuz-x86_64"), 5); err != nil {
		t.Fatal(err)
	}
	to, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	// Cached may rely for a moment on the size that it saw last: then Send finds the end.
	if n, err := c.Send(int(to.Fd()), 5, 5); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes are sent from behind the end, %v", n, err)
	}
	time.Sleep(2 * trustFor)
	if n, err := c.InMemory(0); n != 5 || err != nil {
		t.Errorf("%d bytes are in memory, %v", n, err)
	}
	if n, err := c.InMemory(5); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes are in memory behind the end, %v", n, err)
	}
	if n, err := c.Send(-1, 5, 5); err == nil {
		t.Errorf("%d bytes are sent to nowhere", n)
	}
	if err := c.Load(5, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("loaded what is behind the end: %v", err)
	}
}

// A clock that is set back by an hour, as by NTP behind a wrong one of the machine, keeps no old generation in use, and
// no fault silent.
func TestClockSetBackServesNoOldFile(t *testing.T) {
	testclock.Add(t, 0)
	base := t.TempDir()
	// A name that is a link is known without waiting where following it writes nothing.
	if err := unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOATIME, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(base, unix.MNT_DETACH) }()
	current := filepath.Join(base, "current")
	publish := func(text string) {
		t.Helper()
		dir := filepath.Join(base, text)
		err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "kernel"), []byte(text), 0o600),
			os.Symlink(text, current+".new"), os.Rename(current+".new", current))
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("one")
	h := New(Config{Directory: current})
	if err := h.Ready(); err != nil {
		t.Fatal(err)
	}
	now, known := h.gen, false
	for range 100 {
		known = known || h.leadsTo(now)
	}
	if !known {
		t.Error("the directory is not known")
	}
	testclock.Add(t, -time.Hour)
	publish("two")
	time.Sleep(2 * trustFor)
	if h.leadsTo(now) {
		t.Error("the former generation is still served")
	}
}
