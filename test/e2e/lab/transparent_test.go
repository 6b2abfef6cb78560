package lab_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestRaspberryPiBootsThroughThePod runs our program with what the chart gives it for `tftp.source: transparent`, in
// front of a server that has a directory for each machine's address: the machine asks the service IP, the node
// translates it, and the server's answers come to the pod by the commands of docs/tftp.md.
func TestRaspberryPiBootsThroughThePod(t *testing.T) {
	programs := map[string]string{}
	for _, name := range []string{"dnsmasq", "curl", "ip"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skipf("needs %s", name)
		}
		programs[name] = path
	}
	m := machine(t)
	const serial = "a1b2c3d4"
	files := map[string]string{"config.txt": "arm_64bit=1\n", "start4.elf": strings.Repeat("start4 ", 100_000)}
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, m.IP.String(), serial, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	routes := filepath.Join(dir, "routes.yaml")
	write := func(source string) {
		t.Helper()
		text := "routes:\n- {name: pxe, protocol: tftp, listen: [69], backends: [" + lab.SmeeIP.String() +
			":69], tftp: {source: " + source + "}}\n"
		if err := os.WriteFile(routes, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("transparent")
	l := lab.ForTest(t, lab.Options{
		Machines: []lab.Machine{m},
		Without:  []string{lab.Smee, lab.Hegel, lab.BroadcastInit, lab.DHCPRelay, lab.RA},
		Env: map[string][]string{lab.StackProxy: {
			"STACK_PROXY_ROUTES_FILE=/etc/stack-proxy/routes.yaml", "STACK_PROXY_CATCH_ANSWERS=true",
			"STACK_PROXY_DRAIN_TIMEOUT=1s",
		}},
		Security: map[string]*lab.Security{lab.StackProxy: {
			UID: 0, Capabilities: []int{unix.CAP_NET_ADMIN}, Mounts: map[string]string{"/etc/stack-proxy": dir},
		}},
	})
	host, err := l.AddHost("m1", m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Configure(host, netip.PrefixFrom(m.IP, lab.LAN.Bits()), lab.GatewayIP); err != nil {
		t.Fatal(err)
	}
	run := func(role string, args ...string) (string, error) {
		var out []byte
		err := l.Do(role, func() (err error) {
			out, err = exec.CommandContext(t.Context(), programs[args[0]], args[1:]...).CombinedOutput()
			return err
		})
		return string(out), err
	}
	if _, err := l.Start(lab.Process{Name: "dnsmasq", Role: lab.RoleSmee, Path: programs["dnsmasq"], Args: []string{
		"--no-daemon", "--conf-file=/dev/null", "--port=0", "--enable-tftp", "--tftp-single-port", "--tftp-root=" + dir,
		"--tftp-unique-root=ip", "--user=root", "--pid-file=",
	}}); err != nil {
		t.Fatal(err)
	}
	get := func(name string) (string, error) {
		return run(host, "curl", "-sS", "-m", "20", "--tftp-blksize", "1024", "tftp://192.0.2.2/"+serial+"/"+name)
	}
	// Without a way for the answers there is none.
	if got, err := run(host, "curl", "-sS", "-m", "1", "tftp://192.0.2.2/"+serial+"/config.txt"); err == nil {
		t.Fatalf("got %q past the way that is to be made", got)
	}
	for _, line := range []string{
		"ip route add default via " + lab.PodIP.String() + " table 6969",
		"ip rule add pref 6969 ipproto udp sport 69 lookup 6969",
	} {
		if out, err := run(lab.RoleSmee, strings.Fields(line)...); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	for name, want := range files {
		if got, err := get(name); err != nil || got != want {
			t.Errorf("%s: got %d bytes of %d, %v", name, len(got), len(want), err)
		}
	}
	// A reload opens the route anew: hidden, the machine's files are not found; visible again, they are.
	for _, source := range []string{"proxy", "transparent"} {
		write(source)
		progress.Await(t, "the reload with source "+source, func() error {
			got, err := get("config.txt")
			if found := err == nil && got == files["config.txt"]; found == (source == "transparent") {
				return nil
			}
			return fmt.Errorf("got %q, %w", got, err)
		})
	}
}
