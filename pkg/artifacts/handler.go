// Package artifacts serves the files that machines boot: kernels, initramfs, images. The package fetch below it
// brings them; files that were put into the directory by hand are served as well.
//
// Bytes leave by sendfile(2) wherever the ResponseWriter reaches a TCP connection. Nothing outside the directory is
// served, whatever a path or a symbolic link says, nor a name that begins with a dot, nor a listing.
package artifacts

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

// Config makes a [Handler].
type Config struct {
	// Directory holds the files. It may be a symbolic link that is replaced while the handler runs, as
	// fetch does: requests that began before end on the old files.
	Directory string
	// Route labels the metrics.
	Route string
	// Spelled finds the name of the file that a path means which leads to none as it is written. It may be nil.
	Spelled func(path string) (name string, ok bool)
	// Logger may be nil.
	Logger *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
}

// Handler serves a directory.
type Handler struct {
	config Config
	log    *loglimit.Limiter
	disk   disk

	asking sync.Mutex            // whoever finds out whether the directory can be served
	ready  atomic.Pointer[error] // what came of it last; nil is never

	mu  sync.RWMutex
	gen *generation

	began time.Time
}

// generation is an open directory.
type generation struct {
	root     *os.Root
	info     fs.FileInfo
	manifest *Manifest // nil where there is none

	cache // of Cached
}

func (g *generation) close() error { return errors.Join(g.root.Close(), g.cache.dir.Close()) }

// New makes a handler. The directory may come later.
func New(c Config) *Handler {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Metrics = cmp.Or(c.Metrics, NewMetrics(nil))
	return &Handler{
		config: c, log: loglimit.New(c.Logger, 1, quietFor), disk: newDisk(c.Metrics.waiting.WithLabelValues(c.Route)),
		began: time.Now(),
	}
}

// errSilent is a directory of which nothing is known yet.
var errSilent = errors.New("the directory of files does not answer")

// Ready is nil when the directory can be served. While somebody is told that, as when the server of a network file
// system hangs, it is what was true before: each probe would else take a thread for as long.
func (h *Handler) Ready() error {
	if h.asking.TryLock() {
		defer h.asking.Unlock()
		_, _, err := h.current(nil)
		h.ready.Store(&err)
		return err
	}
	if last := h.ready.Load(); last != nil {
		return *last
	}
	return errSilent
}

// Close lets go of the directory. Requests under way go on.
func (h *Handler) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gen == nil {
		return nil
	}
	err := h.gen.close()
	h.gen = nil
	return err
}

// opener takes a file from an open directory.
type opener func(*os.Root) (*os.File, error)

// current calls open, unless it is nil, with the directory that the name leads to now.
func (h *Handler) current(open opener) (*os.File, *Manifest, error) {
	info, err := os.Stat(h.config.Directory)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to find directory of files: %w", err)
	}
	for {
		h.mu.RLock()
		if h.gen != nil && os.SameFile(h.gen.info, info) {
			defer h.mu.RUnlock()
			if open == nil {
				return nil, h.gen.manifest, nil
			}
			f, err := open(h.gen.root)
			return f, h.gen.manifest, err
		}
		h.mu.RUnlock()
		if info, err = h.reopen(); err != nil {
			return nil, nil, err
		}
	}
}

// reopen opens the directory that the name leads to now, and says which it was.
func (h *Handler) reopen() (fs.FileInfo, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	root, err := os.OpenRoot(h.config.Directory)
	if err != nil {
		return nil, fmt.Errorf("failed to open directory of files: %w", err)
	}
	info, err := root.Stat(".")
	if err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("failed to read directory of files: %w", err)
	}
	manifest, err := ReadManifest(root.FS())
	switch {
	case errors.Is(err, fs.ErrNotExist): // put there by hand
	case err != nil:
		h.log.Error("manifest unreadable", func() []any {
			return []any{"directory", h.config.Directory, "error", err}
		})
	}
	if h.gen != nil {
		_ = h.gen.close()
	}
	h.gen = &generation{root: root, info: info, manifest: manifest}
	h.gen.cache.open(root)
	return info, nil
}

// ServeHTTP implements http.Handler: GET and HEAD, ranges, conditions.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	if _, ok := cleanName(r.URL.Path); !ok && h.config.Spelled == nil {
		h.config.Metrics.missed(h.config.Route, missName)
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	if !h.disk.enter(r.Context().Done()) {
		http.Error(w, "files do not answer", http.StatusServiceUnavailable) // the client has gone, or was given up
		return
	}
	f, name, err := h.find(r.URL.Path)
	var gone error // the whole directory
	if err != nil {
		_, _, gone = h.current(nil)
	}
	h.disk.leave()
	if err != nil {
		h.fail(w, name, err, gone)
		return
	}
	defer f.Close()
	header := w.Header()
	header.Set("Content-Type", contentType(name))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Etag", f.etag)
	header.Set("Accept-Ranges", "bytes")
	out := &counter{ResponseWriter: w}
	start := time.Now()
	content := &diskFile{File: f.File, disk: h.disk, context: r.Context(), size: f.info.Size()}
	http.ServeContent(out, readRanges(r), name, f.info.ModTime(), content)
	label := ""
	if f.inManifest {
		label = name // of the manifest's, so that the metric has a bound
	}
	h.config.Metrics.served(h.config.Route, label, out.sent, time.Since(start))
	if failure := out.broken(content); failure != nil && r.Method == http.MethodGet {
		h.noteBroken(name, failure, out.sent)
		panic(http.ErrAbortHandler) // the client must see a torn answer, not a whole one
	}
}

