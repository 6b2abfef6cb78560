package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/internal/watch"
	"github.com/tinkerbell/stack/pkg/edge/host"
	"github.com/tinkerbell/stack/pkg/route"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// free is a port where nobody listens, for the address 127.0.0.1: below those that the kernel gives to connections,
// which would take it until it is opened (net.ipv4.ip_local_port_range).
func free(t *testing.T) route.Listen {
	t.Helper()
	for {
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(10000+rand.IntN(22000)))
		if listener, err := net.Listen("tcp", at.String()); err == nil {
			defer listener.Close()
			return route.Listen(at)
		}
	}
}

// hello is a backend that answers every connection with its name, by TCP or HTTP.
func hello(t *testing.T, name string) route.Backend {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name)
	}))
	t.Cleanup(server.Close)
	return backendAt(server.Listener.Addr())
}

func backendAt(addr net.Addr) route.Backend {
	a := netip.MustParseAddrPort(addr.String())
	return route.Backend{Host: a.Addr().String(), Port: a.Port()}
}

func row(name string, p route.Protocol, l route.Listen, backends ...route.Backend) route.Route {
	return route.Route{
		Name: name, Protocol: p, Listen: []route.Listen{l}, Backends: backends,
		Timeouts: route.Timeouts{Drain: setting.Duration(5 * time.Second)},
	}
}

func table(routes ...route.Route) route.Table { return route.Table{Routes: routes} }

type testProxy struct {
	*Proxy
	registry *prometheus.Registry
	stop     func() error
}

func start(t *testing.T, o Options) testProxy {
	t.Helper()
	registry := prometheus.NewRegistry()
	o.Registry = registry
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	for running := false; !running; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		running = p.life != nil
		p.mu.Unlock()
	}
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return testProxy{p, registry, stop}
}

// ask makes one request on a connection of its own.
func ask(l route.Listen) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Get("http://" + l.AddrPort().String() + "/")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func mustAsk(t *testing.T, l route.Listen, want string) {
	t.Helper()
	if got, err := ask(l); got != want || err != nil {
		t.Errorf("%s answered %q, %v; want %q", l, got, err, want)
	}
}

func (r testProxy) apply(t *testing.T, next route.Table) {
	t.Helper()
	if err := r.Apply(t.Context(), next); err != nil {
		t.Fatal(err)
	}
}

