package web

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// portsOf says that this process is the one in a network namespace of its own.
const portsOf = "STACK_TEST_OWN_NAMESPACE"

// ownNamespace runs the test again, by a process in a network namespace of its own, since loops and goroutines open
// connections on any thread. It is true in that process. It needs root or a user namespace.
func ownNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(portsOf) != "" {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	again.Env = append(os.Environ(), portsOf+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := again.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root or a user namespace to make a network namespace (make test as root runs it)")
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// fewPorts leaves 300 ports for connections. Listeners that choose a port are opened before: connections may have all.
func fewPorts(t *testing.T) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("50000 50299"), 0); err != nil {
		t.Fatal(err)
	}
}

// front is a front and its pool.
type front struct {
	running
	pool *endpoint.Pool
}

// frontsWithFewPorts are a front for each way, with backends of their own.
func frontsWithFewPorts(t *testing.T, handle http.HandlerFunc, of ...string) map[string]front {
	t.Helper()
	fronts := map[string]front{}
	for _, way := range of {
		p := pool(backend(t, handle))
		fronts[way] = front{start(t, Settings{Pool: p}), p}
	}
	fewPorts(t)
	return fronts
}

// askFrom makes one request from an address of its own, as a machine does.
func askFrom(t *testing.T, from netip.Addr, url, request string) (code int) {
	t.Helper()
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
		Control: func(_, _ string, c syscall.RawConn) error { // else its port is nobody else's
			return c.Control(func(fd uintptr) {
				if err := unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
					t.Error(err)
				}
			})
		},
	}
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer conn.Close()
	if _, err = io.WriteString(conn, request); err != nil {
		t.Error(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// 3,000 clients are served through 300 ports towards an endpoint, as by nginx and HAProxy.
func TestFewLocalPorts(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }
	for way, r := range frontsWithFewPorts(t, ok, "plain", "pool") { // http.Transport ends its connections by FIN
		p, request := r.pool, ways[way]
		codes, from := map[int]int{}, netip.MustParseAddr("127.1.0.1")
		for range 3000 {
			codes[askFrom(t, from, r.url, request)]++
			from = from.Next()
		}
		if codes[http.StatusOK] != 3000 || p.Status()[0].Failures != 0 {
			t.Errorf("%s: got %v, and %+v", way, codes, p.Status())
		}
	}
}

// A client that finds all ports taken is told so, and the endpoint is not blamed.
func TestNoLocalPort(t *testing.T) {
	if !ownNamespace(t) {
		return
	}
	var release atomic.Pointer[chan struct{}]
	wait := func(w http.ResponseWriter, _ *http.Request) {
		<-*release.Load()
		_, _ = io.WriteString(w, "ok")
	}
	for way, r := range frontsWithFewPorts(t, wait, slices.Sorted(maps.Keys(ways))...) {
		p, request, released := r.pool, ways[way], make(chan struct{})
		release.Store(&released)
		var clients sync.WaitGroup
		var mu sync.Mutex
		codes, from := map[int]int{}, netip.MustParseAddr("127.1.0.1")
		refused := make(chan struct{}, 310)
		for range 310 {
			from = from.Next()
			at := from
			clients.Go(func() {
				code := askFrom(t, at, r.url, request)
				if code == http.StatusServiceUnavailable {
					refused <- struct{}{}
				}
				mu.Lock()
				defer mu.Unlock()
				codes[code]++
			})
		}
		select {
		case <-refused:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: nobody was refused", way)
		}
		close(released)
		clients.Wait()
		if codes[http.StatusOK]+codes[http.StatusServiceUnavailable] != 310 || p.Status()[0].Failures != 0 {
			t.Errorf("%s: got %v, and %+v", way, codes, p.Status())
		}
	}
}
