package cgroup_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/cgroup"
)

// What a process allocates and what it puts into tmpfs is used; what the kernel keeps of a disk is not. It takes a
// cgroup (v2) of the test's own, which test/e2e/kernels gives it.
func TestMemoryOfARealCgroup(t *testing.T) {
	processes, err := os.ReadFile(filepath.Join(cgroup.Root, "cgroup.procs"))
	if err != nil || bytes.Count(processes, []byte("\n")) != 1 {
		t.Skip("needs a cgroup of its own (test/e2e/kernels runs it)")
	}
	m, err := cgroup.Open(cgroup.Root)
	if errors.Is(err, cgroup.ErrNone) {
		t.Skip("needs a cgroup with a limit of memory (test/e2e/kernels runs it)")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	used := func() int64 {
		t.Helper()
		n, err := m.Used()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const size, slack = 8 << 20, 2 << 20 // slack: the kernel counts in batches, and Go's own memory
	grows := func(what string, want int64, use func()) {
		t.Helper()
		before := used()
		use()
		if grown := used() - before; grown < want-slack || grown > want+slack {
			t.Errorf("%s: %d bytes more are used, want %d", what, grown, want)
		}
	}
	grows("memory", size, func() {
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
	})
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Fatalf("%s is no tmpfs: %v", dir, err)
	}
	grows("a file in tmpfs", size, func() {
		file, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		piece := make([]byte, 4<<10) // all of it at once would be as much of Go's own memory
		for range size / len(piece) {
			if _, err := file.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
	})
	grows("what is kept of a disk", 0, func() {
		disk, err := os.Open("/dev/ram0")
		if err != nil {
			t.Fatal(err)
		}
		defer disk.Close()
		if n, err := io.CopyN(io.Discard, disk, size); err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		stat, err := os.ReadFile(filepath.Join(cgroup.Root, "memory.stat"))
		if err != nil || !bytes.Contains(stat, []byte("\nfile ")) {
			t.Fatalf("%v\n%s", err, stat)
		}
	})
	if limit, err := os.ReadFile(filepath.Join(cgroup.Root, "memory.max")); err != nil || m.Limit() <= used() {
		t.Errorf("got %d used of %d (%s, %v)", used(), m.Limit(), limit, err)
	}
}
