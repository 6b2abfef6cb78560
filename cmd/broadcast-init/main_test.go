package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tinkerbell/stack/internal/nstest"
	"golang.org/x/sys/unix"
)

// roleVariable has the test binary play a part of the test instead of running the tests.
const roleVariable = "BROADCASTINIT_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		os.Exit(m.Run())
	case "hold": // a process of the node
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "drop": // what a container runtime does before it starts the program
		if err := keepOnly(unix.CAP_NET_ADMIN); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	case "program":
		signal.Reset()
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
}

// keepOnly drops every capability but one for good, forbids new ones, and becomes the program.
func keepOnly(capability uintptr) error {
	runtime.LockOSThread() // capabilities belong to a thread, and it is this one that becomes the program
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c == capability {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("failed to drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("failed to forbid new privileges: %w", err)
	}
	if err := os.Setenv(roleVariable, "program"); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// node is a node with an interface prov0, whose far end lan0 is in another namespace, and a pod.
type node struct {
	host, lan, pod *nstest.NS
	pid            int
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{host: nstest.New(t), lan: nstest.New(t), pod: nstest.New(t)}
	nstest.Veth(t, n.host, "prov0", n.lan, "lan0")
	cmd := command("hold")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.host.Do(t, cmd.Start)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	n.pid = cmd.Process.Pid
	return n
}

func command(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd
}

// run runs the program in the pod and returns its exit status, its log lines and the rest of what it wrote.
func (n *node) run(t *testing.T, cmd *exec.Cmd, env ...string) (status int, lines []map[string]any, rest string) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(append(cmd.Env, "BROADCAST_INIT_HOST_PID="+strconv.Itoa(n.pid)), env...)
	n.pod.Do(t, cmd.Start)
	_ = cmd.Wait() // the status says it
	for line := range strings.Lines(out.String()) {
		fields := map[string]any{}
		if json.Unmarshal([]byte(line), &fields) == nil {
			lines = append(lines, fields)
		} else {
			rest += line
		}
	}
	t.Logf("exit %d\n%s", cmd.ProcessState.ExitCode(), out.String())
	return cmd.ProcessState.ExitCode(), lines, rest
}

// TestCapabilities runs the program with exactly what Kubernetes can give it, and a little less.
func TestCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to start programs with chosen capabilities")
	}
	unprivileged := &syscall.Credential{Uid: 65532, Gid: 65532}
	tests := map[string]struct {
		role   string
		attrs  *syscall.SysProcAttr
		status int
		cause  string
	}{
		"root with NET_ADMIN and no_new_privs": {role: "drop"},
		"user 65532 with NET_ADMIN ambient": {
			role:  "program",
			attrs: &syscall.SysProcAttr{Credential: unprivileged, AmbientCaps: []uintptr{unix.CAP_NET_ADMIN}},
		},
		"user 65532 without": {
			role: "program", attrs: &syscall.SysProcAttr{Credential: unprivileged}, status: 1, cause: "no_capability",
		},
		"user 65532 with NET_RAW": {
			role: "program", status: 1, cause: "no_capability",
			attrs: &syscall.SysProcAttr{Credential: unprivileged, AmbientCaps: []uintptr{unix.CAP_NET_RAW}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			cmd := command(test.role)
			cmd.SysProcAttr = test.attrs
			status, lines, _ := n.run(t, cmd, "BROADCAST_INIT_PARENT=prov0")
			if status != test.status || len(lines) != 1 {
				t.Fatalf("got exit %d and %d lines, want exit %d and one line", status, len(lines), test.status)
			}
			if test.status != 0 {
				if lines[0]["cause"] != test.cause {
					t.Errorf("got cause %v, want %s", lines[0]["cause"], test.cause)
				}
				return
			}
			if lines[0]["msg"] != "listener ready" || lines[0]["parent"] != "prov0" {
				t.Errorf("got %v", lines[0])
			}
			if kind := n.pod.Link(t, "macvlan0").Type(); kind != "macvlan" {
				t.Errorf("got %s, want a macvlan", kind)
			}
		})
	}
}