// noteBroken counts and logs that a file could not be read to its end.
func (h *Handler) noteBroken(name string, failure error, sent int64) {
	h.config.Metrics.missed(h.config.Route, missError)
	h.log.Error("failed to read file", func() []any {
		return []any{"file", name, "sent_bytes", sent, "error", failure}
	})
}

// served is a file that is being served.
type served struct {
	*os.File
	info       fs.FileInfo
	etag       string
	inManifest bool
}

// errDamaged is a file whose size is not the manifest's.
var errDamaged = errors.New("file is not what the manifest says")

// find opens the file that a path means, and says which it is.
func (h *Handler) find(path string) (f *served, name string, err error) {
	name, ok := cleanName(path)
	if err = fs.ErrNotExist; ok {
		f, err = h.open(name)
	}
	if !errors.Is(err, fs.ErrNotExist) || h.config.Spelled == nil {
		return f, name, err
	}
	if meant, ok := h.config.Spelled(path); ok && meant != name {
		name = meant
		f, err = h.open(name)
	}
	return f, name, err
}

// open opens a file by its name.
func (h *Handler) open(name string) (*served, error) {
	f, manifest, err := h.current(func(root *os.Root) (*os.File, error) {
		// Without O_NONBLOCK somebody's FIFO would hold the request, and the lock, for ever.
		return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fs.ErrNotExist
	}
	s := &served{File: f, info: info}
	if s.etag, s.inManifest, err = manifest.identify(name, info.Size(), info.ModTime()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

// quietFor is how long a fault that was logged is not logged again: machines ask again all the time, and the metric
// counts each.
const quietFor = 10 * time.Second

// fail answers for a file that cannot be served, and says so if the whole directory is gone.
func (h *Handler) fail(w http.ResponseWriter, name string, err, gone error) {
	switch {
	case errors.Is(err, errDamaged):
		h.log.Error("file damaged", func() []any { return []any{"file", name, "error", err} })
		h.config.Metrics.missed(h.config.Route, missDamaged)
		w.Header().Set("Retry-After", "10")
		http.Error(w, "file is damaged; it is fetched again at the next check", http.StatusServiceUnavailable)
	case gone != nil:
		h.log.Error("files unavailable", func() []any { return []any{"error", err} })
		h.config.Metrics.missed(h.config.Route, missDirectory)
		w.Header().Set("Retry-After", "10")
		http.Error(w, "files are not there yet", http.StatusServiceUnavailable)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.EIO):
		h.log.Error("failed to open file", func() []any { return []any{"file", name, "error", err} })
		h.config.Metrics.missed(h.config.Route, missError)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "failed to open file", http.StatusServiceUnavailable)
	default: // not there, not allowed, a link that leads out: all the same to a client
		h.config.Metrics.missed(h.config.Route, missName)
		http.Error(w, "no such file", http.StatusNotFound)
	}
}

// cleanName turns a request's path into a file's name, if it can be one.
func cleanName(p string) (string, bool) {
	name := strings.TrimPrefix(p, "/")
	if len(name) > 1024 || strings.ContainsAny(name, "\x00\\") {
		return "", false
	}
	name = path.Clean("/" + name)[1:]
	if name == "" || strings.HasSuffix(p, "/") {
		return "", false
	}
	for segment := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(segment, ".") {
			return "", false
		}
	}
	return name, true
}

// types are by extension. What is not here is application/octet-stream: guessing by content has no place with
// kernels, and a type must not differ from one base image to the next.
var types = map[string]string{
	".iso": "application/x-iso9660-image", ".efi": "application/efi", ".gz": "application/gzip",
	".tgz": "application/gzip", ".xz": "application/x-xz", ".zst": "application/zstd", ".tar": "application/x-tar",
	".bz2": "application/x-bzip2", ".json": "application/json", ".yaml": "application/yaml", ".yml": "application/yaml",
	".ipxe": "text/plain; charset=utf-8", ".pxe": "text/plain; charset=utf-8", ".txt": "text/plain; charset=utf-8",
	".cfg": "text/plain; charset=utf-8", ".conf": "text/plain; charset=utf-8", ".ign": "application/json",
	".sh": "text/plain; charset=utf-8", ".sha256": "text/plain; charset=utf-8", ".sha512": "text/plain; charset=utf-8",
	".squashfs": "application/vnd.squashfs",
}

func contentType(name string) string {
	if t, ok := types[strings.ToLower(path.Ext(name))]; ok {
		return t
	}
	return "application/octet-stream"
}

// counter counts the body's bytes and lets sendfile through.
type counter struct {
	http.ResponseWriter
	sent    int64
	failure error // of sending
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.count(int64(n), err)
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (c *counter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.count(n, err)
	return n, err
}

func (c *counter) count(n int64, err error) {
	if c.sent += n; err != nil {
		c.failure = err
	}
}

// broken is the error of reading for which less than was promised has been sent: that of a file that has become shorter
// is io.ErrUnexpectedEOF. It is nil if all was sent, or if sending failed.
func (c *counter) broken(f *diskFile) error {
	promised := int64(-1) // nothing
	if length, err := strconv.ParseInt(c.Header().Get("Content-Length"), 10, 64); err == nil {
		promised = length
	}
	switch {
	case c.sent >= promised:
		return nil
	case f.failure.Load() != nil:
		return *f.failure.Load()
	case errors.Is(c.failure, syscall.EIO): // of sendfile(2)
		return c.failure
	case c.failure == nil:
		return io.ErrUnexpectedEOF
	default:
		return nil
	}
}

// Unwrap is for http.ResponseController.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
