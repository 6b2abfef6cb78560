package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/network"
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
	text, err := os.ReadFile("../../../charts/stack/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, proxy, _ := strings.Cut(string(text), "\nproxy:\n")
	found := regexp.MustCompile(`(?m)^    limits: \{memory: (\d+)Mi\}$`).FindStringSubmatch(proxy)
	if found == nil {
		t.Fatal("the chart has no limit of memory for stack-proxy")
	}
	mebibytes, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mebibytes << 20
}

// program builds the proxy, or is the one that the environment names.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("STACK_ATTACKED"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "stack-proxy")
	build := exec.Command("go", "build", "-o", path, "./cmd/stack-proxy")
	build.Dir = "../../.."
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("failed to build the proxy: %v: %s", err, said)
	}
	return path
}

// Whatever clients do slowly, 20,000 connections of 64 addresses at a time, the pod stays below the chart's limit, and
// a machine boots meanwhile, each time.
func TestF2SlowAttacks(t *testing.T) {
	if forbidden != nil {
		t.Skip(forbidden)
	}
	if testing.Short() {
		t.Skip("takes a minute and a half")
	}
	proxy, dir, limit := program(t), t.TempDir(), limit(t)
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
	defer p.kill()
	machine, err := NewMachine()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	if err := machine.Boot(t.Context()); err != nil {
		t.Fatalf("before the attack: %v\n%s", err, p.said())
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
	if err != nil || kills > 0 || peak >= limit || p.ended() {
		t.Errorf("the peak is %d of %d MiB, the kernel killed %d: %v", peak>>20, limit>>20, kills, err)
	}
	t.Logf("peak %d of %d MiB (%s), %d boots, slowest %.2f s", peak>>20, limit>>20, parts, boots, slowest.Seconds())
	if t.Failed() {
		t.Logf("the proxy said:\n%s", p.said())
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
		cmd *exec.Cmd
		in  io.Closer
		out output
	}
	parts := make([]*part, attackers)
	for i := range parts {
		p := &part{cmd: exec.Command(self)}
		p.cmd.Env = append(os.Environ(), setting(attack, i*connections/attackers, connections/attackers))
		p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if p.in, err = p.cmd.StdinPipe(); err == nil {
			err = p.cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		parts[i] = p
	}
	full = func() bool {
		return !slices.ContainsFunc(parts, func(p *part) bool { return !strings.Contains(p.out.text(), tried) })
	}
	return full, sync.OnceValue(func() string {
		var said []string
		for _, p := range parts {
			_ = p.in.Close()
		}
		for _, p := range parts {
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("an attacker failed: %v", err)
			}
			said = append(said, strings.ReplaceAll(strings.TrimSpace(p.out.text()), tried+"\n", ""))
		}
		return "attackers: " + strings.Join(said, "; ")
	})
}

// Idle connections of one route, of one address and of many, leave descriptors for the other routes and the admin port.
func TestF9IdleConnectionsLeaveDescriptors(t *testing.T) {
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
	p := start(t, nil, "sh -c 'ulimit -n 256; exec "+program(t)+"'", dir, 256<<20)
	defer p.kill()
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
		t.Logf("the proxy said:\n%s", p.said())
	}
}

// output is what a process says.
type output struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.Write(b)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}

// process is the proxy in its container.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

func start(t *testing.T, c *Container, program, dir string, limit int64) *process {
	t.Helper()
	p := &process{log: filepath.Join(t.TempDir(), "log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := c.Command(program)
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+dir+"/routes.yaml", "STACK_PROXY_DRAIN_GRACE=0s",
		"STACK_PROXY_DRAIN_TIMEOUT=1s",
		// As the chart has it.
		fmt.Sprintf("GOMEMLIMIT=%dB", limit/10*9))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	for !p.ended() {
		response, err := http.Get("http://" + address(portAdmin) + "/readyz")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return p
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("the proxy did not start:\n%s", p.said())
	return nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) said() string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-3000):])
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
