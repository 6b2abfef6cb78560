package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/route"
)

// names is a name server whose answers live for a second, and that can be struck dumb.
type names struct {
	mu    sync.Mutex
	addrs []string
	dumb  bool
	asked atomic.Int64
}

func (n *names) set(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addrs = slices.Clone(addrs)
}

func (n *names) silence(dumb bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dumb = dumb
}

// ServeDNS implements dns.Handler.
func (n *names) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	n.asked.Add(1)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dumb {
		return
	}
	reply := new(dns.Msg).SetReply(query)
	for _, addr := range n.addrs {
		if query.Question[0].Qtype == dns.TypeA {
			rr, _ := dns.NewRR("backend.test. 1 IN A " + addr)
			reply.Answer = append(reply.Answer, rr)
		}
	}
	_ = w.WriteMsg(reply)
}

// nameServer serves, and makes the resolver that asks it.
func nameServer(t *testing.T) (*names, *endpoint.Resolver) {
	t.Helper()
	n := &names{}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, Handler: n, NotifyStartedFunc: func() { close(started) }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe()
	}()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-done
	})
	return n, &endpoint.Resolver{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// The name server says nothing for longer than its answers live, while routes are reloaded and endpoints asked: no
// new connection fails.
func TestNameServerGone(t *testing.T) {
	n, resolver := nameServer(t)
	a := hello(t, "a")
	n.set(a.Host)
	backend := route.Backend{Host: "backend.test.", Port: a.Port}
	web, stream := free(t), free(t)
	build := func(i int) route.Table {
		backends := slices.Repeat([]route.Backend{backend}, 1+i%2) // other backends are another pool
		return table(row("web", route.HTTP, web, backends...), row("stream", route.TCP, stream, backends...))
	}
	r := start(t, Options{Table: build(0), Resolver: resolver})
	waitReady(t, r)
	load := startLoad(t, web, stream)
	load.until(10)
	n.silence(true)
	silent := time.Now()
	for i := 1; time.Since(silent) < 4*time.Second; i++ {
		r.apply(t, build(i))
		load.until(20)
		time.Sleep(200 * time.Millisecond)
	}
	// Back, with another endpoint: it is followed.
	helloUntil(t, "b", "127.0.1.1", a.Port)
	n.set("127.0.1.1")
	n.silence(false)
	deadline := time.Now().Add(30 * time.Second)
	for _, l := range []route.Listen{web, stream} {
		for got := ""; got != "b"; time.Sleep(10 * time.Millisecond) {
			got, _ = ask(l)
			if time.Now().After(deadline) {
				t.Fatalf("the endpoint that took the place of another is not found: %s", got)
			}
		}
	}
	t.Logf("%d connections", load.stop())
}

// Endpoints are replaced one by one as the name server tells: each is told first and ends when its connections have.
func TestEndpointsReplacedByName(t *testing.T) {
	n, resolver := nameServer(t)
	first := hello(t, "0")
	port := first.Port
	addrs, ends := []string{first.Host}, []func(){func() {}}
	for i := 1; i < 3; i++ {
		addr := fmt.Sprintf("127.0.1.%d", i)
		ends = append(ends, helloUntil(t, fmt.Sprint(i), addr, port))
		addrs = append(addrs, addr)
	}
	n.set(addrs...)
	backend := route.Backend{Host: "backend.test.", Port: port}
	web, stream := free(t), free(t)
	r := start(t, Options{
		Table:    table(row("web", route.HTTP, web, backend), row("stream", route.TCP, stream, backend)),
		Resolver: resolver,
	})
	waitReady(t, r)
	load := startLoad(t, web, stream)
	for i := 3; i < 9; i++ {
		old := i % 3
		next := fmt.Sprintf("127.0.1.%d", i)
		end := helloUntil(t, fmt.Sprint(i%10), next, port)
		gone := addrs[old]
		addrs[old] = next
		n.set(addrs...)
		r.forgets(t, gone)
		load.until(20)
		ends[old]()
		ends[old] = end
		load.until(20)
	}
	t.Logf("%d connections, all endpoints replaced twice", load.stop())
}

// forgets waits until no route knows an endpoint any more.
func (r testProxy) forgets(t *testing.T, addr string) {
	t.Helper()
	testwait.Until(t, addr+" is forgotten", func() bool {
		for _, s := range r.Status() {
			for _, e := range s.Endpoints {
				if e.Address.Addr() == netip.MustParseAddr(addr) {
					return false
				}
			}
		}
		return true
	})
}

func waitReady(t *testing.T, r testProxy) {
	t.Helper()
	testwait.Success(t, "the proxy is ready", r.Ready)
}

// helloUntil is a backend at an address, and what ends it: what it is answering is answered.
func helloUntil(t *testing.T, name, addr string, port uint16) (end func()) {
	t.Helper()
	listener, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), port).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	end = sync.OnceFunc(func() {
		_ = server.Shutdown(context.WithoutCancel(t.Context()))
		<-done
	})
	t.Cleanup(end)
	return end
}

// load asks again and again, each time on a new connection, and fails the test with the first that fails.
type load struct {
	t      *testing.T
	asked  atomic.Int64
	cancel context.CancelFunc
	group  sync.WaitGroup
}

func startLoad(t *testing.T, at ...route.Listen) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{t: t, cancel: cancel}
	for _, each := range append(at, at...) {
		l.group.Go(func() {
			for ctx.Err() == nil {
				if got, err := ask(each); err != nil || len(got) != 1 {
					t.Errorf("%s answered %q, %v", each, strings.TrimSpace(got), err)
					return
				}
				l.asked.Add(1)
			}
		})
	}
	t.Cleanup(func() { l.stop() })
	return l
}

// until waits for some more answers.
func (l *load) until(more int64) {
	l.t.Helper()
	goal := l.asked.Load() + more
	testwait.Until(l.t, "the load goes on", func() bool { return l.t.Failed() || l.asked.Load() >= goal })
	if l.t.Failed() {
		l.t.FailNow()
	}
}

func (l *load) stop() int64 {
	l.cancel()
	l.group.Wait()
	return l.asked.Load()
}
