package artifacts

import (
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
	for range cap(h.disk) {
		h.disk <- struct{}{}
	}
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
	<-h.disk
	if code := <-given; code != http.StatusOK {
		t.Errorf("once the disk is back, a request has code %d", code)
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
