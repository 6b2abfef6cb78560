package web

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/queue"
)

// machines serves as many at a time as most, of which each stays until it is let go.
type machines struct {
	running
	arrived chan string // X-Machine of who is served
	letGo   chan struct{}
	queue   *queue.Queue
}

func startQueue(t *testing.T, most, length int, change func(*Settings)) machines {
	t.Helper()
	m := machines{arrived: make(chan string, 100), letGo: make(chan struct{}, 100), queue: &queue.Queue{}}
	m.queue.SetLimits(most, length)
	s := Settings{
		Queue: m.queue, Machines: most, RetryAgents: []string{"Ignition/", "cloud"}, Drain: 500 * time.Millisecond,
		Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
			m.arrived <- r.Header.Get("X-Machine")
			select {
			case <-m.letGo:
			case <-r.Context().Done():
			}
			_, _ = io.WriteString(w, "done")
		})),
	}
	if change != nil {
		change(&s)
	}
	m.running = start(t, s)
	return m
}

// caller is a request that is under way.
type caller struct {
	conn   net.Conn
	answer chan string // status and Retry-After, or an error
}

func (m machines) ask(t *testing.T, from, name, agent string) caller {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	c, err := dialer.Dial("tcp", m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Machine: "+name+"\r\nUser-Agent: "+
		agent+"\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	a := caller{c, make(chan string, 1)}
	go func() {
		b, err := io.ReadAll(c)
		head, _, _ := strings.Cut(string(b), "\r\n\r\n")
		status, _, _ := strings.Cut(head, "\r\n")
		switch {
		case err != nil || len(b) == 0:
			a.answer <- "torn"
		case strings.Contains(head, "Retry-After: 1"):
			a.answer <- status + ", come again"
		default:
			a.answer <- status
		}
	}()
	return a
}

// comes is who is served next; nobody is after a while "".
func (m machines) comes() string {
	select {
	case name := <-m.arrived:
		return name
	case <-time.After(300 * time.Millisecond):
		return ""
	}
}

func (m machines) want(t *testing.T, name string) {
	t.Helper()
	select {
	case got := <-m.arrived:
		if got != name {
			t.Errorf("%q is served, want %q", got, name)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("%q is not served", name)
	}
}

func (a caller) want(t *testing.T, answer string) {
	t.Helper()
	select {
	case got := <-a.answer:
		if got != answer {
			t.Errorf("got %q, want %q", got, answer)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("no answer, want %q", answer)
	}
}

func (m machines) waiting(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); m.queue.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d machines wait, want %d", m.queue.Waiting(), n)
		}
	}
}

// One machine is served, the second waits, with its connection open; one that comes again when it is told to is told,
// and so is one beyond the queue. One that goes while it waits is forgotten.
func TestMachinesWaitForTheirTurn(t *testing.T) {
	m := startQueue(t, 1, 2, nil)
	a := m.ask(t, "127.0.0.2", "a", "iPXE/1.21")
	m.want(t, "a")
	b := m.ask(t, "127.0.0.3", "b", "iPXE/1.21")
	m.waiting(t, 1)
	c := m.ask(t, "127.0.0.4", "c", "iPXE/1.21")
	m.waiting(t, 2)
	m.ask(t, "127.0.0.5", "d", "Ignition/2.19").want(t, "HTTP/1.1 503 Service Unavailable, come again")
	m.ask(t, "127.0.0.6", "e", "iPXE/1.21").want(t, "HTTP/1.1 503 Service Unavailable, come again")
	again := m.ask(t, "127.0.0.2", "a", "Ignition/2.19") // is served, however often it asks
	m.want(t, "a")
	if got := m.comes(); got != "" {
		t.Errorf("%q is served beside", got)
	}
	_ = b.conn.Close()
	m.waiting(t, 1)
	m.letGo <- struct{}{}
	m.letGo <- struct{}{}
	a.want(t, "HTTP/1.1 200 OK")
	again.want(t, "HTTP/1.1 200 OK")
	m.want(t, "c")
	m.letGo <- struct{}{}
	c.want(t, "HTTP/1.1 200 OK")
}

