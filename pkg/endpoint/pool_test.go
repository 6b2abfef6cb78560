package endpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errTest = errors.New("refused")

func at(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(n >> 8), byte(n)}), 80)
}

func fixedPool(n int, byClient bool) *Pool {
	var addrs []netip.AddrPort
	for i := range n {
		addrs = append(addrs, at(i))
	}
	return NewPool(Config{Route: "r", Sources: []Source{Fixed(addrs...)}, ByClient: byClient})
}

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(n >> 8), byte(n)}) }

func TestRoundRobinIsFair(t *testing.T) {
	p := fixedPool(3, false)
	counts := map[netip.AddrPort]int{}
	for i := range 300 {
		addr, err := p.Pick(client(i))
		if err != nil {
			t.Fatal(err)
		}
		counts[addr]++
	}
	for addr, n := range counts {
		if n != 100 {
			t.Errorf("%s was picked %d times of 300", addr, n)
		}
	}
}

// Maglev: a client stays where it is, shares are even, and one endpoint less moves few of the others' clients.
func TestMaglev(t *testing.T) {
	const clients = 5000
	before, after := fixedPool(10, true), fixedPool(9, true)
	counts := map[netip.AddrPort]int{}
	moved := 0
	for i := range clients {
		a, _ := before.Pick(client(i))
		again, _ := before.Pick(client(i))
		if a != again {
			t.Fatalf("client %d went to %s and to %s", i, a, again)
		}
		counts[a]++
		if b, _ := after.Pick(client(i)); b != a && a != at(9) {
			moved++
		}
	}
	for addr, n := range counts {
		if n < clients/10*7/10 || n > clients/10*13/10 {
			t.Errorf("%s has %d of %d clients", addr, n, clients)
		}
	}
	if moved > clients/20 {
		t.Errorf("%d of %d clients moved although their endpoint stayed", moved, clients)
	}
}

func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fixedPool(3, false)
		bad := p.view.Load().all[0]
		offered := func() bool {
			for range 6 {
				if addr, _ := p.Pick(client(0)); addr == bad.Addr {
					return true
				}
			}
			return false
		}
		fail := func(e *Endpoint, times int) {
			for range times {
				e.Failed(errTest)
			}
		}
		fail(bad, 2)
		bad.Succeeded()
		fail(bad, 2)
		if !offered() {
			t.Fatal("ejected although a success lay between the failures")
		}
		fail(bad, 1)
		if offered() {
			t.Fatal("still offered after three failures in a row")
		}
		other := p.view.Load().all[1]
		fail(other, 10)
		if s := p.Status(); s[1].Health != "healthy" {
			t.Errorf("more than half of the endpoints are ejected: %v", s)
		}
		time.Sleep(5*time.Second + time.Millisecond)
		if !offered() {
			t.Error("not on trial again after 5 s")
		}
		fail(bad, 3)
		time.Sleep(9 * time.Second)
		if offered() {
			t.Error("the second ejection in a row did not last twice as long")
		}
		time.Sleep(time.Second + time.Millisecond)
		if !offered() {
			t.Error("not on trial again after 10 s")
		}
		bad.row.Store(1)
		bad.Succeeded()
		fail(bad, 3)
		time.Sleep(5*time.Second + time.Millisecond)
		if !offered() {
			t.Error("a success did not set the back-off back")
		}
	})
}

func TestTriedEndpointsAreLeftOut(t *testing.T) {
	p := fixedPool(3, false)
	var tried []*Endpoint
	for range 3 {
		e, err := p.Acquire(client(0), tried...)
		if err != nil {
			t.Fatal(err)
		}
		for _, before := range tried {
			if before == e {
				t.Fatalf("%s was offered again", e.Addr)
			}
		}
		tried = append(tried, e)
	}
	if _, err := p.Acquire(client(0), tried...); !errors.Is(err, ErrNone) {
		t.Errorf("got %v, want %v", err, ErrNone)
	}
}

func TestFallback(t *testing.T) {
	p := NewPool(Config{Route: "r", Sources: []Source{Fixed()}})
	pick := func(members ...Member) map[netip.AddrPort]bool {
		p.update(0, members, nil)
		got := map[netip.AddrPort]bool{}
		for range 10 {
			if addr, err := p.Pick(client(0)); err == nil {
				got[addr] = true
			}
		}
		return got
	}
	if got := pick(Member{Addr: at(0), Fallback: true}, Member{Addr: at(1)}); got[at(0)] || !got[at(1)] {
		t.Errorf("ready and terminating: %v", got)
	}
	if got := pick(Member{Addr: at(0), Fallback: true}); !got[at(0)] {
		t.Errorf("terminating only: %v", got)
	}
}

func TestLoopIsLeftOut(t *testing.T) {
	p := NewPool(Config{
		Route: "r", Sources: []Source{Fixed(at(0))}, Self: func(a netip.AddrPort) bool { return a == at(0) },
	})
	if err := p.Ready(); !errors.Is(err, ErrLoop) {
		t.Errorf("Ready() = %v", err)
	}
}

