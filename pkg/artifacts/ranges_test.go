package artifacts

import (
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manyRanges are n ranges of a byte each, two bytes apart.
func manyRanges(n int) string {
	var b strings.Builder
	b.WriteString("bytes=")
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d-%d", 2*i, 2*i)
	}
	return b.String()
}

// rangeServer serves a file of 64 KiB.
func rangeServer(t testing.TB) (h *Handler, content string) {
	t.Helper()
	directory := t.TempDir()
	content = strings.Repeat("0123456789abcdef", 4<<10)
	if err := os.WriteFile(filepath.Join(directory, "image"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	h = New(Config{Directory: directory})
	t.Cleanup(func() { _ = h.Close() })
	return h, content
}

// The number of ranges that are served one by one is bounded; with more of them, and with such as overlap to more than
// the file, the file is served whole, once.
func TestRangesAreBounded(t *testing.T) {
	h, content := rangeServer(t)
	for name, test := range map[string]struct {
		ranges string
		code   int
		parts  int // of a multipart answer; 0 is no such
		length int // of the body, where it is no multipart
	}{
		"none":             {"", 200, 0, len(content)},
		"one":              {"bytes=0-9", 206, 0, 10},
		"the last bytes":   {"bytes=-10", 206, 0, 10},
		"to the end":       {"bytes=65000-", 206, 0, 536},
		"two":              {manyRanges(2), 206, 2, 0},
		"as many as can":   {manyRanges(maxRanges), 206, maxRanges, 0},
		"one more":         {manyRanges(maxRanges + 1), 200, 0, len(content)},
		"thousands":        {manyRanges(16000), 200, 0, len(content)},
		"the same again":   {"bytes=" + strings.Repeat("0-0,", maxRanges) + "0-0", 200, 0, len(content)},
		"another unit":     {"lines=0-1", 200, 0, len(content)},
		"no unit":          {"0-1", 200, 0, len(content)},
		"bytes, shouted":   {"BYTES=0-1", 206, 0, 2},
		"the last none":    {"bytes=-0", 416, 0, -1},
		"none and some":    {"bytes=-0,0-1", 206, 0, 2},
		"few that overlap": {"bytes=0-9,5-14,0-9", 206, 3, 0},
		"the whole twice":  {"bytes=0-,0-", 200, 0, len(content)},
		"empty elements":   {"bytes=0-9" + strings.Repeat(",", 20000), 200, 0, len(content)},
		"behind the end":   {"bytes=70000-", 416, 0, -1},
		"no ranges":        {"bytes=a-b", 416, 0, -1},
	} {
		r := httptest.NewRequest(http.MethodGet, "/image", nil)
		if test.ranges != "" {
			r.Header.Set("Range", test.ranges)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		kind, parameters, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
		parts := 0
		if kind == "multipart/byteranges" {
			parts = strings.Count(w.Body.String(), "--"+parameters["boundary"]+"\r\n")
		}
		if w.Code != test.code || parts != test.parts {
			t.Errorf("%s: got %d in %d parts, want %d in %d", name, w.Code, parts, test.code, test.parts)
		}
		if test.parts == 0 && test.length >= 0 && w.Body.Len() != test.length {
			t.Errorf("%s: got %d bytes, want %d", name, w.Body.Len(), test.length)
		}
		if test.ranges != "" && r.Header.Get("Range") != test.ranges {
			t.Errorf("%s: the request was changed", name)
		}
	}
}

// What a request costs by how many ranges it asks for: `go test -bench F8 ./pkg/artifacts`.
func BenchmarkF8Ranges(b *testing.B) {
	h, _ := rangeServer(b)
	for _, n := range []int{0, 1, maxRanges, maxRanges + 1, 16000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			r := httptest.NewRequest(http.MethodGet, "/image", nil)
			if n > 0 {
				r.Header.Set("Range", manyRanges(n))
			}
			for b.Loop() {
				h.ServeHTTP(discard{http.Header{}}, r)
			}
		})
	}
}

// discard is an answer that nobody reads.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return io.Discard.Write(b) }
func (d discard) WriteHeader(int)             {}
