package web

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// slowDisk is a file of a disk whose places are taken for a while, before each piece of it.
type slowDisk struct {
	*os.File
	wait  time.Duration
	waits int
}

var _ DiskFile = (*slowDisk)(nil)

func (s *slowDisk) OSFile() *os.File { return s.File }

func (s *slowDisk) Begin(int64) (int64, bool) { return 0, false }

func (s *slowDisk) Wait() error {
	s.waits++
	time.Sleep(s.wait)
	return nil
}

func (s *slowDisk) End() {}

// A client that waits for a disk is not one that takes nothing: it gets its file, however long the disk was busy.
func TestWaitForTheDiskIsNoStall(t *testing.T) {
	t.Parallel()
	const size, stall = 1 << 20, 300 * time.Millisecond
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	waits := make(chan int, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		file, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer file.Close()
		f := &slowDisk{File: file, wait: 2 * stall}
		defer func() { waits <- f.waits }()
		http.ServeContent(w, r, "file", time.Time{}, f)
	})
	r := start(t, Settings{Handler: h, Timeouts: Timeouts{Stall: stall}})
	response, err := http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); n != size || err != nil {
		t.Errorf("got %d of %d bytes, %v", n, size, err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if <-waits == 0 {
		t.Error("the file was not read in places")
	}
}
