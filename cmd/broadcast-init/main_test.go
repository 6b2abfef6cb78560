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
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
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
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GORACE=atexit_sleep_ms=0")
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
	if users, err := os.ReadFile("/proc/self/uid_map"); err != nil || !strings.Contains(string(users), "4294967295") {
		t.Skip("needs a user namespace that has user 65532, such as the machine's own")
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
			status, lines, _ := n.run(t, cmd, "BROADCAST_INIT_PARENT=prov0", "BROADCAST_INIT_HEAR=0s")
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

// TestUserNamespace runs the program with every capability, but in a user namespace that the node is not in
// (hostUsers: false).
func TestUserNamespace(t *testing.T) {
	n := newNode(t)
	cmd := command("program")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	status, lines, _ := n.run(t, cmd, "BROADCAST_INIT_PARENT=prov0")
	if status != 1 || len(lines) != 1 || lines[0]["cause"] != "no_host_access" {
		t.Errorf("got exit %d and %v, want no_host_access", status, lines)
	}
}

// TestFailures has the program fail in every way that can be had here: one line each, and exit 1.
func TestFailures(t *testing.T) {
	tests := map[string]struct {
		env   []string
		cause string
		text  string
	}{
		"no such interface": {[]string{"BROADCAST_INIT_PARENT=eth9"}, "no_parent", `no interface of the node is "eth9"`},
		"no default route":  {nil, "no_default_route", "name the interface of the provisioning network"},
		"not Ethernet":      {[]string{"BROADCAST_INIT_PARENT=lo"}, "not_ethernet", "not an Ethernet interface"},
		"no such process":   {[]string{"BROADCAST_INIT_HOST_PID=4194305"}, "no_process", "hostPID: true"},
		"own process":       {[]string{"BROADCAST_INIT_HOST_PID=self"}, "", "BROADCAST_INIT_HOST_PID"},
		"second of several": {
			[]string{"BROADCAST_INIT_PARENT=prov0,eth9", "BROADCAST_INIT_LISTENER=a0,b0"}, "no_parent", "listener b0: ",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			env := append([]string{"BROADCAST_INIT_WAIT=0s", "BROADCAST_INIT_HEAR=0s"}, test.env...)
			status, lines, rest := n.run(t, command("program"), env...)
			if status != 1 {
				t.Errorf("got exit %d, want 1", status)
			}
			if test.cause == "" { // a fault of the settings
				if !strings.Contains(rest, test.text) {
					t.Errorf("got %q, want %q in it", rest, test.text)
				}
				return
			}
			last := lines[len(lines)-1]
			if last["msg"] != "failed to make listener" || last["cause"] != test.cause ||
				!strings.Contains(fmt.Sprint(last["error"]), test.text) {
				t.Errorf("got %v, want cause %s and %q", last, test.cause, test.text)
			}
		})
	}
}

// TestSameNamespace leaves out hostPID: process 1 is then the pod's own.
func TestSameNamespace(t *testing.T) {
	n := newNode(t)
	n.host = n.pod
	cmd := command("hold")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.pod.Do(t, cmd.Start)
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	n.pid = cmd.Process.Pid
	status, lines, _ := n.run(t, command("program"))
	if status != 1 || len(lines) != 1 || lines[0]["cause"] != "same_namespace" {
		t.Errorf("got exit %d and %v, want same_namespace", status, lines)
	}
}

func TestDryRun(t *testing.T) {
	n := newNode(t)
	env := []string{"BROADCAST_INIT_PARENT=prov0", "BROADCAST_INIT_HEAR=0s"}
	steps := []struct {
		args   []string
		stdout string
		events []string
		pod    int // links in the pod, lo among them
		node   int // links on the node: lo and prov0
	}{
		{
			args: []string{"--dry-run"}, pod: 1, node: 2,
			stdout: "create listener macvlan0: macvlan on prov0 (chosen by name), MTU 1500\n",
		},
		{events: []string{"listener ready"}, pod: 2, node: 2},
		{
			args: []string{"--dry-run"}, pod: 2, node: 2,
			stdout: "keep listener macvlan0: macvlan on prov0 (chosen by name), MTU 1500\n",
		},
	}
	for _, step := range steps {
		status, lines, rest := n.run(t, command("program", step.args...), env...)
		var events []string
		for _, line := range lines {
			events = append(events, fmt.Sprint(line["msg"]))
		}
		if status != 0 || rest != step.stdout {
			t.Errorf("%v: got exit %d and %q, want %q", step.args, status, rest, step.stdout)
		}
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%v: log differs (-want +got):\n%s", step.args, diff)
		}
		for ns, want := range map[*nstest.NS]int{n.pod: step.pod, n.host: step.node} {
			if links, err := ns.Links().LinkList(); err != nil || len(links) != want {
				t.Errorf("%v: got %d links (%v), want %d", step.args, len(links), err, want)
			}
		}
	}
}

// TestWatch has the program stay until SIGTERM.
func TestWatch(t *testing.T) {
	n := newNode(t)
	cmd := command("program")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(cmd.Env, "BROADCAST_INIT_HOST_PID="+strconv.Itoa(n.pid), "BROADCAST_INIT_PARENT=prov0",
		"BROADCAST_INIT_WATCH=true")
	n.pod.Do(t, cmd.Start)
	present := func() bool {
		link, err := n.pod.Links().LinkByName("macvlan0")
		return err == nil && link.Attrs().RawFlags&unix.IFF_UP != 0
	}
	await := func() {
		for deadline := time.Now().Add(20 * time.Second); !present() && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	await()
	if err := n.host.Links().LinkDel(n.host.Link(t, "prov0")); err != nil {
		t.Error(err)
	}
	nstest.Veth(t, n.host, "prov0", n.lan, "lan0")
	await()
	if !present() {
		t.Error("got no listener after its parent came back")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit 0", err)
	}
	t.Log(out.String())
	if !present() {
		t.Error("got no listener after the end, want it to stay")
	}
}
