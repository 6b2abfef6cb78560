package sock

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// TestSendFile sends parts of a file, corked and not, and all that is left of one that is shorter than asked for.
func TestSendFile(t *testing.T) {
	content := make([]byte, 3<<20+17)
	_, _ = rand.Read(content)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got := make(chan []byte, 1)
	c := connect(t, backend(t, func(conn *net.TCPConn) {
		all, _ := io.ReadAll(conn)
		got <- all
	}))
	for i, want := range []int64{1, 2 << 20, 1<<20 + 16} {
		if err := c.Cork(i%2 == 0); err != nil {
			t.Error(err)
		}
		most := want
		if i == 2 {
			most = 10 << 20
		}
		if n, err := c.SendFile(file, most, nil); n != want || err != nil {
			t.Errorf("part %d: sent %d, %v, want %d", i, n, err, want)
		}
	}
	if err := c.Cork(false); err != nil {
		t.Error(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if all := receive(t, got); !bytes.Equal(all, content) {
		t.Errorf("%d other bytes arrive, want %d", len(all), len(content))
	}
	for deadline := time.Now().Add(long); c.Acked() < uint64(len(content)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are acknowledged, want %d", c.Acked(), len(content))
		}
	}
	_ = c.raw.Control(func(fd uintptr) {
		if n := Outstanding(int(fd)); n > 0 {
			t.Errorf("%d bytes are outstanding", n)
		}
	})
}

// A file that sendfile(2) does not take is told by its error, and so is a deadline.
func TestSendFileFails(t *testing.T) {
	hold := make(chan struct{})
	c := connect(t, backend(t, func(*net.TCPConn) { <-hold }))
	defer close(hold)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if n, err := c.SendFile(r, 1, nil); n != 0 || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("sent %d of a pipe, %v", n, err)
	}
	file, err := os.CreateTemp(t.TempDir(), "large")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if err := c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.SendFile(file, 1<<30, nil); n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sent %d to a peer that does not read, %v", n, err)
	}
}

// places are those of a disk that has none at first.
type places struct{ free, held, waits, most atomic.Int64 }

func (p *places) Begin(n int64) (int64, bool) {
	if p.free.Load() == 0 {
		return 0, false
	}
	p.take()
	return n, true
}

func (p *places) Wait() error {
	p.waits.Add(1)
	p.free.Store(1)
	p.take()
	return nil
}

func (p *places) take() { p.most.Store(max(p.most.Load(), p.held.Add(1))) }

func (p *places) End() { p.held.Add(-1) }

// A file is read in a place of its disk, for which it is waited without one, and none is held while the socket is full.
func TestSendFileReadsInPlaces(t *testing.T) {
	const size = 16 << 20
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	read, got := make(chan struct{}), make(chan int64, 1)
	c := connect(t, backend(t, func(conn *net.TCPConn) {
		<-read
		n, _ := io.CopyN(io.Discard, conn, size)
		got <- n
	}))
	var p places
	sent := make(chan int64, 1)
	go func() {
		n, err := c.SendFile(file, size, &p)
		if err != nil {
			t.Error(err)
		}
		sent <- n
	}()
	for deadline, last := time.Now().Add(long), uint64(0); ; time.Sleep(50 * time.Millisecond) {
		if acked := c.Acked(); acked > 0 && acked == last { // the socket is full
			break
		} else if last = acked; time.Now().After(deadline) {
			t.Fatal("the socket does not become full")
		}
	}
	if held, waits := p.held.Load(), p.waits.Load(); held != 0 || waits != 1 {
		t.Errorf("while the socket is full %d places are held; was waited for one %d times", held, waits)
	}
	close(read)
	if n, all := receive(t, sent), receive(t, got); n != size || all != size {
		t.Errorf("%d bytes were sent, %d arrive", n, all)
	}
	if held, most := p.held.Load(), p.most.Load(); held != 0 || most != 1 {
		t.Errorf("%d places are held at the end, %d at most", held, most)
	}
}
