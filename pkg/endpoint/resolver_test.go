package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/tinkerbell/stack/internal/testwait"
)

// nameServer answers from a table of "name TYPE" → records, over UDP and TCP.
type nameServer struct {
	addr string
	mu   sync.Mutex
	zone map[string][]string
	code map[string]int
	big  map[string]bool // truncated over UDP
	asks []string
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	s := &nameServer{zone: map[string][]string{}, code: map[string]int{}, big: map[string]bool{}}
	var packet net.PacketConn
	var stream net.Listener
	for try := 0; stream == nil; try++ {
		var err error
		if packet, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		s.addr = packet.LocalAddr().String()
		// Somebody else may have the same port for TCP.
		if stream, err = net.Listen("tcp", s.addr); err != nil {
			_ = packet.Close()
			if try == 20 {
				t.Fatal(err)
			}
		}
	}
	var running sync.WaitGroup
	t.Cleanup(running.Wait) // last, after the servers were shut down
	for _, server := range []*dns.Server{
		{PacketConn: packet, Handler: s.handler(true)}, {Listener: stream, Handler: s.handler(false)},
	} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		running.Go(func() { _ = server.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return s
}

func (s *nameServer) set(key string, records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.zone[key] = records
}

func (s *nameServer) handler(udp bool) dns.Handler {
	return dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		q := query.Question[0]
		key := q.Name + " " + dns.TypeToString[q.Qtype]
		reply := new(dns.Msg).SetReply(query)
		s.mu.Lock()
		s.asks = append(s.asks, key)
		code, records, big := s.code[key], s.zone[key], s.big[key]
		s.mu.Unlock()
		switch {
		case code != 0:
			reply.Rcode = code
		case big && udp:
			reply.Truncated = true
		case len(records) == 0 && !s.knows(q.Name):
			reply.Rcode = dns.RcodeNameError
		}
		for _, record := range records {
			rr, err := dns.NewRR(record)
			if err == nil && !reply.Truncated {
				reply.Answer = append(reply.Answer, rr)
			}
		}
		_ = w.WriteMsg(reply)
	})
}

func (s *nameServer) knows(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.zone {
		if strings.HasPrefix(key, name+" ") {
			return true
		}
	}
	return false
}

func (s *nameServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.asks = nil }()
	return s.asks
}

