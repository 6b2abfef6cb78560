package lab_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestPod runs our own programs in the pod.
func TestPod(t *testing.T) {
	m := machine(t)
	artifacts := t.TempDir()
	if err := os.Chmod(artifacts, 0o755); err != nil { // another user reads it
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(artifacts, "vmlinuz"), []byte("a kernel"), 0o644); err != nil {
		t.Fatal(err)
	}
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Artifacts: artifacts})
	host, err := l.AddHost("m1", m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Configure(host, netip.PrefixFrom(m.IP, lab.LAN.Bits()), lab.GatewayIP); err != nil {
		t.Fatal(err)
	}
	t.Run("capabilities", func(t *testing.T) { testCapabilities(t, l) })
	t.Run("forward", func(t *testing.T) { testForward(t, l) })
	t.Run("exec", func(t *testing.T) { testExec(t, l) })
	t.Run("metadata", func(t *testing.T) {
		url := "http://192.0.2.2:50061/2009-04-04/user-data"
		if status, body := get(t, l, host, url, "192.0.2.77"); status != http.StatusOK || body != m.Userdata {
			t.Errorf("got %d %q, want the user-data of the machine that asks", status, body)
		}
	})
	t.Run("artifact", func(t *testing.T) {
		if status, body := get(t, l, host, "http://192.0.2.2:8080/vmlinuz", ""); status != 200 || body != "a kernel" {
			t.Errorf("got %d %q, want 200 and a kernel", status, body)
		}
	})
	t.Run("backend replaced", func(t *testing.T) { testReplaced(t, l, host, m) })
	t.Run("DNS gone", func(t *testing.T) { testWithoutDNS(t, l, host, m) })
	t.Run("programs restarted", func(t *testing.T) { testRestarts(t, l, host, m) })
}

// testCapabilities reads what the running programs hold from the kernel.
func testCapabilities(t *testing.T, l *lab.Lab) {
	const none, netRaw = "0000000000000000", "0000000000002000"
	for name, want := range map[string]map[string]string{
		lab.DHCPRelay: {
			"Uid": "0\t0\t0\t0", "Gid": "0\t0\t0\t0", "Groups": "", "NoNewPrivs": "1",
			"CapInh": none, "CapPrm": netRaw, "CapEff": netRaw, "CapBnd": netRaw, "CapAmb": none,
		},
		lab.StackProxy: {
			"Uid": "65532\t65532\t65532\t65532", "Gid": "65532\t65532\t65532\t65532", "Groups": "", "NoNewPrivs": "1",
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		},
	} {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", l.Proc(name).Pid()))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("%s: no threads: %v", name, err)
		}
		for _, task := range tasks {
			text, err := os.ReadFile(task)
			if err != nil {
				continue // the thread has just ended
			}
			got := map[string]string{}
			for line := range strings.Lines(string(text)) {
				key, value, _ := strings.Cut(line, ":")
				got[key] = strings.TrimSpace(value)
			}
			maps.DeleteFunc(got, func(key, _ string) bool { _, ok := want[key]; return !ok })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, task, diff)
			}
		}
	}
}

// awaitUserdata asks Hegel for the machine's user-data until it comes.
func awaitUserdata(t *testing.T, l *lab.Lab, host string, m lab.Machine) {
	t.Helper()
	client := l.Client(host)
	client.Timeout = 2 * time.Second
	progress.Await(t, "the machine's user-data", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"http://192.0.2.2:50061/2009-04-04/user-data", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != http.StatusOK || string(body) != m.Userdata) {
			err = fmt.Errorf("status %s, %q", response.Status, body)
		}
		return err
	})
}

func testReplaced(t *testing.T, l *lab.Lab, host string, m lab.Machine) {
	if err := l.Replace(t.Context(), lab.Hegel, netip.MustParseAddr("10.244.0.42")); err != nil {
		t.Fatal(err)
	}
	awaitUserdata(t, l, host, m)
	if err := l.Replace(t.Context(), lab.Hegel, lab.HegelIP); err != nil {
		t.Fatal(err)
	}
	awaitUserdata(t, l, host, m)
}

// testWithoutDNS takes the resolver away for longer than its answers live: what was known stays known.
func testWithoutDNS(t *testing.T, l *lab.Lab, host string, m lab.Machine) {
	if err := l.Kill(lab.DNS); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	awaitUserdata(t, l, host, m)
	if err := l.Restart(t.Context(), lab.DNS); err != nil {
		t.Fatal(err)
	}
}

func testRestarts(t *testing.T, l *lab.Lab, host string, m lab.Machine) {
	for _, name := range []string{lab.StackProxy, lab.DHCPRelay} {
		if err := l.Stop(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A container's restart keeps the pod's namespace: broadcast-init finds its own listener.
	for _, name := range []string{lab.BroadcastInit, lab.DHCPRelay, lab.StackProxy} {
		if err := l.Restart(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	awaitUserdata(t, l, host, m)
	select {
	case err := <-l.Failed():
		t.Error(err)
	default:
	}
}

// testForward asks the pod's admin port from outside of the lab.
func testForward(t *testing.T, l *lab.Lab) {
	target := netip.AddrPortFrom(lab.PodIP, lab.ProxyAdminPort).String()
	taken, err := l.Forward(lab.RolePod, target, 0)
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(taken).Port()
	other, err := l.Forward(lab.RolePod, target, port)
	if err != nil {
		t.Fatal(err)
	}
	if other == taken {
		t.Errorf("two forwards listen on %s", taken)
	}
	for _, addr := range []string{taken, other} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: got %s", addr, response.Status)
		}
	}
}

// testExec runs a command of stack-proxy in the pod.
func testExec(t *testing.T, l *lab.Lab) {
	said, err := l.Exec(t.Context(), lab.StackProxy, "check")
	if err != nil || !strings.Contains(said, "smee-tftp") {
		t.Errorf("got %q, %v, want the table of routes", said, err)
	}
	if _, err := l.Exec(t.Context(), lab.StackProxy, "check", "-unknown"); err == nil {
		t.Error("a command that fails makes no error")
	}
	if _, err := l.Exec(t.Context(), lab.Smee); err == nil {
		t.Error("Smee is taken for a program of the pod")
	}
}
