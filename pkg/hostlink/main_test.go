package hostlink

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/internal/nstest"
)

// holdVariable makes the test binary a process that does nothing until its standard input ends: the node's
// process 1 of the tests.
const holdVariable = "HOSTLINK_TEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// node is a node with a provisioning interface prov0 (its peer lan0 is the machine's end), and a pod.
type node struct {
	host, lan, pod *nstest.NS
	pid            int
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{host: nstest.New(t), lan: nstest.New(t), pod: nstest.New(t)}
	nstest.Veth(t, n.host, "prov0", n.lan, "lan0")
	n.pid = hold(t, n.host)
	return n
}

// hold starts a process inside a namespace and returns its id.
func hold(t *testing.T, ns *nstest.NS) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), holdVariable+"=1", "GORACE=atexit_sleep_ms=0")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ns.Do(t, cmd.Start)
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// open is [Open] from inside the pod.
func (n *node) open(t *testing.T) *Host {
	t.Helper()
	var h *Host
	n.pod.Do(t, func() (err error) {
		h, err = Open(n.pid)
		return err
	})
	t.Cleanup(h.Close)
	return h
}

// add makes a link in a namespace, up.
func add(t *testing.T, ns *nstest.NS, link netlink.Link) {
	t.Helper()
	if err := ns.Links().LinkAdd(link); err != nil {
		t.Fatalf("failed to make %s %s: %v", link.Type(), link.Attrs().Name, err)
	}
	if err := ns.Links().LinkSetUp(link); err != nil {
		t.Fatalf("failed to bring %s up: %v", link.Attrs().Name, err)
	}
}

// names lists the links of a namespace.
func names(t *testing.T, ns *nstest.NS) []string {
	t.Helper()
	links, err := ns.Links().LinkList()
	if err != nil {
		t.Fatal(err)
	}
	list := make([]string, len(links))
	for i, link := range links {
		list[i] = link.Attrs().Name
	}
	return list
}
