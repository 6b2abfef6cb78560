package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start starts the program in the pod; what it writes is in the buffer when it has ended.
func (n *node) start(t *testing.T, env ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd, out := command("program"), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(append(cmd.Env, "BROADCAST_INIT_HOST_PID="+strconv.Itoa(n.pid), "BROADCAST_INIT_PARENT=prov0",
		"BROADCAST_INIT_HEAR=0s"), env...)
	n.pod.Do(t, cmd.Start)
	return cmd, out
}

// listeners are the pod's interfaces but for lo.
func (n *node) listeners(t *testing.T) (names []string) {
	t.Helper()
	links, err := n.pod.Links().LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if link.Attrs().Name != "lo" {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}

// lacksKind tells from the program's output that the kernel has no such interfaces.
func lacksKind(out string) bool { return strings.Contains(out, `"cause":"no_kind"`) }

// TestSeveralAtOnceAgree starts five at once for one pod and one parent, as a kubelet may that starts a container again
// while the last one still dies: all of them succeed, with the one listener, also where one is killed half-way, and
// beside one that watches.
func TestSeveralAtOnceAgree(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"macvlan", "ipvlan"} {
		for _, beside := range []string{"", "beside watch"} {
			t.Run(strings.TrimSpace(kind+" "+beside), func(t *testing.T) {
				n := newNode(t)
				env := []string{"BROADCAST_INIT_KIND=" + kind, "BROADCAST_INIT_WAIT=10s"}
				probe, said := n.start(t, env...)
				if err := probe.Wait(); err != nil {
					if lacksKind(said.String()) {
						t.Skipf("needs a kernel with %s", kind)
					}
					t.Fatalf("%v: %s", err, said)
				}
				if beside != "" {
					watch, out := n.start(t, append(env, "BROADCAST_INIT_WATCH=true")...)
					defer func() {
						_ = watch.Process.Signal(syscall.SIGTERM)
						if err := watch.Wait(); err != nil || strings.Contains(out.String(), `"ERROR"`) {
							t.Errorf("watch: got %v: %s", err, out)
						}
					}()
				}
				for round := range 20 {
					for _, name := range n.listeners(t) {
						if link, err := n.pod.Links().LinkByName(name); err == nil {
							_ = n.pod.Links().LinkDel(link) // the one that watches may be about to make it anew
						}
					}
					n.round(t, round, env)
				}
			})
		}
	}
}

// round starts five at once, and in every other round kills one of them.
func (n *node) round(t *testing.T, round int, env []string) {
	t.Helper()
	cmds, outs := make([]*exec.Cmd, 5), make([]*bytes.Buffer, 5)
	for i := range cmds {
		cmds[i], outs[i] = n.start(t, env...)
	}
	killed := -1
	if round%2 == 1 {
		killed = round % len(cmds)
		time.Sleep(time.Duration(round) * time.Millisecond)
		_ = cmds[killed].Process.Kill()
	}
	for i, cmd := range cmds {
		err := cmd.Wait()
		if i == killed {
			continue
		}
		var last struct{ Msg, Cause string }
		lines := strings.Split(strings.TrimSpace(outs[i].String()), "\n")
		if json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil || err != nil || last.Msg != "listener ready" {
			t.Errorf("round %d: got %v: %s", round, err, outs[i])
		}
	}
	if diff := cmp.Diff([]string{"macvlan0"}, n.listeners(t)); diff != "" {
		t.Errorf("round %d: listeners differ (-want +got):\n%s", round, diff)
	}
}
