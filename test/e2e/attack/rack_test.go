package attack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/process"
)

const machines = 1000

// site starts the backends and writes what the proxy reads.
func site(t *testing.T) (dir string) {
	t.Helper()
	if forbidden != nil {
		t.Skip(forbidden)
	}
	if testing.Short() {
		t.Skip("takes a minute")
	}
	dir = t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	stop, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dir
}

// A rack of a thousand machines loads files at one moment, within the chart's limit of memory, three times in a row: none
// is reset. Nginx in the same container is the peer. Loopback's packets are as large as it makes them, and as Ethernet
// does: the former fill sockets' buffers at once.
func TestRackLoadsFilesAtOneMoment(t *testing.T) {
	proxy, dir := proxyProgram(t), site(t)
	ours := func(t *testing.T, c *Container, limit int64) *process.Process { return start(t, c, proxy, dir, limit) }
	nginx := func(t *testing.T, c *Container, _ int64) *process.Process { return startNginx(t, c, dir) }
	for name, c := range map[string]struct {
		mtu, port, times int
		rate             int64
		start            func(*testing.T, *Container, int64) *process.Process
	}{
		"full speed":                     {mtu: 65536, port: portFiles, times: 3, start: ours},
		"full speed in Ethernet packets": {mtu: 1500, port: portFiles, times: 1, start: ours},
		"10 Mbit per second each":        {mtu: 65536, port: portFiles, times: 1, rate: 10 << 20 / 8, start: ours},
		"full speed from nginx":          {mtu: 65536, port: portNginx, times: 1, start: nginx},
	} {
		t.Run(name, func(t *testing.T) {
			packets(t, c.mtu)
			limit := limit(t)
			container := contain(t, limit)
			p := c.start(t, container, limit)
			defer p.Kill()
			container.Watch()
			rack := Rack{Machines: machines, Address: address(c.port), Path: "/image", Size: image, Rate: c.rate}
			for range c.times {
				loads := rack.Load(t.Context())
				t.Log(loads)
				if loads.Whole != machines {
					t.Errorf("of %d machines %d have their file\n%s", machines, loads.Whole, p.Said())
				}
			}
			survived(t, container, p, limit, c.port == portNginx)
		})
	}
}

// Attackers that read nothing hold all the room when the rack comes: the attackers' connections go, and none of the
// rack's.
func TestRackLoadsFilesBesideAttackers(t *testing.T) {
	proxy, dir := proxyProgram(t), site(t)
	attack := slices.IndexFunc(Attacks(), func(a Attack) bool { return a.Name == "slow readers of files" })
	limit := limit(t)
	container := contain(t, limit)
	p := start(t, container, proxy, dir, limit)
	defer p.Kill()
	container.Watch()
	full, report := start20000(t, attack)
	for begun := time.Now(); !full() && time.Since(begun) < 2*duration; time.Sleep(100 * time.Millisecond) {
	}
	loads := Rack{Machines: machines, Address: address(portFiles), Path: "/kernel", Size: int64(len(content))}.Load(t.Context())
	t.Log(loads, report())
	if loads.Whole != machines {
		t.Errorf("of %d machines %d have their file\n%s", machines, loads.Whole, p.Said())
	}
	survived(t, container, p, limit, false)
}

// survived fails the test where the container has used more than its limit, or has been killed.
func survived(t *testing.T, c *Container, p *process.Process, limit int64, beyond bool) {
	t.Helper()
	parts := c.Parts()
	peak, kills, err := c.Peak()
	t.Logf("peak %d of %d MiB (%s at the end)", peak>>20, limit>>20, parts)
	if err != nil || kills > 0 || ended(p) || peak >= limit && !beyond {
		t.Errorf("the peak is %d of %d MiB, the kernel killed %d: %v", peak>>20, limit>>20, kills, err)
	}
}

// packets sets how long packets on the loopback are, for a test.
func packets(t *testing.T, mtu int) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	was := lo.Attrs().MTU
	if err := netlink.LinkSetMTU(lo, mtu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkSetMTU(lo, was) })
}

// contain makes a container for a test.
func contain(t *testing.T, limit int64) *Container {
	t.Helper()
	container, err := NewContainer("attack", limit)
	if errors.Is(err, ErrNoMemory) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := container.Remove(); err != nil {
			t.Error(err)
		}
	})
	return container
}

// portNginx is where nginx serves the same files.
const portNginx = 8081

const nginxConf = `daemon off; worker_processes 2; pid %[1]s/nginx.pid; error_log stderr error; user root;
events { worker_connections 4096; }
http { access_log off; sendfile on; server { listen %[2]d backlog=4096; root %[1]s/files; } }
`

func startNginx(t *testing.T, c *Container, dir string) *process.Process {
	t.Helper()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("needs nginx")
	}
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, fmt.Appendf(nil, nginxConf, dir, portNginx), 0o600); err != nil {
		t.Fatal(err)
	}
	args := c.Command(nginx + " -c " + path + " -e stderr")
	p, err := process.Start(t.Context(), exec.Command(args[0], args[1:]...), process.Options{
		Name: "nginx", Ready: process.Listens(address(portNginx)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
