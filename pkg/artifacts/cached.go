package artifacts

import (
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An event loop serves small files without a goroutine for each, but must not wait for a disk, or for the server of a
// network file system, which may be gone for minutes. So it gets a file only where each step is done by what the
// kernel has in memory: the path by openat2(2) with RESOLVE_CACHED, the content as preadv2(2) with RWF_NOWAIT finds
// it. Everything else is ServeHTTP's, whose answer is the same.

// CachedSize is how long a file may be for [Handler.Cached], in bytes.
const CachedSize = 64 << 10

// trustFor is for how long Cached relies on what it saw last: that the directory's name leads to the generation, and
// that a file's content is in memory, since the kernel drops last what was read just now. So a new generation is served
// from memory after that time at the latest, and no older one once ServeHTTP has opened it.
const trustFor = 10 * time.Millisecond

// cache is what Cached knows of a generation.
type cache struct {
	dir           *os.File     // the generation's directory
	mayBeInMemory atomic.Bool  // its files are on a local disk, and the kernel says what it has of them
	probed        atomic.Bool  // whether their content may be was tried
	checked       atomic.Int64 // when the directory's name last led here, in nanoseconds since the handler began
	warm          atomic.Pointer[warm]
	known         [256]atomic.Uint64 // the inodes of files that were in memory, each in its place
}

// warm is a file whose whole content was in memory.
type warm struct {
	inode uint64
	size  int64
	at    time.Time
}

func (c *cache) open(root *os.Root) {
	var err error
	if c.dir, err = root.Open("."); err == nil {
		c.mayBeInMemory.Store(isLocal(c.dir))
	}
}

// Cached is a file that was found in the kernel's memory. It has to be closed.
type Cached struct {
	handler *Handler
	gen     *generation
	fd      int
	info    unix.Stat_t
	name    string
	etag    string
	label   string // of the metrics; empty for a file that the manifest does not have
}

// resolveCached is RESOLVE_CACHED of <linux/openat2.h>, which x/sys/unix does not have.
const resolveCached = 0x20

// localFileSystems are those that find and open a file without asking another host.
var localFileSystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
}

// isLocal is whether a directory is on such a file system.
func isLocal(dir *os.File) bool {
	var s unix.Statfs_t
	if unix.Fstatfs(int(dir.Fd()), &s) != nil {
		return false
	}
	kind := int64(s.Type) //nolint:unconvert // it has another type on other processors
	return slices.Contains(localFileSystems, kind)
}

// Cached finds the file for a GET of a path without conditions or ranges; nil where that is not known without waiting,
// where the file is longer than [CachedSize], and where ServeHTTP would answer with no file or by more than the path.
func (h *Handler) Cached(path string) *Cached {
	name, ok := cleanName(path)
	if !ok || !h.mu.TryRLock() {
		return nil
	}
	defer h.mu.RUnlock()
	if h.gen == nil || !h.gen.mayBeInMemory.Load() {
		return nil
	}
	if !h.leadsTo(h.gen) {
		return nil
	}
	c := &Cached{handler: h, gen: h.gen, name: name}
	var err error
	c.fd, err = unix.Openat2(int(h.gen.dir.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: resolveCached | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil
	}
	if !c.fits() {
		c.Close()
		return nil
	}
	return c
}

// leadsTo is whether the directory's name leads to a generation, as far as that is known without waiting.
func (h *Handler) leadsTo(g *generation) bool {
	now := time.Since(h.began)
	if last := g.checked.Load(); last > 0 && int64(now)-last < int64(trustFor) {
		return true
	}
	dir, err := unix.Openat2(unix.AT_FDCWD, h.config.Directory, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolveCached,
	})
	if err != nil {
		g.giveUp(err)
		return false
	}
	defer unix.Close(dir)
	var s unix.Stat_t
	if unix.Fstat(dir, &s) != nil || !g.is(&s) {
		return false // another generation has been published
	}
	g.checked.Store(int64(now))
	return true
}

// fits is whether the open file is one to be served from memory, which its answer's header then describes.
func (c *Cached) fits() bool {
	g := c.gen
	if unix.Fstat(c.fd, &c.info) != nil || c.info.Mode&unix.S_IFMT != unix.S_IFREG || c.info.Size > CachedSize {
		return false
	}
	if !g.probed.Load() {
		if _, err := c.InMemory(0); errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			g.mayBeInMemory.Store(false)
		}
		g.probed.Store(true)
	}
	if !g.mayBeInMemory.Load() { // another loop may have found that out
		return false
	}
	etag, known, err := g.manifest.identify(c.name, c.info.Size, time.Unix(c.info.Mtim.Unix()))
	if c.etag = etag; known {
		c.label = c.name
	}
	return err == nil
}

