package endpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// box is the environment variable of the process that has a network and a resolv.conf of its own.
const box = "TEST_RESOLVER_BOX"

// inBox runs the test in a process of its own whose loopback has port 53 and whose /etc/resolv.conf may be replaced, so
// that glibc's getent asks the same servers. It reports whether this is that process.
func inBox(t *testing.T) bool {
	t.Helper()
	if os.Getenv(box) != "" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: a network namespace with name servers on port 53 (make test as root runs it)")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), box+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// upstream is a name server on one address of the loopback, port 53.
type upstream struct {
	mu   sync.Mutex
	asks []string
	// answer makes the reply, or nil to keep silent.
	answer func(q dns.Question, udp bool) *dns.Msg
}

func (u *upstream) asked() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer func() { u.asks = nil }()
	return u.asks
}

func serveUpstream(t *testing.T, addr string, answer func(dns.Question, bool) *dns.Msg) *upstream {
	t.Helper()
	u := &upstream{answer: answer}
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		server := &dns.Server{
			Addr: net.JoinHostPort(addr, "53"), Net: network, NotifyStartedFunc: func() { close(started) },
			Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
				u.mu.Lock()
				u.asks = append(u.asks, query.Question[0].Name+" "+dns.TypeToString[query.Question[0].Qtype])
				u.mu.Unlock()
				if reply := u.answer(query.Question[0], network == "udp"); reply != nil {
					reply.SetRcode(query, reply.Rcode)
					_ = w.WriteMsg(reply)
				}
			}),
		}
		var running sync.WaitGroup
		running.Go(func() {
			if err := server.ListenAndServe(); err != nil {
				t.Error(err)
			}
		})
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			running.Wait()
		})
	}
	return u
}

// zone answers with records of "name TYPE", with a code for names under a suffix, and else with no such name.
func zone(codes map[string]int, records ...string) func(dns.Question, bool) *dns.Msg {
	return func(q dns.Question, _ bool) *dns.Msg {
		reply := new(dns.Msg)
		for suffix, code := range codes {
			if strings.HasSuffix(q.Name+" "+dns.TypeToString[q.Qtype], suffix) {
				reply.Rcode = code
				return reply
			}
		}
		reply.Rcode = dns.RcodeNameError
		for _, record := range records {
			rr, err := dns.NewRR(record)
			if err != nil || rr.Header().Name != q.Name {
				continue
			}
			reply.Rcode = dns.RcodeSuccess
			if rr.Header().Rrtype == q.Qtype {
				reply.Answer = append(reply.Answer, rr)
			}
		}
		return reply
	}
}

func silent(dns.Question, bool) *dns.Msg { return nil }

// under is a set of codes for a search path's names, of each kind.
func under(code int, suffixes ...string) map[string]int {
	codes := map[string]int{}
	for _, suffix := range suffixes {
		for _, kind := range []string{"A", "AAAA", "SRV"} {
			codes[suffix+" "+kind] = code
		}
	}
	return codes
}

const known = "alias.example.com. 5 IN A 192.0.2.1"

