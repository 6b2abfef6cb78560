package artifacts

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// While the disk hangs, requests wait without a thread, can be given up, and are served once it is back; what is in
// memory is served meanwhile.
func TestHungDisk(t *testing.T) {
	directory := files(t)
	h := cachedHandler(t, directory)
	warm := eventually(func() string {
		if c := h.Cached("/vmlinuz-x86_64"); c != nil {
			defer c.Close()
			if n, err := c.InMemory(0); err == nil && n > 0 {
				return "warm"
			}
		}
		return ""
	}, h)
	if warm == "" {
		t.Fatal("nothing is in memory")
	}
	hang(h)
	c := h.Cached("/sub/initramfs.gz")
	if c == nil {
		t.Fatal("the file is not found in memory")
	}
	defer c.Close()
	if n, err := c.InMemory(0); n != 0 || err != nil {
		t.Errorf("a file that was never in memory is looked for: %d, %v", n, err)
	}
	stop := make(chan struct{})
	close(stop)
	if err := c.Load(0, stop); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a wait that is given up ends with %v", err)
	}
	known := h.Cached("/vmlinuz-x86_64")
	if known == nil {
		t.Fatal("what was in memory is not found")
	}
	defer known.Close()
	if n, err := known.InMemory(0); n != 10 || err != nil {
		t.Errorf("of what was in memory %d bytes are, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan int)
	for _, ctx := range []context.Context{ctx, t.Context()} {
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/vmlinuz-x86_64", nil))
			given <- w.Code
		}()
	}
	cancel()
	if code := <-given; code != http.StatusServiceUnavailable {
		t.Errorf("a request that is given up has code %d", code)
	}
	h.disk.leave()
	if code := <-given; code != http.StatusOK {
		t.Errorf("once the disk is back, a request has code %d", code)
	}
}

// hang takes all places of a handler's disk.
func hang(h *Handler) {
	for h.disk.try() {
	}
}

// A disk that hangs has no places of another route's, readiness is what it was, and takes no thread. Of those who wait
// for it, some give up, which others behind them do not notice; all who stay are served when it is back, in between or
// for good. The gauge tells how many wait.
func TestHungDiskIsOneRoutesOwn(t *testing.T) {
	metrics := NewMetrics(prometheus.NewRegistry())
	hung := New(Config{Directory: files(t), Route: "hung", Metrics: metrics})
	good := New(Config{Directory: files(t), Route: "good", Metrics: metrics})
	for _, h := range []*Handler{hung, good} {
		defer h.Close()
		if err := h.Ready(); err != nil {
			t.Fatal(err)
		}
	}
	hang(hung)
	waiting := func(want float64) {
		t.Helper()
		gauge := metrics.waiting.WithLabelValues("hung")
		for end := time.Now().Add(time.Minute); testutil.ToFloat64(gauge) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%v wait, want %v", testutil.ToFloat64(gauge), want)
			}
		}
	}
	ask := func(ctx context.Context, n int) <-chan int {
		codes := make(chan int, n)
		for range n {
			go func() {
				w := httptest.NewRecorder()
				hung.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/vmlinuz-x86_64", nil))
				codes <- w.Code
			}()
		}
		return codes
	}
	ctx, cancel := context.WithCancel(t.Context())
	leave, stay := ask(ctx, 250), ask(t.Context(), 250)
	waiting(500)
	for range 100 {
		if w := get(good, "/vmlinuz-x86_64"); w.Code != http.StatusOK {
			t.Fatalf("of the other disk: %d", w.Code)
		}
	}
	cancel()
	for range 250 {
		if code := <-leave; code != http.StatusServiceUnavailable {
			t.Fatalf("who gives up has code %d", code)
		}
	}
	waiting(250)
	late := ask(t.Context(), 10)
	waiting(260)
	for range 10 { // the disk is back for a moment, and again
		hung.disk.leave()
		if code := <-stay; code != http.StatusOK {
			t.Fatalf("got %d", code)
		}
		hang(hung)
	}
	hung.disk.leave()
	for codes, n := range map[<-chan int]int{stay: 240, late: 10} {
		for range n {
			select {
			case code := <-codes:
				if code != http.StatusOK {
					t.Errorf("got %d", code)
				}
			case <-time.After(time.Minute):
				t.Fatal("somebody is not served")
			}
		}
	}
	waiting(0)
}