// is compares with an open directory.
func (g *generation) is(s *unix.Stat_t) bool {
	own, ok := g.info.Sys().(*syscall.Stat_t)
	return ok && own.Dev == s.Dev && own.Ino == s.Ino
}

// giveUp has no file looked for in memory where the kernel, or a seccomp profile, does not know openat2 or its flags.
func (g *generation) giveUp(err error) {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		g.mayBeInMemory.Store(false)
	}
}

// Size is the file's, in bytes.
func (c *Cached) Size() int64 { return c.info.Size }

// AppendHeader appends the status of the answer with the whole file, and its header lines.
func (c *Cached) AppendHeader(b []byte) []byte {
	b = append(b, "200 OK\r\nAccept-Ranges: bytes\r\nContent-Length: "...)
	b = strconv.AppendInt(b, c.info.Size, 10)
	b = append(append(b, "\r\nContent-Type: "...), contentType(c.name)...)
	b = append(append(b, "\r\nEtag: "...), c.etag...)
	if seconds, nano := c.info.Mtim.Unix(); seconds != 0 || nano != 0 { // as http.ServeContent has it
		b = append(b, "\r\nLast-Modified: "...)
		b = time.Unix(seconds, 0).UTC().AppendFormat(b, http.TimeFormat)
	}
	return append(b, "\r\nX-Content-Type-Options: nosniff\r\n"...)
}

// InMemory is how many bytes of the file from an offset on the kernel has in memory; 0 is none. They are read for
// that, into memory that stays in the processor's cache: it costs less than the copy to a socket that Send spares. A
// file that has become shorter is an unexpected end.
func (c *Cached) InMemory(offset int64) (int64, error) {
	now := time.Now()
	if w := c.gen.warm.Load(); w != nil && w.inode == c.info.Ino && w.size == c.info.Size && now.Sub(w.at) < trustFor {
		return w.size - offset, nil
	}
	// The kernel begins to read what is not there, into memory that it cannot take back until the disk has answered. So
	// while the disk has enough to do, only a file that was in memory before is looked for.
	known := &c.gen.known[c.info.Ino%uint64(len(c.gen.known))]
	if c.handler.disk.full() && known.Load() != c.info.Ino {
		return 0, nil
	}
	n, err := c.read(offset, unix.RWF_NOWAIT)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err == nil && n == c.info.Size:
		c.gen.warm.Store(&warm{c.info.Ino, n, now})
		known.Store(c.info.Ino)
	}
	return n, err
}

// Load waits for a place, and until the kernel has the file's content at an offset in memory; [os.ErrClosed] where stop
// was closed before there was a place.
func (c *Cached) Load(offset int64, stop <-chan struct{}) error {
	if !c.handler.disk.enter(stop) {
		return os.ErrClosed
	}
	defer c.handler.disk.leave()
	_, err := c.read(offset, 0)
	return err
}

// scratch takes bytes that nobody looks at: all of a read go to the same piece of memory.
type scratch struct {
	piece [8 << 10]byte
	all   [CachedSize >> 13][]byte
}

var scratches = sync.Pool{New: func() any {
	s := new(scratch)
	for i := range s.all {
		s.all[i] = s.piece[:]
	}
	return s
}}

func (c *Cached) read(offset int64, flags int) (int64, error) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for {
		n, err := unix.Preadv2(c.fd, s.all[:], offset, flags)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return int64(n), nil
		}
	}
}

// Send sends n bytes from an offset on to a socket by sendfile(2), or as many as it takes; EAGAIN where that is none.
func (c *Cached) Send(socket int, offset, n int64) (int64, error) {
	for {
		sent, err := unix.Sendfile(socket, c.fd, &offset, int(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case sent == 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return int64(sent), nil
		}
	}
}

// Close closes the file.
func (c *Cached) Close() { _ = unix.Close(c.fd) }

// Served counts how much of the file was sent, and in which time, and logs an error of reading it.
func (c *Cached) Served(bytes int64, took time.Duration, failure error) {
	h := c.handler
	h.config.Metrics.served(h.config.Route, c.label, bytes, took)
	if failure != nil && !errors.Is(failure, os.ErrClosed) {
		h.noteBroken(c.name, failure, bytes)
	}
}