// TestNamesAreFoundAsGlibcFindsThem compares with getent in the same network, with the same resolv.conf.
func TestNamesAreFoundAsGlibcFindsThem(t *testing.T) {
	if !inBox(t) {
		return
	}
	loopback(t)
	type server struct {
		addr   string
		answer func(dns.Question, bool) *dns.Msg // nil: nobody listens
	}
	const first, second, third, fourth = "127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14"
	dual := []string{known, "dual.example.com. 5 IN A 192.0.2.2", "dual.example.com. 5 IN AAAA 2001:db8::2"}
	knows := zone(nil, dual...)
	refuses := func(code int) func(dns.Question, bool) *dns.Msg {
		return zone(under(code, ".a.test.", ".b.test."), dual...)
	}
	const searching = "search a.test b.test\noptions ndots:5 timeout:1 attempts:1\n"
	tests := map[string]struct {
		servers []server
		conf    string // after the name servers
		name    string
		want    []netip.Addr // nil: not found
		not     string       // server that must not have been asked
	}{
		"refused by one, silence of another": {
			[]server{{first, refuses(dns.RcodeRefused)}, {second, silent}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"failed by one, silence of another": {
			[]server{{first, refuses(dns.RcodeServerFailure)}, {second, silent}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"not implemented by one, silence of another": {
			[]server{{first, refuses(dns.RcodeNotImplemented)}, {second, silent}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"refused by one, nobody at another": {
			[]server{{first, refuses(dns.RcodeRefused)}, {second, nil}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"both families, refused by one, silence of another": {
			[]server{{first, refuses(dns.RcodeRefused)}, {second, silent}}, searching, "dual.example.com", addrs("192.0.2.2", "2001:db8::2"), ""},
		"silence of one, refused by another": {
			[]server{{first, silent}, {second, refuses(dns.RcodeRefused)}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"silence of two, refused by the third": {
			[]server{{first, silent}, {second, silent}, {third, refuses(dns.RcodeRefused)}}, searching, "alias.example.com", addrs("192.0.2.1"), ""},
		"the fourth server is not asked": {
			[]server{{first, silent}, {second, silent}, {third, silent}, {fourth, knows}}, searching, "alias.example.com.", nil, fourth},
		"no such name is final": {
			[]server{{first, zone(nil)}, {second, knows}}, searching, "alias.example.com.", nil, second},
		"a failure is not final": {
			[]server{{first, zone(under(dns.RcodeServerFailure, ".com."))}, {second, knows}}, searching, "alias.example.com.", addrs("192.0.2.1"), ""},
		"one family fails": {
			[]server{{first, zone(map[string]int{".com. AAAA": dns.RcodeServerFailure}, known)}}, searching, "alias.example.com.", addrs("192.0.2.1"), ""},
		"no record of this kind, and the search goes on": {
			[]server{{first, zone(nil, "smee.a.test. 5 IN TXT x", "smee.b.test. 5 IN A 192.0.2.3")}}, searching, "smee", addrs("192.0.2.3"), ""},
		"a dot is enough for ndots:1": {
			[]server{{first, zone(nil, "a.b. 5 IN A 192.0.2.4", "a.b.a.test. 5 IN A 192.0.2.5")}},
			"search a.test\noptions ndots:1 timeout:1\n", "a.b", addrs("192.0.2.4"), ""},
		"numbers out of bounds and words that nobody knows": {
			[]server{{first, knows}}, "options attempts:0 timeout:0 ndots:99 single-request frobnicate\n", "alias.example.com", addrs("192.0.2.1"), ""},
		"no name server is the one on this host": {
			[]server{{"127.0.0.1", knows}}, "", "alias.example.com", addrs("192.0.2.1"), ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			asked := map[string]*upstream{}
			for _, s := range test.servers {
				if s.answer != nil {
					asked[s.addr] = serveUpstream(t, s.addr, s.answer)
				}
				if s.addr != "127.0.0.1" {
					fmt.Fprintf(&text, "nameserver %s\n", s.addr)
				}
			}
			text.WriteString(test.conf)
			conf := resolvConf(t, text.String())
			r := &Resolver{ResolvConf: conf}
			var glibc []netip.Addr
			var beside sync.WaitGroup
			beside.Go(func() { glibc = getent(t, conf, test.name) })
			got, _, err := r.Lookup(t.Context(), test.name)
			beside.Wait()
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" || (err == nil) != (test.want != nil) {
				t.Errorf("%v\n%s", err, diff)
			}
			if test.not != "" {
				if n := asked[test.not].asked(); len(n) > 0 {
					t.Errorf("%s was asked for %v", test.not, n)
				}
			}
			switch {
			case slices.Equal(glibc, test.want):
			case test.want == nil:
				t.Errorf("glibc finds %v", glibc)
			default:
				t.Logf("getent of this machine finds %v", glibc)
			}
		})
	}
}

// loopback brings the box's own up.
func loopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func resolvConf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// getent is what glibc finds with a resolv.conf, sorted; nothing where there is no getent.
func getent(t *testing.T, conf, name string) []netip.Addr {
	t.Helper()
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Error(err)
	}
	defer func() { _ = unix.Unmount("/etc/resolv.conf", unix.MNT_DETACH) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "getent", "ahosts", name)
	out, _ := cmd.Output()
	var found []netip.Addr
	for line := range strings.Lines(string(out)) {
		if addr, err := netip.ParseAddr(strings.Fields(line)[0]); err == nil {
			found = append(found, addr)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found)
}

// TestServicesAreFoundBehindASilentServer is what getent cannot be asked for.
func TestServicesAreFoundBehindASilentServer(t *testing.T) {
	if !inBox(t) {
		return
	}
	loopback(t)
	serveUpstream(t, "127.0.0.11", zone(under(dns.RcodeRefused, ".a.test."), "_http._tcp.hegel. 5 IN SRV 1 1 8080 alias.example.com."))
	serveUpstream(t, "127.0.0.12", silent)
	r := &Resolver{ResolvConf: resolvConf(t,
		"nameserver 127.0.0.11\nnameserver 127.0.0.12\nsearch a.test\noptions ndots:5 timeout:1 attempts:1\n")}
	got, _, err := r.LookupSRV(t.Context(), "_http._tcp.hegel")
	want := []SRV{{Host: "alias.example.com.", Port: 8080, Priority: 1, Weight: 1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestServersTakeTurns asks 30 times where one of three servers is silent.
func TestServersTakeTurns(t *testing.T) {
	if !inBox(t) {
		return
	}
	loopback(t)
	var mu sync.Mutex
	begun := map[string]string{} // the server that each name was asked of first
	count := map[string]map[string]int{}
	all := []string{"127.0.0.11", "127.0.0.12", "127.0.0.13"}
	for _, addr := range all {
		count[addr] = map[string]int{}
	}
	for i, addr := range all {
		answer := zone(nil)
		serveUpstream(t, addr, func(q dns.Question, udp bool) *dns.Msg {
			mu.Lock()
			if begun[q.Name] == "" {
				begun[q.Name] = addr
			}
			count[addr][q.Name+dns.TypeToString[q.Qtype]]++
			mu.Unlock()
			if i == 1 {
				return nil
			}
			return answer(q, udp)
		})
	}
	r := &Resolver{ResolvConf: resolvConf(t, "nameserver 127.0.0.11\nnameserver 127.0.0.12\nnameserver 127.0.0.13\n"+
		"options timeout:1 attempts:3 rotate\n")}
	var group sync.WaitGroup
	for i := range 30 {
		group.Go(func() {
			if _, _, err := r.Lookup(t.Context(), fmt.Sprintf("m%d.example.", i)); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	mu.Lock()
	defer mu.Unlock() // a server may be late
	first := map[string]int{}
	for _, addr := range begun {
		first[addr]++
	}
	for _, addr := range all {
		if first[addr] < 5 {
			t.Errorf("%s was asked first %d times of 30", addr, first[addr])
		}
		for question, n := range count[addr] {
			if n > 3 {
				t.Errorf("%s was asked %d times for %s", addr, n, question)
			}
		}
	}
}

// TestLongAnswers come by TCP; where a server takes none, the next one is asked.
func TestLongAnswers(t *testing.T) {
	if !inBox(t) {
		return
	}
	loopback(t)
	var records []string
	for i := range 60 {
		records = append(records, fmt.Sprintf("many.example. 5 IN A 192.0.2.%d", i))
	}
	whole := zone(nil, records...)
	short := func(q dns.Question, udp bool) *dns.Msg {
		if udp && q.Qtype == dns.TypeA {
			return &dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}}
		}
		return whole(q, udp)
	}
	// By TCP it breaks off.
	serveUpstream(t, "127.0.0.11", func(q dns.Question, udp bool) *dns.Msg {
		if !udp {
			return nil
		}
		return short(q, udp)
	})
	serveUpstream(t, "127.0.0.12", short)
	r := &Resolver{ResolvConf: resolvConf(t, "nameserver 127.0.0.11\nnameserver 127.0.0.12\noptions timeout:1\n")}
	if got, _, err := r.Lookup(t.Context(), "many.example."); err != nil || len(got) != 60 {
		t.Errorf("got %d addresses, %v", len(got), err)
	}
}

func TestFourthNameServerIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	r := &Resolver{Logger: slog.New(slog.NewTextHandler(&log, nil)), ResolvConf: resolvConf(t,
		"nameserver 127.0.0.1\nnameserver elsewhere\nnameserver 127.0.0.2\nnameserver ::1\nnameserver 127.0.0.4\n"+
			"options attempts:99 timeout:99 ndots:99")}
	for range 2 {
		got, err := r.config()
		want := dns.ClientConfig{
			Servers: []string{"127.0.0.1", "127.0.0.2", "::1"}, Search: []string{}, Port: "53", Ndots: 15, Timeout: 30, Attempts: 5}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if got := log.String(); strings.Count(got, "only the first three name servers are asked") != 1 || !strings.Contains(got, "127.0.0.4") {
		t.Errorf("logged %s", got)
	}
}

func TestChangedNameServerIsAsked(t *testing.T) {
	s := newNameServer(t)
	s.set("a.example. A", "a.example. 10 IN A 10.0.0.1")
	r := s.resolver(t, "")
	text, err := os.ReadFile(r.ResolvConf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.ResolvConf, []byte("nameserver 127.0.0.99\noptions timeout:1 attempts:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Lookup(t.Context(), "a.example."); err == nil {
		t.Error("found without a server")
	}
	if err := os.WriteFile(r.ResolvConf, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := r.Lookup(t.Context(), "a.example."); err != nil || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}