// resolver reads a resolv.conf that names the server.
func (s *nameServer) resolver(t *testing.T, search string) *Resolver {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.addr)
	directory := t.TempDir()
	conf, hosts := filepath.Join(directory, "resolv.conf"), filepath.Join(directory, "hosts")
	text := fmt.Sprintf("nameserver %s\nsearch %s\noptions ndots:5 timeout:1 attempts:1\n", host, search)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hosts, []byte("192.0.2.1 static alias # comment\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return &Resolver{ResolvConf: conf, Hosts: hosts, Port: number}
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestLookup(t *testing.T) {
	s := newNameServer(t)
	s.set("smee.tink.svc.cluster.local. A", "smee.tink.svc.cluster.local. 7 IN A 10.0.0.2",
		"smee.tink.svc.cluster.local. 9 IN A 10.0.0.1")
	s.set("smee.tink.svc.cluster.local. AAAA", "smee.tink.svc.cluster.local. 8 IN AAAA fd00::1")
	s.set("alias.example. A", "alias.example. 3 IN CNAME real.example.", "real.example. 60 IN A 10.0.0.9")
	s.set("zero.example. A", "zero.example. 0 IN A 10.0.0.3")
	s.set("four.example. A", "four.example. 5 IN A 10.0.0.4")
	s.code["four.example. AAAA"] = dns.RcodeServerFailure
	s.set("big.example. A", "big.example. 5 IN A 10.0.0.5")
	s.big["big.example. A"] = true
	s.code["bad.example. A"], s.code["bad.example. AAAA"] = dns.RcodeServerFailure, dns.RcodeServerFailure
	s.set("empty.example. TXT", "empty.example. 5 IN TXT x")
	tests := map[string]struct {
		want  []netip.Addr
		ttl   time.Duration
		fault string
	}{
		"smee":                         {addrs("10.0.0.1", "10.0.0.2", "fd00::1"), 7 * time.Second, ""},
		"smee.tink":                    {addrs("10.0.0.1", "10.0.0.2", "fd00::1"), 7 * time.Second, ""},
		"smee.tink.svc.cluster.local.": {addrs("10.0.0.1", "10.0.0.2", "fd00::1"), 7 * time.Second, ""},
		"alias.example.":               {addrs("10.0.0.9"), 3 * time.Second, ""},
		"zero.example.":                {addrs("10.0.0.3"), minTTL, ""},
		"four.example.":                {addrs("10.0.0.4"), 5 * time.Second, ""},
		"big.example.":                 {addrs("10.0.0.5"), 5 * time.Second, ""},
		"STATIC":                       {addrs("192.0.2.1"), 5 * time.Second, ""},
		"alias":                        {addrs("192.0.2.1"), 5 * time.Second, ""},
		"198.51.100.1":                 {addrs("198.51.100.1"), maxTTL, ""},
		"2001:db8::1":                  {addrs("2001:db8::1"), maxTTL, ""},
		"nowhere":                      {nil, 0, "failed to look up nowhere: no such name"},
		"empty.example.":               {nil, 0, "no such name"},
		"bad.example.":                 {nil, 0, "SERVFAIL"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := s.resolver(t, "tink.svc.cluster.local svc.cluster.local cluster.local")
			got, ttl, err := r.Lookup(t.Context(), name)
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %v, want %s", err, test.fault)
				}
				return
			}
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
			if ttl != test.ttl {
				t.Errorf("lifetime %s, want %s", ttl, test.ttl)
			}
		})
	}
}

func TestBrokenZoneInTheSearchPath(t *testing.T) {
	s := newNameServer(t)
	for _, kind := range []string{"A", "AAAA", "SRV"} {
		s.code["smee.broken.example. "+kind] = dns.RcodeServerFailure
		s.code["gone.broken.example. "+kind] = dns.RcodeRefused
	}
	s.set("smee.tink.example. A", "smee.tink.example. 7 IN A 10.0.0.1")
	s.set("smee.tink.example. SRV", "smee.tink.example. 7 IN SRV 10 0 7171 a.example.")
	r := s.resolver(t, "broken.example tink.example")
	if got, _, err := r.Lookup(t.Context(), "smee"); err != nil || !slices.Equal(got, addrs("10.0.0.1")) {
		t.Errorf("addresses: got %v, %v", got, err)
	}
	want := []SRV{{Host: "a.example.", Port: 7171, Priority: 10}}
	if got, _, err := r.LookupSRV(t.Context(), "smee"); err != nil || !slices.Equal(got, want) {
		t.Errorf("records: got %v, %v", got, err)
	}
	// Where no zone knows the name, one of them may: "no such name" would let go of what is known.
	_, _, err := r.Lookup(t.Context(), "gone")
	if err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("got %v, want REFUSED", err)
	}
}

func TestAnswersAreKeptForTheirLifetime(t *testing.T) {
	s := newNameServer(t)
	s.set("a.example. A", "a.example. 10 IN A 10.0.0.1")
	now := time.Now()
	r := s.resolver(t, "")
	r.Now = func() time.Time { return now }
	lookup := func() int {
		if _, _, err := r.Lookup(t.Context(), "a.example."); err != nil {
			t.Fatal(err)
		}
		return len(s.asked())
	}
	if first, second := lookup(), lookup(); first != 2 || second != 0 {
		t.Errorf("asked %d and %d times, want 2 and 0", first, second)
	}
	now = now.Add(11 * time.Second)
	if n := lookup(); n != 2 {
		t.Errorf("asked %d times after the lifetime, want 2", n)
	}
}

