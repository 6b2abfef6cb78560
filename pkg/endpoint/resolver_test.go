package endpoint

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
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
		reply.RecursionAvailable = true
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

// resolver asks the server, whatever resolv.conf says.
func (s *nameServer) resolver() *Resolver {
	return &Resolver{Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network[:3], s.addr)
	}}
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
		fault string
	}{
		"smee.tink.svc.cluster.local.": {addrs("10.0.0.1", "10.0.0.2", "fd00::1"), ""},
		"alias.example.":               {addrs("10.0.0.9"), ""},
		"zero.example.":                {addrs("10.0.0.3"), ""},
		"four.example.":                {addrs("10.0.0.4"), ""},
		"big.example.":                 {addrs("10.0.0.5"), ""},
		"198.51.100.1":                 {addrs("198.51.100.1"), ""},
		"2001:db8::1":                  {addrs("2001:db8::1"), ""},
		"nowhere.example.":             {nil, "failed to look up nowhere.example.: no such name"},
		"empty.example.":               {nil, "no such name"},
		"bad.example.":                 {nil, "server misbehaving"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := s.resolver().Lookup(t.Context(), name)
			if test.fault != "" {
				absent := strings.Contains(test.fault, "no such name")
				if err == nil || !strings.Contains(err.Error(), test.fault) || errors.Is(err, ErrNotFound) != absent {
					t.Errorf("got %v, want %s", err, test.fault)
				}
				return
			}
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// The first name server is silent: a lookup takes its time, and finds the name all the same.
func TestSilentNameServer(t *testing.T) {
	t.Parallel()
	s := newNameServer(t)
	s.set("a.example. A", "a.example. 5 IN A 10.0.0.1")
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	var asked atomic.Int64
	r := &Resolver{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		at := s.addr
		if asked.Add(1) <= 2 { // A and AAAA
			at = silent.LocalAddr().String()
		}
		return new(net.Dialer).DialContext(ctx, "udp", at)
	}}
	got, err := r.Lookup(t.Context(), "a.example.")
	if diff := cmp.Diff(addrs("10.0.0.1"), got, compareAddrs); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

func waitReady(t *testing.T, p *Pool) {
	t.Helper()
	testwait.Success(t, "the pool is ready", p.Ready)
}

// A backend that comes late, moves, and whose name server dies.
func TestPoolFollowsName(t *testing.T) {
	s := newNameServer(t)
	p := NewPool(Config{Route: "r", Sources: []Source{s.resolver().Host("late.example.", 80)}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	testwait.Until(t, "the name is not found", func() bool { return errors.Is(p.Ready(), ErrNotFound) })
	if err := p.Ready(); !strings.Contains(err.Error(), "backend late.example.:80") {
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