func TestApply(t *testing.T) {
	a, b := hello(t, "a"), hello(t, "b")
	one, two, three := free(t), free(t), free(t)
	r := start(t, Options{Table: table(row("one", route.HTTP, one, a), row("two", route.TCP, two, a))})
	mustAsk(t, one, "a")
	mustAsk(t, two, "a")

	r.apply(t, table(row("one", route.HTTP, one, b), row("three", route.TCP, three, b)))
	mustAsk(t, one, "b")
	mustAsk(t, three, "b")
	testwait.Until(t, "a route that is gone takes no connections", func() bool {
		_, err := ask(two)
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	r.apply(t, table(row("one", route.TCP, one, a))) // another protocol at the same address
	mustAsk(t, one, "a")
}

// A connection through a route that changes, and one through a route that does not, both live on.
func TestConnectionsSurviveReload(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	same, changed := free(t), free(t)
	to := backendAt(echo.Addr())
	r := start(t, Options{Table: table(row("same", route.TCP, same, to), row("changed", route.TCP, changed, to))})
	var conns []net.Conn
	for _, l := range []route.Listen{same, changed} {
		conn, err := net.Dial("tcp", l.AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	talk := func() {
		t.Helper()
		for i, conn := range conns {
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = conn.Write([]byte("x"))
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Errorf("connection %d broke: %v", i, err)
			}
		}
	}
	talk()
	next := row("changed", route.TCP, changed, hello(t, "other"))
	next.Limits.Connections = 10
	r.apply(t, table(row("same", route.TCP, same, to), next))
	talk()
	mustAsk(t, changed, "other")
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// A changed datagram route keeps its socket.
func TestDatagramRouteKeepsSocket(t *testing.T) {
	l, to := free(t), route.Backend{Host: "127.0.0.1", Port: 9}
	for _, protocol := range []route.Protocol{route.TFTP, route.UDP, route.Syslog} {
		before := row("r", protocol, l, to)
		r := start(t, Options{Table: table(before)})
		opened := r.fronts[before.Address(l)]
		after := before
		after.Backends = []route.Backend{{Host: "127.0.0.1", Port: 10}}
		if protocol != route.Syslog {
			after.Timeouts.Idle = setting.Duration(time.Minute)
		}
		r.apply(t, table(after))
		if r.fronts[before.Address(l)] != opened {
			t.Errorf("%s: another socket, for a change that needs none", protocol)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	}
}

// A table that cannot be put in force, because of a taken port, changes nothing.
func TestFailedApplyChangesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a, b := hello(t, "a"), hello(t, "b")
	one, extra := free(t), free(t)
	r := start(t, Options{Table: table(row("one", route.HTTP, one, a))})
	err = r.Apply(t.Context(), table(
		row("one", route.HTTP, one, b), row("extra", route.TCP, extra, b),
		row("taken", route.TCP, route.Listen(taken.Addr().(*net.TCPAddr).AddrPort()), b)))
	if err == nil || !strings.Contains(err.Error(), "route taken: port") {
		t.Errorf("got %v", err)
	}
	mustAsk(t, one, "a")
	if _, err := ask(extra); err == nil {
		t.Error("a route of the refused table is open")
	}
	if _, err := New(Options{Table: table(
		row("x", route.TCP, route.Listen(taken.Addr().(*net.TCPAddr).AddrPort()), a),
		row("y", route.HTTP, route.Listen(taken.Addr().(*net.TCPAddr).AddrPort()), a))}); err == nil ||
		!strings.Contains(err.Error(), "route x") || !strings.Contains(err.Error(), "route y") {
		t.Errorf("New() = %v, want both routes named", err)
	}
}

// Endpoints are replaced one by one, reload after reload, under load: not one connection fails. The full measure,
// 5,000 reloads, is taken when STACK_SLOW is set.
func TestReloadsUnderLoad(t *testing.T) {
	reloads := 300
	if os.Getenv("STACK_SLOW") != "" {
		reloads = 5000
	}
	backends := []route.Backend{hello(t, "a"), hello(t, "b"), hello(t, "c")}
	web, stream := free(t), free(t)
	build := func(i int) route.Table {
		w := row("web", route.HTTP, web, backends[i%3], backends[(i+1)%3])
		w.Limits.Connections = 1000 + i%7
		s := row("stream", route.TCP, stream, backends[i%3], backends[(i+1)%3])
		if i%11 == 0 {
			w.Timeouts.Idle = setting.Duration(time.Minute) // needs another net/http server on the same socket
		}
		return table(w, s)
	}
	r := start(t, Options{Table: build(0)})
	stop := make(chan struct{})
	var asked atomic.Int64
	var load sync.WaitGroup
	for _, l := range []route.Listen{web, stream, web, stream} {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got, err := ask(l); err != nil || len(got) != 1 {
					t.Errorf("got %q, %v", got, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	for i := range reloads {
		r.apply(t, build(i))
	}
	close(stop)
	load.Wait()
	t.Logf("%d reloads, %d connections", reloads, asked.Load())
}

func TestReadyNamesRoute(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "artifacts")
	files := route.Route{
		Name: "files", Protocol: route.Files, Listen: []route.Listen{free(t)},
		Files: route.FilesOptions{Directory: directory},
	}
	late := row("late", route.TCP, free(t), route.Backend{Host: "nowhere.invalid.", Port: 1})
	optional := row("optional", route.TCP, free(t), route.Backend{Host: "nowhere.invalid.", Port: 1})
	optional.Optional = true
	r := start(t, Options{Table: table(files, late, optional)})
	err := r.Ready()
	if err == nil || !strings.Contains(err.Error(), "route files: ") ||
		!strings.Contains(err.Error(), "route late: backend nowhere.invalid.:1: ") ||
		strings.Contains(err.Error(), "optional") {
		t.Errorf("Ready() = %v", err)
	}
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	r.apply(t, table(files, optional))
	if err := r.Ready(); err != nil {
		t.Errorf("Ready() = %v", err)
	}
}

// Routes of one port stand for themselves: what one lacks is not said of the other.
func TestReadinessOfASharedPort(t *testing.T) {
	l := free(t)
	names := func(name string, optional bool, r route.Route) route.Route {
		r.Hosts, r.Optional = host.Hosts{name}, optional
		return r
	}
	missing := route.Route{
		Name: "missing", Protocol: route.Files, Listen: []route.Listen{l},
		Files: route.FilesOptions{Directory: filepath.Join(t.TempDir(), "nowhere")},
	}
	good := row("good", route.HTTP, l, hello(t, "x"))
	r := start(t, Options{Table: table(names("a.example", false, good), names("b.example", true, missing))})
	if err := r.Ready(); err != nil {
		t.Errorf("with a missing part that is optional, Ready() = %v", err)
	}
	want := map[string]bool{"good": true, "missing": false}
	for _, s := range r.Status() {
		if s.Ready != want[s.Route.Name] {
			t.Errorf("route %s: ready is %t: %s", s.Route.Name, s.Ready, s.Reason)
		}
	}
	r.apply(t, table(names("a.example", true, good), names("b.example", false, missing)))
	if err := r.Ready(); err == nil || !strings.HasPrefix(err.Error(), "route missing: ") {
		t.Errorf("with a missing part that is not, Ready() = %v", err)
	}
}

func TestLoopIsRefused(t *testing.T) {
	l := free(t)
	public := netip.MustParseAddr("203.0.113.9")
	self := route.Backend{Host: "127.0.0.1", Port: l.AddrPort().Port()}
	outer := route.Backend{Host: public.String(), Port: l.AddrPort().Port()}
	r := start(t, Options{
		Table:     table(row("a", route.TCP, l, self), row("b", route.TCP, free(t), outer)),
		Addresses: []netip.Addr{public},
	})
	// Two routes that lead to each other go round as well.
	there, back := free(t), free(t)
	leads := func(name string, at, to route.Listen) route.Route {
		return row(name, route.Syslog, at, route.Backend{Host: to.AddrPort().Addr().String(), Port: to.AddrPort().Port()})
	}
	r.apply(t, table(row("a", route.TCP, l, self), row("b", route.TCP, free(t), outer), leads("there", there, back),
		leads("back", back, there)))
	err := r.Ready()
	for _, name := range []string{"route a: ", "route b: ", "route there: ", "route back: "} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "the proxy itself") {
			t.Errorf("Ready() = %v, want %s", err, name)
		}
	}
}

// A reload that only adds a route can make a loop of one that stays, and the next one can end it.
func TestLoopByReload(t *testing.T) {
	later := free(t)
	leads := row("leads", route.TCP, free(t), route.Backend{Host: "127.0.0.1", Port: later.AddrPort().Port()})
	r := start(t, Options{Table: table(leads)})
	if err := r.Ready(); err != nil {
		t.Fatal(err)
	}
	r.apply(t, table(leads, row("later", route.TCP, later, hello(t, "x"))))
	if err := r.Ready(); err == nil || !strings.Contains(err.Error(), "route leads: ") ||
		!strings.Contains(err.Error(), "the proxy itself") {
		t.Errorf("Ready() = %v, want a loop", err)
	}
	r.apply(t, table(leads))
	if err := r.Ready(); err != nil {
		t.Errorf("without the loop, Ready() = %v", err)
	}
}

func TestReload(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "routes.yaml")
	write := func(text string) {
		t.Helper()
		// As a ConfigMap and editors do it: a new file takes the name.
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	l, a, b := free(t), hello(t, "a"), hello(t, "b")
	text := func(b route.Backend) string {
		return fmt.Sprintf("routes:\n- {name: r, protocol: http, listen: %q, backends: %q}\n", l, b)
	}
	write(text(a))
	load := func() (route.Table, error) {
		return route.Load(path, route.Defaults{Drain: setting.Duration(time.Second)})
	}
	requests := make(chan os.Signal, 1)
	file := watch.New(path, requests)
	first, err := load()
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, Options{Table: first})
	reloader := &watch.Task{Files: file, Reload: func(ctx context.Context) { r.Reload(ctx, load) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- reloader.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	mustAsk(t, l, "a")
	write(text(b))
	testwait.Until(t, "the new backend", func() bool { got, _ := ask(l); return got == "b" })

	write("routes: [{name: r}]\n")
	testwait.Until(t, "the failure is counted", func() bool {
		return testutil.ToFloat64(r.metrics.reloads[1]) > 0
	})
	if good := testutil.ToFloat64(r.metrics.reloadGood); good != 0 {
		t.Errorf("config_last_reload_successful is %v after a bad file", good)
	}
	mustAsk(t, l, "b")

	requests <- syscall.SIGHUP
	testwait.Until(t, "a second failure", func() bool {
		return testutil.ToFloat64(r.metrics.reloads[1]) > 1
	})
	write(text(a))
	testwait.Until(t, "the good file again", func() bool { got, _ := ask(l); return got == "a" })
	testwait.Until(t, "its success is told", func() bool { return testutil.ToFloat64(r.metrics.reloadGood) == 1 })
}

func TestRoutesPage(t *testing.T) {
	l, a := free(t), hello(t, "a")
	r := start(t, Options{Table: table(
		row("web", route.HTTP, l, a),
		row("late", route.TFTP, free(t), route.Backend{Host: "nowhere.invalid.", Port: 69}),
	)})
	mustAsk(t, l, "a")
	page := httptest.NewRecorder()
	r.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/routes", nil))
	var got struct {
		Routes []struct {
			Route     struct{ Name string }
			Ready     bool
			Reason    string
			Endpoints []struct {
				Address, Health string
				Used            int
			}
		}
	}
	if err := json.Unmarshal(page.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	web, late := got.Routes[0], got.Routes[1]
	if web.Route.Name != "web" || !web.Ready || len(web.Endpoints) != 1 || web.Endpoints[0].Used != 1 ||
		web.Endpoints[0].Address != a.String() || web.Endpoints[0].Health != "healthy" ||
		late.Ready || !strings.Contains(late.Reason, "backend nowhere.invalid.:69") {
		t.Errorf("got %+v", got)
	}
}

// Every metric is named and described as the field does it.
func TestMetricsAreWellNamed(t *testing.T) {
	l, a := free(t), hello(t, "a")
	r := start(t, Options{Table: table(row("web", route.HTTP, l, a), row("stream", route.TCP, free(t), a),
		row("tftp", route.TFTP, free(t), a), row("syslog", route.Syslog, free(t), a), row("udp", route.UDP, free(t), a))})
	mustAsk(t, l, "a")
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "stack_proxy_") {
			t.Errorf("%s does not begin with stack_proxy_", family.GetName())
		}
	}
}

// Before the end connections are taken, each for one answer.
func TestLeave(t *testing.T) {
	l := free(t)
	r := start(t, Options{Table: table(row("web", route.HTTP, l, hello(t, "a")))})
	mustAsk(t, l, "a")
	r.Leave()
	response, err := http.Get("http://" + l.AddrPort().String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if !response.Close {
		t.Error("the answer does not end its connection")
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := ask(l); err == nil {
		t.Error("a connection was taken after the end")
	}
}

// A port that is taken at the start ends it, also where others were bound before.
func TestPortTakenAtStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bound, web, backend := free(t), free(t), hello(t, "a")
	done := make(chan error, 1)
	go func() {
		_, err := New(Options{Table: table(row("bound", route.TCP, bound, backend), row("web", route.HTTP, web, backend),
			row("taken", route.TCP, route.Listen(netip.MustParseAddrPort(taken.Addr().String())), backend))})
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("New() = %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("New does not return")
	}
	for _, l := range []route.Listen{bound, web} {
		again, err := net.Listen("tcp", l.AddrPort().String())
		if err != nil {
			t.Fatalf("the other port stays bound: %v", err)
		}
		_ = again.Close()
	}
}
