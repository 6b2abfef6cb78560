package bootfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrWait says that a file, or the part of it that is wanted, is not in the kernel's memory: [File.Load] brings it.
var ErrWait = errors.New("not in memory yet")

// errChanged is a file that is not what the index says.
var errChanged = errors.New("file is not what it was")

// File is a boot file that clients read. Each finder closes it once.
type File struct {
	directory *Directory
	index     *index
	name      string // below the directory
	entry

	opened  atomic.Pointer[os.File]
	readers int // guarded by the Directory's mu
}

// String is the file's name in its directory.
func (f *File) String() string { return f.name }

// Size is the file's, in bytes.
func (f *File) Size() int64 { return f.size }

// Read fills b from an offset on, without waiting for a disk; else it is ErrWait. A file that has become shorter is
// io.ErrUnexpectedEOF.
func (f *File) Read(b []byte, offset int64) error {
	opened := f.opened.Load()
	if opened == nil {
		return ErrWait
	}
	for len(b) > 0 {
		n, err := unix.Preadv2(int(opened.Fd()), [][]byte{b}, offset, unix.RWF_NOWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return ErrWait
		case err != nil:
			return fmt.Errorf("failed to read %s: %w", f.name, err)
		case n == 0:
			return fmt.Errorf("failed to read %s: %w", f.name, io.ErrUnexpectedEOF)
		}
		b, offset = b[n:], offset+int64(n)
	}
	return nil
}

// Load opens the file, and reads n bytes from an offset on into b, in a goroutine, and then calls done.
func (f *File) Load(b []byte, offset int64, done func(error)) {
	f.directory.mu.Lock()
	f.readers++
	f.directory.mu.Unlock()
	f.directory.readers.Go(func() {
		f.directory.places <- struct{}{}
		defer func() { <-f.directory.places }()
		defer f.Close()
		done(f.load(b, offset))
	})
}

func (f *File) load(b []byte, offset int64) error {
	if f.opened.Load() == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	n, err := f.opened.Load().ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	return fmt.Errorf("failed to read %s: %w", f.name, err)
}

// open opens the file; another goroutine may have been faster.
func (f *File) open() error {
	// Without O_NONBLOCK somebody's FIFO would hold the goroutine for ever.
	opened, err := f.index.root.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("failed to open boot file: %w", err)
	}
	info, err := opened.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != f.size) {
		err = errChanged
	}
	if err != nil {
		_ = opened.Close()
		return fmt.Errorf("failed to open boot file %s: %w", f.name, err)
	}
	if !f.opened.CompareAndSwap(nil, opened) {
		_ = opened.Close()
	}
	return nil
}

// Close lets go of the file.
func (f *File) Close() {
	f.directory.mu.Lock()
	defer f.directory.mu.Unlock()
	f.readers--
	if f.readers > 0 {
		return
	}
	delete(f.index.open, f.name)
	if opened := f.opened.Load(); opened != nil {
		_ = opened.Close()
	}
}
