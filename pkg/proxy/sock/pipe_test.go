package sock

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A user that holds many pipes gets those with room for next to nothing: worse than a copy.
func TestPipeShare(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("wants root, to become another user")
	}
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends as that user
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 54321, 54321, 54321); errno != 0 {
			failed <- errno
			return
		}
		for range 2000 {
			p, err := NewPipe()
			if err != nil {
				failed <- nil
				return
			}
			defer p.Close()
			if size, err := unix.FcntlInt(uintptr(p.read), unix.F_GETPIPE_SZ, 0); size < pipeLeast {
				failed <- errors.Join(errors.New("a pipe is too small"), err)
				return
			}
		}
		failed <- errors.New("pipes without end")
	}()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// TestPipeFails: splice(2) returns -1 with an error. Neither end of the pipe counts that as bytes.
func TestPipeFails(t *testing.T) {
	p, err := NewPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	src := connect(t, backend(t, func(c *net.TCPConn) {
		_, _ = c.Write([]byte("bytes"))
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	}))
	fill := func() (n int, err error) {
		_ = src.raw.Read(func(fd uintptr) bool {
			n, err = p.Fill(int(fd), PipeSize)
			return !errors.Is(err, unix.EAGAIN)
		})
		return n, err
	}
	if n, err := fill(); n != 5 || err != nil || p.Held != 5 {
		t.Fatal(n, p.Held, err)
	}
	dst := connect(t, backend(t, func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 1)) }))
	if err := dst.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = dst.raw.Control(func(fd uintptr) {
		if n, err := p.Drain(int(fd)); n != 0 || p.Held != 5 || !errors.Is(err, unix.EPIPE) {
			t.Errorf("got %d, %v, want EPIPE; %d bytes are left", n, err, p.Held)
		}
	})
	if _, err := src.Write([]byte("reset")); err != nil {
		t.Fatal(err)
	}
	if n, err := fill(); n != 0 || !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("got %d, %v, want ECONNRESET", n, err)
	}
}
