package process

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func shell(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	sh, err := Find("sh")
	if err != nil {
		t.Skipf("needs a shell: %v", err)
	}
	return exec.CommandContext(t.Context(), sh, "-c", script)
}

func TestProcess(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ready := Listens(listener.Addr().String())
	cmd := shell(t, "(while :; do :; done) & wait")
	p, err := Start(t.Context(), cmd, Options{Name: "busy", Ready: ready})
	if err != nil {
		t.Fatal(err)
	}
	for p.CPU() < 0.05 && t.Context().Err() == nil { // the child's, not the shell's
		if len(p.PIDs()) > 2 {
			t.Fatal("the shell has more than one child")
		}
	}
	if peak, err := p.Peak(); p.Memory() == 0 || peak == 0 {
		t.Errorf("it has no memory: %v", err)
	}
	p.Kill()
	if cmd.ProcessState == nil || p.CPU() != 0 {
		t.Errorf("it goes on: %v", cmd.ProcessState)
	}
	_ = listener.Close()
	broken := shell(t, "echo port is taken >&2; exit 1")
	_, err = Start(t.Context(), broken, Options{Name: "broken", Ready: ready})
	if err == nil || !strings.Contains(err.Error(), "port is taken") {
		t.Errorf("got %v, want what the program said", err)
	}
}

// A process that ends takes its children with it, and its log is kept.
func TestEnd(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	inherited := errors.New("not yet")
	p, err := Start(t.Context(), shell(t, "trap 'exit 3' TERM; sleep 1000 & echo child $!; wait"), Options{
		Log: log, Ready: func(context.Context) error {
			if text, _ := os.ReadFile(log); strings.HasPrefix(string(text), "child ") {
				return nil
			}
			return inherited
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	family := p.PIDs()
	if exit := new(exec.ExitError); !errors.As(p.End(30*time.Second), &exit) || exit.ExitCode() != 3 {
		t.Errorf("got %v, want exit status 3", p.Wait())
	}
	if len(family) != 2 || !strings.HasPrefix(p.Said(), "child ") {
		t.Errorf("the processes were %v, and the log is %q", family, p.Said())
	}
	for _, pid := range family {
		for syscall.Kill(pid, 0) == nil && !zombie(pid) && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	p.Kill() // does nothing
	stubborn, err := Start(t.Context(), shell(t, "trap '' TERM; echo deaf; while :; do sleep 1; done"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for stubborn.Said() == "" && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := stubborn.End(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "50ms after SIGTERM") {
		t.Errorf("got %v, want that it was still there", err)
	}
}

// zombie tells whether a process has ended and nobody has waited for it.
func zombie(pid int) bool {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "Z")
}

// The program inherits what was changed of its thread, and no other goroutine gets that thread.
func TestEnter(t *testing.T) {
	own, err := os.Readlink("/proc/self/ns/uts") // now: the thread that enters another one may be the process's first
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(t.Context(), shell(t, "readlink /proc/self/ns/uts; cut -d' ' -f41 /proc/self/stat"), Options{
		Enter: func() error { return unix.Unshare(unix.CLONE_NEWUTS) }, Realtime: true,
	})
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root to make a namespace")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, p.Said())
	}
	said := strings.Fields(p.Said())
	if len(said) != 2 || said[0] == own || said[1] != strconv.Itoa(unix.SCHED_RR) {
		t.Errorf("got namespace and policy %v, want another namespace than %s and policy %d", said, own, unix.SCHED_RR)
	}
}