func TestForgottenServiceIsLookedUpAnew(t *testing.T) {
	s := newNameServer(t)
	s.set("_http._tcp.hegel.example. SRV", "_http._tcp.hegel.example. 300 IN SRV 10 0 8080 a.example.")
	s.set("a.example. A", "a.example. 300 IN A 10.0.0.1")
	r := s.resolver(t, "")
	ask := func() (found []Member) {
		ctx, cancel := context.WithCancel(t.Context())
		r.Service("_http._tcp.hegel.example.").Watch(ctx, nil, func(members []Member, err error) {
			if err != nil {
				t.Error(err)
			}
			found = members
			cancel()
		})
		return found
	}
	ask()
	s.set("a.example. A", "a.example. 300 IN A 10.0.0.2")
	r.forget("_http._tcp.hegel.example.")
	want := []Member{{Addr: netip.MustParseAddrPort("10.0.0.2:8080")}}
	if got := ask(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestServiceRecords(t *testing.T) {
	s := newNameServer(t)
	s.set("_http._tcp.hegel.example. SRV",
		"_http._tcp.hegel.example. 30 IN SRV 10 0 8080 a.example.", "_http._tcp.hegel.example. 30 IN SRV 20 0 8081 b.example.")
	s.set("a.example. A", "a.example. 20 IN A 127.0.0.1")
	s.set("b.example. A", "b.example. 10 IN A 127.0.0.2")
	r := s.resolver(t, "example")
	p := NewPool(Config{Route: "r", Sources: []Source{r.Service("_http._tcp.hegel")}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	waitReady(t, p)
	for range 4 {
		if addr, _ := p.Pick(client(0)); addr != netip.MustParseAddrPort("127.0.0.1:8080") {
			t.Errorf("picked %s, which is not of the lowest priority", addr)
		}
	}
	if all := p.Status(); len(all) != 2 || !all[1].Fallback {
		t.Errorf("got %+v", all)
	}
	cancel()
	<-done
}

func waitReady(t *testing.T, p *Pool) {
	t.Helper()
	testwait.Success(t, "the pool is ready", p.Ready)
}

// A backend that comes late, moves, and whose name server dies.
func TestPoolFollowsName(t *testing.T) {
	s := newNameServer(t)
	r := s.resolver(t, "example")
	p := NewPool(Config{Route: "r", Sources: []Source{r.Host("late", 80)}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	testwait.Until(t, "the name is not found", func() bool { return errors.Is(p.Ready(), ErrNotFound) })
	if err := p.Ready(); !strings.Contains(err.Error(), "backend late:80") {
		t.Errorf("the reason does not name the backend: %v", err)
	}
	s.set("late.example. A", "late.example. 1 IN A 127.0.0.1")
	waitReady(t, p)
	s.set("late.example. A", "late.example. 1 IN A 127.0.0.2")
	want := netip.MustParseAddrPort("127.0.0.2:80")
	testwait.Until(t, "the pool follows", func() bool {
		addr, _ := p.Pick(client(0))
		return addr == want
	})
	s.mu.Lock()
	s.code["late.example. A"], s.code["late.example. AAAA"] = dns.RcodeServerFailure, dns.RcodeServerFailure
	s.mu.Unlock()
	time.Sleep(1500 * time.Millisecond)
	if addr, err := p.Pick(client(0)); addr != want {
		t.Errorf("got %v, %v while the name server fails; want the last answer", addr, err)
	}
}

func FuzzHosts(f *testing.F) {
	f.Add([]byte("127.0.0.1 localhost\n::1 a b # c\nx y\n\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		hosts, err := parseHosts(text)
		if err != nil {
			t.Error(err)
		}
		for name, addrs := range hosts {
			if len(addrs) == 0 || name != strings.ToLower(name) {
				t.Errorf("%q has %v", name, addrs)
			}
		}
	})
}
