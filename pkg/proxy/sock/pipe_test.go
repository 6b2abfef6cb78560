package sock

import (
	"errors"
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