func TestLastAnswerHolds(t *testing.T) {
	p := NewPool(Config{Route: "r", Sources: []Source{Fixed()}})
	p.update(0, nil, errTest)
	if err := p.Ready(); !errors.Is(err, errTest) {
		t.Errorf("Ready() = %v before any answer", err)
	}
	p.update(0, []Member{{Addr: at(1)}}, nil)
	p.update(0, nil, errTest)
	if addr, err := p.Pick(client(0)); err != nil || addr != at(1) || p.Ready() != nil {
		t.Errorf("Pick() = %v, %v, Ready() = %v after a failed lookup", addr, err, p.Ready())
	}
}

// told is a source that says what the test has it say.
type told struct {
	name    string
	members chan []Member
}

func (s told) String() string { return s.name }

func (s told) Watch(ctx context.Context, _ <-chan struct{}, update func([]Member, error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-s.members:
			update(m, nil)
		}
	}
}

// A pool in another's place knows what that one knew of the same backends, until it is told otherwise.
func TestSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same, other := told{"same", make(chan []Member)}, told{"other", make(chan []Member)}
		before := NewPool(Config{Route: "r", Sources: []Source{same, Fixed(at(7))}})
		before.update(0, []Member{{Addr: at(1)}}, nil)
		next := NewPool(Config{Route: "r", Sources: []Source{other, same, Fixed(at(8))}, Before: before})
		picks := func() map[netip.AddrPort]bool {
			synctest.Wait()
			got := map[netip.AddrPort]bool{}
			for range 10 {
				if addr, err := next.Pick(client(0)); err == nil {
					got[addr] = true
				}
			}
			return got
		}
		if got := picks(); len(got) != 2 || !got[at(1)] || !got[at(8)] {
			t.Errorf("from the beginning: %v", got)
		}
		if next.config.Before != nil {
			t.Error("the pool holds on to the one before")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- next.Run(ctx) }()
		same.members <- []Member{{Addr: at(2)}}
		if got := picks(); len(got) != 2 || !got[at(2)] || !got[at(8)] {
			t.Errorf("told otherwise: %v", got)
		}
		cancel()
		<-done
	})
}

func BenchmarkAcquire(b *testing.B) {
	for _, byClient := range []bool{false, true} {
		b.Run(fmt.Sprintf("by client %v", byClient), func(b *testing.B) {
			p := fixedPool(5, byClient)
			c := client(7)
			b.ReportAllocs()
			for b.Loop() {
				e, err := p.Acquire(c)
				if err != nil {
					b.Fatal(err)
				}
				e.Release()
			}
		})
	}
}

// TestAwaitedBackendsAreToldWithinASecond: a name server that is not there takes many seconds to fail.
func TestAwaitedBackendsAreToldWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quick, slow := answersAfter{"quick:80", 100 * time.Millisecond}, answersAfter{"slow:80", 10 * time.Second}
		var log strings.Builder
		p := NewPool(Config{
			Route: "r", Sources: []Source{quick, slow, Fixed(at(1))}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Second)
		cancel()
		<-done // the pool writes no more into log
		got := log.String()
		if strings.Count(got, "still asking") != 1 || !strings.Contains(got, "backend=slow:80") {
			t.Errorf("logged %s", got)
		}
	})
}

// TestErrorsWrapErrNone: whatever the reason that a pool has no endpoint, its errors say so to errors.Is, and name the
// reason.
func TestErrorsWrapErrNone(t *testing.T) {
	refused := errors.New("the name server refused")
	source := &named{host: "backend.example", port: 80}
	for name, test := range map[string]struct {
		update func(*Pool)
		tried  int
		reason error
		want   string
	}{
		"not looked up yet": {update: func(*Pool) {}, want: "backend backend.example:80: not looked up yet"},
		"lookup failed": {
			update: func(p *Pool) { p.update(0, nil, refused) }, reason: refused,
			want: "backend backend.example:80: the name server refused",
		},
		"no such name": {
			update: func(p *Pool) { p.update(0, nil, ErrNotFound) }, reason: ErrNotFound,
			want: "backend backend.example:80: no such name",
		},
		"no address": {update: func(p *Pool) { p.update(0, nil, nil) }, want: "backend backend.example:80: no endpoint"},
		"all tried": {
			update: func(p *Pool) { p.update(0, members([]netip.Addr{at(0).Addr()}, 80), nil) }, tried: 1,
			want: "every endpoint was tried: no endpoint",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(Config{Route: "r", Sources: []Source{source}})
			test.update(p)
			var tried []*Endpoint
			for range test.tried {
				e, err := p.Acquire(client(0))
				if err != nil {
					t.Fatal(err)
				}
				e.Release()
				tried = append(tried, e)
			}
			_, err := p.Acquire(client(0), tried...)
			if !errors.Is(err, ErrNone) || test.reason != nil && !errors.Is(err, test.reason) ||
				err.Error() != "failed to pick an endpoint of route r: "+test.want {
				t.Errorf("got %v, want ErrNone: %s", err, test.want)
			}
		})
	}
}

// answersAfter is a source that takes its time.
type answersAfter struct {
	name string
	wait time.Duration
}

func (a answersAfter) String() string { return a.name }

func (a answersAfter) Watch(ctx context.Context, _ <-chan struct{}, update func([]Member, error)) {
	select {
	case <-ctx.Done():
	case <-time.After(a.wait):
		update(members([]netip.Addr{at(0).Addr()}, 80), nil)
		<-ctx.Done()
	}
}
