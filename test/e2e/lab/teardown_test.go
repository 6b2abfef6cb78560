package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// ownerEnv has the test binary be the owner of a lab, for tests that end it the hard way.
const ownerEnv = "LAB_TEST_OWNER"

// traces are what a lab is recognised by in the rest of the system.
type traces struct {
	id         string
	namespaces map[string]bool // "net:[4026532345]", as in /proc/<pid>/ns
}

func tracesOf(t *testing.T, id string, nodePid int) traces {
	t.Helper()
	named, err := filepath.Glob("/run/netns/stack-" + id + "-*")
	if err != nil || len(named) < 6 {
		t.Fatalf("namespaces of lab %s: %v, %v; want at least six", id, named, err)
	}
	namespaces := map[string]bool{}
	for _, path := range append(named, fmt.Sprintf("/proc/%d/ns/pid", nodePid)) {
		// While the file is open the kernel gives the number to no other namespace.
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		kind := "net"
		if filepath.Base(path) == "pid" {
			kind = "pid"
		}
		namespaces[fmt.Sprintf("%s:[%d]", kind, inode(t, path))] = true
	}
	return traces{id: id, namespaces: namespaces}
}

// left lists what is still there.
func (tr traces) left() []string {
	var left []string
	for _, pattern := range []string{"/run/netns/stack-" + tr.id + "-*", "/run/stack-lab/" + tr.id} {
		names, _ := filepath.Glob(pattern)
		left = append(left, names...)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, tr.id) {
			left = append(left, "mount "+line)
		}
	}
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*/ns/*")
	for _, path := range threads {
		if target, err := os.Readlink(path); err == nil && tr.namespaces[target] {
			comm, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "comm"))
			left = append(left, path+" "+target+" "+strings.TrimSpace(string(comm)))
		}
	}
	return left
}

func (tr traces) expectGone(t *testing.T, within time.Duration) {
	t.Helper()
	started := time.Now()
	for {
		left := tr.left()
		if len(left) == 0 {
			t.Logf("gone after %s", time.Since(started).Round(time.Millisecond))
			return
		}
		if time.Since(started) > within {
			t.Fatalf("left of lab %s after %s:\n%s", tr.id, within, strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestDown(t *testing.T) {
	m := machine(t)
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: ours})
	if _, err := l.AddHost("m1", m.MAC); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AddTap("m2"); err != nil {
		t.Fatal(err)
	}
	tr := tracesOf(t, l.ID(), l.NodePid())
	if left := tr.left(); len(left) < 10 {
		t.Fatalf("the test finds too little of a lab that is up: %v", left)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	tr.expectGone(t, 0)
	if err := l.Down(); err != nil {
		t.Errorf("second Down: %v", err)
	}
	if _, err := l.Start(lab.Process{Name: "late", Role: lab.RoleLAN, Path: "/bin/true"}); err == nil {
		t.Error("a process started in a lab that is down")
	}
}

func TestUpFails(t *testing.T) {
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	dir := t.TempDir()
	_, err := lab.Up(t.Context(), lab.Options{
		RunDir:  dir,
		Without: append([]string{lab.Hegel}, ours...),
		Args:    map[string][]string{lab.Smee: {"-backend-file-path", "/no/such/file"}},
	})
	if err == nil || !strings.Contains(err.Error(), "smee did not start: smee ended before it was ready (exit status 2)") ||
		!strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("got error %v, want one with the program, its status and what it said", err)
	}
	infos, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		if info.RunDir == dir {
			t.Errorf("lab %s is left behind", info.ID)
		}
	}
	_, err = lab.Up(t.Context(), lab.Options{Machines: []lab.Machine{machine(t), machine(t)}})
	if err == nil || !strings.Contains(err.Error(), "belongs to machine m1") {
		t.Errorf("two machines of one name: got error %v", err)
	}
}

// beOwner makes a lab, says so and waits to be killed.
func beOwner() int {
	ctx := context.Background()
	l, err := lab.Up(ctx, lab.Options{
		RunDir: os.Getenv(ownerEnv), Without: append([]string{lab.Hegel}, ours...),
	})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println(l.ID(), l.NodePid(), l.JanitorPid())
	time.Sleep(time.Minute)
	return 1
}

func startOwner(t *testing.T) (owner *exec.Cmd, tr traces, janitor int) {
	t.Helper()
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	owner = exec.CommandContext(ctx, self)
	owner.Env = append(os.Environ(), ownerEnv+"="+t.TempDir())
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Process.Kill(); _ = owner.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var id string
	var node int
	if _, err := fmt.Sscan(line, &id, &node, &janitor); err != nil {
		t.Fatalf("the owner says %q", line)
	}
	return owner, tracesOf(t, id, node), janitor
}

func TestOwnerKilled(t *testing.T) {
	owner, tr, _ := startOwner(t)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	tr.expectGone(t, 10*time.Second)
}

// TestOwnerAndJanitorKilled is the worst case: the processes go at once, the rest with the next lab.
func TestOwnerAndJanitorKilled(t *testing.T) {
	owner, tr, janitor := startOwner(t)
	for _, pid := range []int{janitor, owner.Process.Pid} {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = owner.Wait()
	deadline := time.Now().Add(10 * time.Second)
	for {
		left := slices.DeleteFunc(tr.left(), func(what string) bool { return !strings.HasPrefix(what, "/proc/") })
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes left:\n%s", strings.Join(left, "\n"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := lab.Sweep(); err != nil { // or somebody else's, a moment before
		t.Fatal(err)
	}
	tr.expectGone(t, 0)
}

func TestSweepLeavesTheLiving(t *testing.T) {
	_, tr, _ := startOwner(t)
	removed, err := lab.Sweep()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(removed, tr.id) {
		t.Error("a living lab was swept")
	}
	if err := lab.End(tr.id); err != nil {
		t.Fatal(err)
	}
	tr.expectGone(t, 0)
}

func TestDetach(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Without: append([]string{lab.Hegel}, ours...)})
	tr := tracesOf(t, l.ID(), l.NodePid())
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
	if removed, err := lab.Sweep(); err != nil || slices.Contains(removed, l.ID()) {
		t.Fatalf("Sweep: %v, %v", removed, err)
	}
	if len(tr.left()) < 8 {
		t.Fatal("the detached lab is gone")
	}
	if err := lab.End(l.ID()); err != nil {
		t.Fatal(err)
	}
	tr.expectGone(t, 0)
}
