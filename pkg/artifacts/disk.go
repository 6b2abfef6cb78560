package artifacts

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// disk bounds how many threads wait for a handler's disk, or for the server of a network file system, at a time: each
// read, and each open, is done in a place of it. While the disk hangs, further requests wait without a thread, and can
// be given up; what is in the kernel's memory is sent without a place where none is free.
type disk struct {
	places  chan struct{}
	waiting prometheus.Gauge // how many wait for a place; may be nil
}

// diskPlaces are as many as a disk has requests in its queue. A thread takes 100 KiB, and Go ends a process with
// 10,000.
const diskPlaces = 32

func newDisk(waiting prometheus.Gauge) disk { return disk{make(chan struct{}, diskPlaces), waiting} }

// try takes a place if one is free.
func (d disk) try() bool {
	select {
	case d.places <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter waits for a place, and returns false when stop is closed before there is one.
func (d disk) enter(stop <-chan struct{}) bool {
	if d.try() {
		return true
	}
	if d.waiting != nil {
		d.waiting.Inc()
		defer d.waiting.Dec()
	}
	select {
	case d.places <- struct{}{}:
		return true
	case <-stop:
		return false
	}
}

func (d disk) leave() { <-d.places }

// full reports whether no place is free.
func (d disk) full() bool { return len(d.places) == cap(d.places) }

// diskFile is a file that is read in places of a disk. One goroutine at a time uses it.
type diskFile struct {
	*os.File
	disk    disk
	context context.Context // of the request
	size    int64
	failure atomic.Pointer[error] // of reading, by net/http also in a goroutine that may outlive the request
}

// OSFile is the file itself, for sendfile(2).
func (f *diskFile) OSFile() *os.File { return f.File }

// Begin returns how many of the next n bytes may be read now: all in a place, which End has to leave, or those that are
// in memory without one. 0 is none: Wait waits for a place.
func (f *diskFile) Begin(n int64) (now int64, placed bool) {
	if f.disk.try() {
		return n, true
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return f.inMemory(s.all[:], n), false
}

// Wait waits for a place, until the request is given up.
func (f *diskFile) Wait() error {
	if !f.disk.enter(f.context.Done()) {
		return f.context.Err()
	}
	return nil
}

// End leaves the place.
func (f *diskFile) End() { f.disk.leave() }

// Read implements io.Reader.
func (f *diskFile) Read(b []byte) (int, error) {
	if !f.disk.try() {
		n := f.inMemory([][]byte{b}, int64(len(b)))
		if n > 0 {
			_, err := f.Seek(n, io.SeekCurrent)
			return int(n), err
		}
		if err := f.Wait(); err != nil {
			return 0, err
		}
	}
	defer f.disk.leave()
	n, err := f.File.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.failure.Store(&err)
	}
	return n, err
}

// inMemory reads those of the file's next n bytes that are in memory, and returns how many they are. It has nothing
// read of the disk: preadv2(2) would, for a part that is not there, and the memory that waits for a disk cannot be
// taken back. So that part is looked for first, by cachestat(2); before Linux 6.5 all have to wait for a place.
func (f *diskFile) inMemory(into [][]byte, n int64) (found int64) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	n = min(n, CachedSize, f.size-at)
	page := int64(os.Getpagesize())
	_ = raw.Control(func(fd uintptr) {
		var s unix.Cachestat_t
		if unix.Cachestat(uint(fd), &unix.CachestatRange{Off: uint64(at), Len: uint64(n)}, &s, 0) != nil ||
			int64(s.Cache) < (at+n+page-1)/page-at/page {
			return
		}
		got, err := unix.Preadv2(int(fd), into, at, unix.RWF_NOWAIT)
		if err == nil {
			found = min(int64(got), n)
		}
	})
	return found
}
