package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// release is a server of the tests. Each fault is taken from a list, one for each request of that path.
type release struct {
	*httptest.Server
	mu       sync.Mutex
	files    map[string][]byte
	faults   map[string][]fault
	requests map[string]int
	ranges   map[string]int
	slow     time.Duration
}

type fault uint8

const (
	none       fault = iota
	breakOff         // half of it, then the connection ends
	stall            // half of it, then nothing for ever
	noRange          // all of it, whatever was asked for
	longer           // a Content-Length beyond what there is
	shorter          // a Content-Length below what there is
	wrongBytes       // one bit is another
	wrongRange       // a Content-Range that was not asked for
	gone             // 404
	busy             // 503
	refuse           // the connection ends at once
	changed          // other bytes
)

func newRelease(t testing.TB) *release {
	r := &release{
		files: map[string][]byte{}, faults: map[string][]fault{}, requests: map[string]int{}, ranges: map[string]int{},
	}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// set makes the release consist of files, with their checksum.txt.
func (r *release) set(files map[string][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = maps.Clone(files)
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha512.Sum512(files[name])
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	r.files["checksum.txt"] = []byte(list.String())
}

func (r *release) fail(name string, faults ...fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[name] = faults
}

func (r *release) count(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[name]
}

func (r *release) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.requests)
	clear(r.ranges)
	clear(r.faults)
}

func (r *release) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := strings.TrimPrefix(req.URL.Path, "/")
	r.mu.Lock()
	body, ok := r.files[name]
	r.requests[name]++
	if req.Header.Get("Range") != "" {
		r.ranges[name]++
	}
	what := none
	if list := r.faults[name]; len(list) > 0 {
		what, r.faults[name] = list[0], list[1:]
	}
	slow := r.slow
	r.mu.Unlock()
	controller := http.NewResponseController(w)
	switch {
	case what == gone || !ok:
		http.NotFound(w, req)
		return
	case what == busy:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case what == refuse:
		panic(http.ErrAbortHandler)
	case what == noRange:
		req.Header.Del("Range")
	case what == longer:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)+100))
		_, _ = w.Write(body)
		panic(http.ErrAbortHandler)
	case what == shorter:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)/2))
		_, _ = w.Write(body[:len(body)/2])
		return
	case what == wrongBytes:
		body = bytes.Clone(body)
		body[len(body)/2] ^= 1
	case what == changed:
		body = bytes.Repeat([]byte{7}, len(body))
	case what == wrongRange:
		w.Header().Set("Content-Range", "bytes 1-2/3")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte("xx"))
		return
	case what == breakOff || what == stall:
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:len(body)/2])
		_ = controller.Flush()
		if what == stall {
			select {
			case <-req.Context().Done():
			case <-time.After(20 * time.Second):
			}
		}
		panic(http.ErrAbortHandler)
	}
	if slow > 0 && len(body) > 4096 {
		http.ServeContent(&dripping{w, controller, slow}, req, name, time.Time{}, bytes.NewReader(body))
		return
	}
	http.ServeContent(w, req, name, time.Time{}, bytes.NewReader(body))
}

// dripping writes in small pieces.
type dripping struct {
	http.ResponseWriter
	controller *http.ResponseController
	pause      time.Duration
}

func (d *dripping) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n, err := d.ResponseWriter.Write(p[:min(len(p), 16<<10)])
		total += n
		if err != nil {
			return total, err
		}
		p = p[n:]
		_ = d.controller.Flush()
		time.Sleep(d.pause)
	}
	return total, nil
}

// noise is bytes that do not compress, the same for the same seed.
func noise(seed, n int) []byte {
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	out := make([]byte, n)
	_, _ = source.Read(out)
	return out
}

type entry struct {
	name string
	body []byte
	kind byte
	link string
}

// archive makes a .tar.gz.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: 0o777, Typeflag: e.kind, Linkname: e.link, Size: int64(len(e.body))}
		if e.kind == 0 {
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, bytes.NewReader(e.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
