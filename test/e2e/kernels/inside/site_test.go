package inside

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/first"
	"github.com/tinkerbell/stack/test/e2e/netboot"
)

// The addresses of a site. Machines are in 192.0.2.0/24.
const (
	podAddr, serverAddr   = "10.9.0.1", "10.9.0.10"
	podAddr6, serverAddr6 = "2001:db8:9::1", "2001:db8:9::10"
	linkAddr6             = "2001:db8:1::1" // of the machines' network
)

// holdVariable has the test binary be a process of a node.
const holdVariable = "KERNELS_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// site is a network of machines and a node whose interface nic0 is in it, with a pod and a DHCP server behind.
type site struct {
	lan, node, pod, servers *ns
	server                  *server
	log                     func() string // of dhcp-relay
}

// newSite makes a site: lan0 in the network of the machines is the far end of the node's nic0.
func newSite(t *testing.T) *site {
	t.Helper()
	s := newNode(t, newNS(t), newNS(t), podAddr, podAddr6)
	join(t, s.node, "nic0", s.lan, "lan0")
	return s
}

// newNode makes a node with a pod in a network of machines. Its interfaces there are the caller's.
func newNode(t *testing.T, lan, servers *ns, addr, addr6 string) *site {
	t.Helper()
	if os.Getenv(first.Guest) == "" {
		t.Skip("runs in the guests of test/e2e/kernels")
	}
	s := &site{lan: lan, node: newNS(t), pod: newNS(t), servers: servers}
	far := "to" + strings.ReplaceAll(addr, ".", "")
	join(t, s.pod, "eth0", servers, far)
	s.pod.raise(t, "eth0", addr+"/24", addr6+"/64")
	if addr == podAddr {
		servers.raise(t, far, serverAddr+"/24", serverAddr6+"/64")
		s.server = newServer(t, servers)
	}
	return s
}

func program(name string, env []string) *exec.Cmd {
	cmd := exec.Command(name)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// init runs broadcast-init in the pod and returns its exit status and its log.
func (s *site) init(t *testing.T, env ...string) (status int, lines []map[string]any) {
	t.Helper()
	cmd := program("broadcast-init", s.initEnv(t, env))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	s.pod.do(t, cmd.Start)
	_ = cmd.Wait() // the status says it
	for line := range strings.Lines(out.String()) {
		fields := map[string]any{}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("no line of a log: %s", line)
		}
		lines = append(lines, fields)
	}
	t.Logf("broadcast-init: exit %d\n%s", cmd.ProcessState.ExitCode(), out.String())
	return cmd.ProcessState.ExitCode(), lines
}

// initEnv is what broadcast-init is told: a process of the node, and what is usual here.
func (s *site) initEnv(t *testing.T, env []string) []string {
	t.Helper()
	hold := exec.Command("/proc/self/exe")
	hold.Env = append(os.Environ(), holdVariable+"=1")
	stdin, err := hold.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.node.do(t, hold.Start)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = hold.Wait()
	})
	return append([]string{
		"BROADCAST_INIT_HOST_PID=" + strconv.Itoa(hold.Process.Pid), "BROADCAST_INIT_HEAR=0s", "BROADCAST_INIT_WAIT=0s",
	}, env...)
}

// listen makes a listener of a kind, and starts dhcp-relay on it.
func (s *site) listen(t *testing.T, kind, parent string, env ...string) {
	t.Helper()
	if status, _ := s.init(t, "BROADCAST_INIT_KIND="+kind, "BROADCAST_INIT_PARENT="+parent); status != 0 {
		t.Fatalf("broadcast-init has status %d", status)
	}
	s.relay(t, env...)
}

// start starts a program in the pod. It ends with the test, and what it printed is shown where that failed.
func (s *site) start(t *testing.T, name string, env ...string) (log func() string) {
	t.Helper()
	file, err := os.CreateTemp("", name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := program(name, env)
	cmd.Stdout, cmd.Stderr = file, file
	s.pod.do(t, cmd.Start)
	log = func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Errorf("%s is gone before its end: %v", name, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", name, log())
		}
		_, _ = file.Close(), os.Remove(file.Name())
	})
	return log
}

// relay starts dhcp-relay and waits until it is ready.
func (s *site) relay(t *testing.T, env ...string) {
	t.Helper()
	s.log = s.start(t, "dhcp-relay", append([]string{
		"DHCP_RELAY_SERVERS=" + serverAddr, "DHCP_RELAY_DHCPV6_ENABLED=true", "DHCP_RELAY_DHCPV6_SERVERS=" + serverAddr6,
		"DHCP_RELAY_DHCPV6_LINK_ADDRESSES=macvlan0=" + linkAddr6,
	}, env...)...)
	succeeds(t, "dhcp-relay is ready", func() error { return s.ready(t) })
}

// ready is nil where dhcp-relay is ready; else it says why not.
func (s *site) ready(t *testing.T) error {
	t.Helper()
	status, text, err := s.get("/readyz")
	if err == nil && status != http.StatusOK {
		err = errors.New(text)
	}
	return err
}

// metric is the value of a metric of dhcp-relay with its labels, as Prometheus' text has it; 0 where it has none.
func (s *site) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, text, err := s.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return number
		}
	}
	return 0
}

func (s *site) get(path string) (status int, text string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.dial}}
	response, err := client.Get("http://127.0.0.1:9067" + path)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), errors.Join(err, response.Body.Close())
}

func (s *site) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = s.pod.try(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// patience is how long a machine asks for its lease, in an emulator.
const patience = time.Minute

// lease has a machine on an interface ask for an address by DHCPv4.
func (s *site) lease(t *testing.T, on string, broadcast bool) error {
	t.Helper()
	var client *netboot.DHCP
	s.lan.do(t, func() (err error) {
		client, err = netboot.OpenDHCP(on)
		return err
	})
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := client.Lease(ctx, netboot.Ask{Stage: netboot.PXE, Broadcast: broadcast})
	if err == nil && !netip.MustParsePrefix("192.0.2.0/24").Contains(got.Addr.Addr()) {
		err = fmt.Errorf("got address %s", got.Addr)
	}
	return err
}

// lease6 has a machine on an interface ask for an address by DHCPv6.
func (s *site) lease6(t *testing.T, on string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return s.lan.try(func() error {
		_, err := netboot.Lease6(ctx, on, func(string) {})
		return err
	})
}
