package edge_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// release is a server of two releases that misbehaves: it stalls, breaks off, lies about lengths, sends wrong bytes,
// is busy, or is not there at all.
type release struct {
	mu       sync.Mutex
	files    map[string][]byte
	faulty   bool
	vanished bool
	random   *rand.Rand
	faults   map[string]int // that happened
}

// publish makes the release consist of a version's files.
func (r *release) publish(files map[string][]byte, faulty, vanished bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files, r.faulty, r.vanished = maps.Clone(files), faulty, vanished
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		sum := sha512.Sum512(files[name])
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	r.files["checksum.txt"] = []byte(list.String())
}

func (r *release) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := strings.TrimPrefix(req.URL.Path, "/")
	r.mu.Lock()
	body, there := r.files[name]
	sum := sha512.Sum512(body)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	fault := ""
	if r.faulty {
		fault = []string{"", "", "", "breaks off", "stalls", "longer", "shorter", "wrong bytes", "busy", "resets"}[r.random.IntN(10)]
	}
	if r.vanished {
		fault = "gone"
	}
	r.faults[fault]++
	r.mu.Unlock()
	switch {
	case fault == "gone" || !there:
		http.NotFound(w, req)
		return
	case fault == "busy":
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	case fault == "resets":
		panic(http.ErrAbortHandler)
	case fault == "wrong bytes":
		body = bytes.Clone(body)
		body[len(body)/2] ^= 1
	}
	w.Header().Set("ETag", etag)
	switch fault {
	case "":
		http.ServeContent(slow{w}, req, name, time.Time{}, bytes.NewReader(body))
		return
	case "longer":
		w.Header().Set("Content-Length", strconv.Itoa(len(body)+1000))
	case "shorter":
		body = body[:len(body)-1]
	}
	half := len(body)
	if fault == "breaks off" || fault == "stalls" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		half /= 2
	}
	_, _ = w.Write(body[:half])
	_ = http.NewResponseController(w).Flush()
	if fault == "stalls" {
		select {
		case <-req.Context().Done():
		case <-time.After(time.Second):
		}
	}
	if half < len(body) {
		panic(http.ErrAbortHandler)
	}
}

// slow spreads what is sent, so that a kill finds a download under way.
type slow struct{ http.ResponseWriter }

func (s slow) Write(b []byte) (int, error) {
	time.Sleep(time.Millisecond)
	return s.ResponseWriter.Write(b)
}

// noise is bytes that do not compress, the same for each seed.
func noise(seed uint64, size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

func tarball(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
