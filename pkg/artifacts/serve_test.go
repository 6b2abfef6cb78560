package artifacts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generationOf makes a directory with a manifest.
func generationOf(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	m := Manifest{Created: time.Now(), Files: map[string]File{}}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(text))
		m.Files[name] = File{Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
	}
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ManifestName), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://h"+path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestServeFollowsAReplacedLink(t *testing.T) {
	dir := t.TempDir()
	generationOf(t, filepath.Join(dir, "a"), map[string]string{"vmlinuz": "old kernel"})
	generationOf(t, filepath.Join(dir, "b"), map[string]string{"vmlinuz": "a new kernel"})
	link := filepath.Join(dir, "current")
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	h := New(Config{Directory: link})
	defer h.Close()
	old := get(h, "/vmlinuz")
	if err := os.Symlink("b", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	fresh := get(h, "/vmlinuz", "Range", "bytes=0-3", "If-Range", old.Header().Get("Etag"))
	if old.Body.String() != "old kernel" || fresh.Body.String() != "a new kernel" || fresh.Code != 200 {
		t.Errorf("got %q, then %d %q: a resumed download must not mix two files",
			old.Body, fresh.Code, fresh.Body)
	}
	sum := sha256.Sum256([]byte("a new kernel"))
	if got, want := fresh.Header().Get("Etag"), `"`+hex.EncodeToString(sum[:])+`"`; got != want {
		t.Errorf("ETag is %s, want the digest %s", got, want)
	}
	if got := get(h, "/"+ManifestName).Code; got != http.StatusNotFound {
		t.Errorf("the manifest itself: got %d", got)
	}
}

func TestServeRefusesDamage(t *testing.T) {
	dir := t.TempDir()
	generationOf(t, dir, map[string]string{"vmlinuz": "kernel", "other": "fine"})
	if err := os.Truncate(filepath.Join(dir, "vmlinuz"), 3); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	h := New(Config{Directory: dir, Route: "os", Metrics: NewMetrics(registry)})
	defer h.Close()
	if got := get(h, "/vmlinuz"); got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" {
		t.Errorf("truncated file: got %d", got.Code)
	}
	if got := get(h, "/other").Body.String(); got != "fine" {
		t.Errorf("got %q", got)
	}
	want := `# HELP stack_proxy_files_sent_bytes_total Bytes of files that were sent, by file.
# TYPE stack_proxy_files_sent_bytes_total counter
stack_proxy_files_sent_bytes_total{file="other",route="os"} 4
# HELP stack_proxy_files_missed_total Requests without a file for an answer, by reason.
# TYPE stack_proxy_files_missed_total counter
stack_proxy_files_missed_total{reason="damaged",route="os"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"stack_proxy_files_sent_bytes_total", "stack_proxy_files_missed_total"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestServeOddFiles(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Skipf("needs a file system with FIFOs: %v", err)
	}
	done := make(chan int)
	go func() { done <- get(New(Config{Directory: dir}), "/fifo").Code }()
	select {
	case code := <-done:
		if code != http.StatusNotFound {
			t.Errorf("got %d", code)
		}
	case <-time.After(5 * time.Second):
		t.Error("a FIFO holds the request")
	}
}

func TestContentTypes(t *testing.T) {
	for name, want := range map[string]string{
		"vmlinuz-x86_64": "application/octet-stream", "initramfs-aarch64": "application/octet-stream",
		"hook.ISO": "application/x-iso9660-image", "a/auto.ipxe": "text/plain; charset=utf-8",
		"dtbs.tar.gz": "application/gzip",
	} {
		if got := contentType(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// readsFrom stands where a server's ResponseWriter does and says what it was given.
type readsFrom struct {
	*httptest.ResponseRecorder
	source io.Reader
}

func (r *readsFrom) ReadFrom(source io.Reader) (int64, error) {
	r.source = source
	return io.Copy(r.ResponseRecorder, source)
}

func TestServeKeepsSendfile(t *testing.T) {
	dir := t.TempDir()
	generationOf(t, dir, map[string]string{"image": "0123456789"})
	h := New(Config{Directory: dir, Metrics: NewMetrics(prometheus.NewRegistry())})
	defer h.Close()
	w := &readsFrom{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/image", nil))
	limited, ok := w.source.(*io.LimitedReader)
	if !ok {
		t.Fatalf("the writer was given a %T", w.source)
	}
	// The file is closed by now; its kind is what decides about sendfile.
	if f, ok := limited.R.(syscall.Conn); !ok {
		t.Errorf("the writer reads from a %T, which has no descriptor", f)
	}
}

func TestServeManyAtOnceWhileSwitching(t *testing.T) {
	dir := t.TempDir()
	contents := map[string]bool{}
	for _, name := range []string{"a", "b"} {
		text := strings.Repeat(name, 1<<20)
		contents[text] = true
		generationOf(t, filepath.Join(dir, name), map[string]string{"image": text})
	}
	link := filepath.Join(dir, "current")
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	h := New(Config{Directory: link})
	defer h.Close()
	server := httptest.NewUnstartedServer(h)
	server.Start()
	defer server.Close()
	stop := make(chan struct{})
	var switching, clients sync.WaitGroup
	switching.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if err := os.Symlink([]string{"a", "b"}[i%2], link+".new"); err != nil {
				t.Error(err)
			}
			if err := os.Rename(link+".new", link); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		clients.Go(func() {
			for range 10 {
				answer, err := server.Client().Get(server.URL + "/image")
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if err != nil || !contents[string(body)] {
					t.Errorf("got %d bytes that are neither file: %v", len(body), err)
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	switching.Wait()
	server.Client().CloseIdleConnections()
}

func TestManifest(t *testing.T) {
	m := &Manifest{
		Created: time.Unix(1, 0).UTC(),
		Sets:    map[string]Set{"hook": {Release: "r", Artifacts: map[string]string{"a.iso": "sha512:00"}}},
		Files:   map[string]File{"a.iso": {Size: 1, SHA256: "00", Set: "hook", Artifact: "a.iso"}},
	}
	text, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := parseManifest(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, again); diff != "" {
		t.Error(diff)
	}
	for i := range text {
		damaged := bytes.Clone(text)
		damaged[i] ^= 1
		if _, err := parseManifest(damaged); err == nil {
			t.Fatalf("a changed bit in byte %d is not noticed", i)
		}
	}
	if _, err := ReadManifest(os.DirFS(t.TempDir())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no manifest: %v", err)
	}
}

func FuzzName(f *testing.F) {
	for _, seed := range []string{"/", "/../x", "/a/./b", "//.git", "/a\\..\\b", "/a/..", "/%2e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, p string) {
		name, ok := cleanName(p)
		if ok && (!fs.ValidPath(name) && strings.ToValidUTF8(name, "") == name || strings.HasPrefix(name, ".") ||
			strings.Contains(name, "/.")) {
			t.Errorf("%q became %q", p, name)
		}
	})
}

func BenchmarkServe(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "image"), make([]byte, 64<<20), 0o644); err != nil {
		b.Fatal(err)
	}
	h := New(Config{Directory: dir, Metrics: NewMetrics(prometheus.NewRegistry())})
	defer h.Close()
	server := httptest.NewServer(h)
	defer server.Close()
	b.SetBytes(64 << 20)
	for b.Loop() {
		answer, err := server.Client().Get(server.URL + "/image")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			b.Fatal(err)
		}
		answer.Body.Close()
	}
}
