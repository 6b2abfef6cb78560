package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
)

var forbidden error

func TestMain(m *testing.M) {
	if part := os.Getenv(Part); part != "" {
		if err := RunPart(part); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	done, err := network.Enter(context.Background())
	if !done && err == nil {
		err = ethernet()
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case errors.Is(err, os.ErrPermission):
		forbidden = err
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case done:
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ethernet has the loopback cut packets as machines' and pods' interfaces do: buffers are a matter of packets, too.
func ethernet() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(lo, 1500)
}

// slow waits until each attacker has tried all of its connections, and goes on for the duration; else they have the
// duration only, which is enough for most attacks on a quiet machine.
var slow = os.Getenv("STACK_SLOW") != ""

const (
	patience    = 5 * time.Minute // until all connections have been tried
	connections = 20_000
	attackers   = 4 // processes, each with its own descriptors
	duration    = 4 * time.Second
)

// limit is the chart's of the container stack-proxy, in bytes.
func limit(t *testing.T) int64 {
	t.Helper()
	limit, err := ChartLimit("proxy")
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// proxyProgram is the proxy, built, or the one that the environment names.
func proxyProgram(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("STACK_ATTACKED"); path != "" {
		return path
	}
	return program.ForTest(t, "stack-proxy")
}

// Whatever clients do slowly, 20,000 connections of 64 addresses at a time, the pod stays below the chart's limit, and
// a machine boots meanwhile, each time.
func TestMachineBootsBesideSlowAttacks(t *testing.T) {
	if forbidden != nil {
		t.Skip(forbidden)
	}
	if testing.Short() {
		t.Skip("takes a minute and a half")
	}
	proxy, dir, limit := proxyProgram(t), t.TempDir(), limit(t)
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	stop, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for i, a := range Attacks() {
		t.Run(a.Name, func(t *testing.T) { attacked(t, i, proxy, dir, limit) })
	}
}

func attacked(t *testing.T, attack int, proxy, dir string, limit int64) {
	container, err := NewContainer("attack", limit)
	if errors.Is(err, ErrNoMemory) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := container.Remove(); err != nil {
			t.Error(err)
		}
	}()
	p := start(t, container, proxy, dir, limit)
	defer p.Kill()
	machine, err := NewMachine()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	if err := machine.Boot(t.Context()); err != nil {
		t.Fatalf("before the attack: %v\n%s", err, p.Said())
	}
	container.Watch()
	full, report := start20000(t, attack)
	boots, slowest := 0, time.Duration(0)
	boot := func() {
		began := time.Now()
		if err := machine.Boot(t.Context()); err != nil {
			t.Errorf("boot %d, with %s:\n%v", boots, container.Parts(), err)
		}
		slowest = max(slowest, time.Since(began))
		boots++
	}
	if slow {
		for begun := time.Now(); !full() && time.Since(begun) < patience; {
			boot()
		}
		if !full() {
			t.Error("not all connections were tried")
		}
	}
	for begun := time.Now(); time.Since(begun) < duration; {
		boot()
	}
	parts := container.Parts()
	t.Log(report())
	peak, kills, err := container.Peak()
	if err != nil || kills > 0 || peak >= limit || ended(p) {
		t.Errorf("the peak is %d of %d MiB, the kernel killed %d: %v", peak>>20, limit>>20, kills, err)
	}
	t.Logf("peak %d of %d MiB (%s), %d boots, slowest %.2f s", peak>>20, limit>>20, parts, boots, slowest.Seconds())
	if t.Failed() {
		t.Logf("the proxy said:\n%s", p.Said())
	}
}

// start20000 starts the attackers. Full is whether all connections have been tried; report ends them, and is how it
// went.
func start20000(t *testing.T, attack int) (full func() bool, report func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	type part struct {
		*process.Process
		in io.Closer
	}
	parts := make([]part, attackers)
	for i := range parts {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), setting(attack, i*connections/attackers, connections/attackers))
		cmd.Stderr = os.Stderr
		if parts[i].in, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if parts[i].Process, err = process.Start(t.Context(), cmd, process.Options{Name: "attacker"}); err != nil {
			t.Fatal(err)
		}
	}
	full = func() bool {
		return !slices.ContainsFunc(parts, func(p part) bool { return !strings.Contains(p.Said(), tried) })
	}
	return full, sync.OnceValue(func() string {
		var said []string
		for _, p := range parts {
			_ = p.in.Close()
		}
		for _, p := range parts {
			if err := p.Wait(); err != nil {
				t.Errorf("an attacker failed: %v", err)
			}
			said = append(said, strings.ReplaceAll(strings.TrimSpace(p.Said()), tried+"\n", ""))
		}
		return "attackers: " + strings.Join(said, "; ")
	})
}

// Idle connections of one route, of one address and of many, leave descriptors for the other routes and the admin port.
func TestIdleConnectionsLeaveDescriptors(t *testing.T) {
	if forbidden != nil {
		t.Skip(forbidden)
	}
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	stop, err := serve()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	p := start(t, nil, "sh -c 'ulimit -n 256; exec "+proxyProgram(t)+"'", dir, 256<<20)
	defer p.Kill()
	for _, port := range []int{portHTTP, portTCP, portAdmin} {
		for i := range 400 {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: source(i % (1 + port%Sources))}, Timeout: 10 * time.Second}
			c, err := dialer.Dial("tcp", address(port))
			if err == nil {
				defer c.Close()
			}
		}
		machine, err := NewMachine()
		if err != nil {
			t.Fatal(err)
		}
		defer machine.Close()
		for range 3 {
			if err := machine.Boot(t.Context()); err != nil {
				t.Errorf("with 400 idle connections of port %d:\n%v", port, err)
			}
		}
	}
	if t.Failed() {
		t.Logf("the proxy said:\n%s", p.Said())
	}
}

// start starts the proxy in its container.
func start(t *testing.T, c *Container, program, dir string, limit int64) *process.Process {
	t.Helper()
	args := c.Command(program)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+dir+"/routes.yaml", "STACK_PROXY_DRAIN_GRACE=0s",
		"STACK_PROXY_DRAIN_TIMEOUT=1s",
		GoMemory(limit))
	p, err := process.Start(t.Context(), cmd, process.Options{
		Name: "stack-proxy", Ready: process.Answers("http://" + address(portAdmin) + "/readyz"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ended(p *process.Process) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}