// What waits is served during a drain; what still does at its end is closed.
func TestDrainOfAQueue(t *testing.T) {
	t.Parallel()
	m := startQueue(t, 1, 10, func(s *Settings) { s.Drain = 4 * time.Second })
	a := m.ask(t, "127.0.0.2", "a", "")
	m.want(t, "a")
	b := m.ask(t, "127.0.0.3", "b", "")
	m.waiting(t, 1)
	c := m.ask(t, "127.0.0.4", "c", "")
	m.waiting(t, 2)
	stopped := make(chan error, 1)
	go func() { stopped <- m.stop() }()
	for !m.ending.Load() {
		time.Sleep(time.Millisecond)
	}
	m.letGo <- struct{}{}
	a.want(t, "HTTP/1.1 200 OK")
	m.want(t, "b")
	b.want(t, "torn") // is never let go
	c.want(t, "torn")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	m.waiting(t, 0)
}

// A bound that goes lets all in, and one that comes holds for the requests that come then.
func TestQueueFollowsReloads(t *testing.T) {
	m := startQueue(t, 1, 10, nil)
	first := m.ask(t, "127.0.0.2", "a", "")
	m.want(t, "a")
	second := m.ask(t, "127.0.0.3", "b", "")
	m.waiting(t, 1)
	s := m.current.Load().settings
	m.queue.SetLimits(0, 0)
	s.Machines = 0
	m.Update(s)
	m.want(t, "b")
	m.letGo <- struct{}{}
	m.letGo <- struct{}{}
	first.want(t, "HTTP/1.1 200 OK")
	second.want(t, "HTTP/1.1 200 OK")
	if m.current.Load().plain == nil {
		t.Error("the plain way is not taken again")
	}
	m.queue.SetLimits(1, 10)
	s.Machines = 1
	m.Update(s)
	third := m.ask(t, "127.0.0.2", "c", "")
	m.want(t, "c")
	fourth := m.ask(t, "127.0.0.3", "d", "")
	m.waiting(t, 1)
	m.letGo <- struct{}{}
	m.letGo <- struct{}{}
	third.want(t, "HTTP/1.1 200 OK")
	fourth.want(t, "HTTP/1.1 200 OK")
}

// Whom a gate refuses does not wait, and takes nobody's place.
func TestQueueIsBehindTheGate(t *testing.T) {
	m := startQueue(t, 1, 10, func(s *Settings) { s.Gate = closedGate{} })
	m.ask(t, "127.0.0.2", "a", "").want(t, "HTTP/1.1 403 Forbidden")
	m.ask(t, "127.0.0.3", "b", "").want(t, "HTTP/1.1 403 Forbidden")
	if got := m.comes(); got != "" {
		t.Errorf("%q is served", got)
	}
}

type closedGate struct{ hiding }

func (closedGate) Wrap(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
}

// In HTTP/2 each request waits by itself, and one that is given up leaves the queue.
func TestQueueOfHTTP2(t *testing.T) {
	m := startQueue(t, 1, 10, func(s *Settings) { s.TLS = certificate(t, "h2", "http/1.1") })
	url := strings.Replace(m.url, "http:", "https:", 1)
	client := func(from string) *http.Client {
		dialer := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
		transport := &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
		}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	get := func(from, name string) chan error {
		done := make(chan error, 1)
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		request.Header.Set("X-Machine", name)
		go func() {
			response, err := client(from).Do(request)
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			done <- err
		}()
		return done
	}
	a := get("127.0.0.2", "a")
	m.want(t, "a")
	b := get("127.0.0.3", "b")
	m.waiting(t, 1)
	m.letGo <- struct{}{}
	m.want(t, "b")
	m.letGo <- struct{}{}
	for _, done := range []chan error{a, b} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