// While the directory does not answer, readiness is what it was, and at once.
func TestReadyOfADirectoryThatDoesNotAnswer(t *testing.T) {
	directory := files(t)
	h := New(Config{Directory: directory})
	defer h.Close()
	h.asking.Lock()
	if err := h.Ready(); !errors.Is(err, errSilent) {
		t.Errorf("before the first answer: %v", err)
	}
	h.asking.Unlock()
	if err := h.Ready(); err != nil {
		t.Error(err)
	}
	h.asking.Lock()
	if err := h.Ready(); err != nil {
		t.Errorf("behind a good answer: %v", err)
	}
	h.asking.Unlock()
}

// A file that grows, is removed, or is replaced while it is sent is sent as it was, and the next request has what is
// there then.
func TestFileThatChangesIsSentAsItWas(t *testing.T) {
	const size = 16 << 20
	was, is := bytes.Repeat([]byte("was "), size/4), bytes.Repeat([]byte("is  "), size/4)
	replace := func(path string, content []byte) error {
		return errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path))
	}
	for name, test := range map[string]struct {
		change func(path string) error
		next   []byte // nil is none
	}{
		"grown": {
			func(path string) error { return os.Truncate(path, 2*size) },
			append(bytes.Clone(was), make([]byte, size)...),
		},
		"removed":             {os.Remove, nil},
		"replaced":            {func(path string) error { return replace(path, is) }, is},
		"replaced by another": {func(path string) error { return replace(path, is[:99]) }, is[:99]},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			if err := os.WriteFile(path, was, 0o600); err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(New(Config{Directory: filepath.Dir(path)}))
			defer server.Close()
			first, err := server.Client().Get(server.URL + "/image")
			if err != nil {
				t.Fatal(err)
			}
			defer first.Body.Close()
			if err := test.change(path); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(first.Body); err != nil || !bytes.Equal(got, was) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
			second, err := server.Client().Get(server.URL + "/image")
			if err != nil {
				t.Fatal(err)
			}
			defer second.Body.Close()
			got, err := io.ReadAll(second.Body)
			if test.next == nil {
				if second.StatusCode != http.StatusNotFound {
					t.Errorf("then got %d", second.StatusCode)
				}
				return
			}
			before, now := first.Header.Get("Etag"), second.Header.Get("Etag")
			if err != nil || !bytes.Equal(got, test.next) || now == before {
				t.Errorf("then got %d bytes, %s behind %s, %v", len(got), now, before, err)
			}
		})
	}
}

// A file that becomes shorter while it is sent is no success: the client sees a torn answer, and it is counted and
// logged.
func TestShortenedFileIsNoSuccess(t *testing.T) {
	for name, second := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			directory, size := t.TempDir(), int64(32<<20)
			path := filepath.Join(directory, "image")
			if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
			aborted := make(chan any, 1)
			h := New(Config{Directory: directory})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					trouble := recover()
					aborted <- trouble
					if trouble != nil {
						panic(trouble)
					}
				}()
				h.ServeHTTP(w, r)
			}))
			server.EnableHTTP2 = second
			server.StartTLS()
			defer server.Close()
			client := server.Client()
			client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			response, err := client.Get(server.URL + "/image")
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if err := os.Truncate(path, size/2); err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, response.Body)
			if err == nil || n >= size || response.ContentLength != size {
				t.Errorf("got %d of %d bytes, %v", n, response.ContentLength, err)
			}
			select {
			case trouble := <-aborted:
				if err, _ := trouble.(error); !errors.Is(err, http.ErrAbortHandler) {
					t.Errorf("the handler ended with %v", trouble)
				}
			case <-time.After(time.Minute):
				t.Error("the handler does not end")
			}
		})
	}
}
