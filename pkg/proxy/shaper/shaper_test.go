package shaper

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// crowd are senders to clients, each connection a goroutine of its own.
type crowd struct {
	shaper *Shaper
	group  sync.WaitGroup
	sent   map[string]*atomic.Int64
}

func newCrowd(bits int64) *crowd {
	s := &Shaper{}
	s.SetRate(bits)
	return &crowd{shaper: s, sent: map[string]*atomic.Int64{}}
}

// join begins with connections of a client. Each sends pieces, with a pause behind each, until stop is closed.
func (c *crowd) join(client string, connections int, piece int64, pause time.Duration, stop <-chan struct{}) {
	addr := netip.MustParseAddr(client)
	if c.sent[client] == nil {
		c.sent[client] = &atomic.Int64{}
	}
	sent := c.sent[client]
	for range connections {
		c.group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				n, err := c.shaper.Take(stop, addr, piece, nil)
				if err != nil {
					return
				}
				sent.Add(n)
				time.Sleep(pause)
			}
		})
	}
}

// rates are what the clients get from now on, in bytes a second.
func (c *crowd) rates(d time.Duration) map[string]float64 {
	before := map[string]int64{}
	for client, n := range c.sent {
		before[client] = n.Load()
	}
	time.Sleep(d)
	got := map[string]float64{}
	for client, n := range c.sent {
		got[client] = float64(n.Load()-before[client]) / d.Seconds()
	}
	return got
}

func jain(rates map[string]float64) (index, total float64) {
	var squares float64
	for _, r := range rates {
		total += r
		squares += r * r
	}
	return total * total / (float64(len(rates)) * squares), total
}

func near(t *testing.T, what string, got, want, percent float64) {
	t.Helper()
	if math.Abs(got-want) > want*percent/100 {
		t.Errorf("%s: got %.0f, want %.0f", what, got, want)
	}
}

// The pause of a sender between two pieces is what writing them takes.
func TestClientsShareFairly(t *testing.T) {
	for name, test := range map[string]struct {
		bits     int64
		clients  int
		greedy   int // of them, with connections each
		each     int
		piece    int64
		pause    time.Duration
		measured time.Duration
	}{
		"ten of a hundred with 8 connections": {1e9, 100, 10, 8, 256 << 10, 200 * time.Microsecond, 10 * time.Second},
		"one of two with 64":                  {1e9, 2, 1, 64, 256 << 10, 500 * time.Microsecond, 10 * time.Second},
		"one of three with 200, small pieces": {1e8, 3, 1, 200, 1468, 100 * time.Microsecond, 10 * time.Second},
		"10 Gbit/s":                           {1e10, 20, 5, 4, 256 << 10, 50 * time.Microsecond, 2 * time.Second},
		"8 kbit/s":                            {8e3, 4, 2, 4, 4096, 0, 10 * time.Minute},
		"8 bit/s":                             {8, 2, 1, 3, 10, 0, 3 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, stop := newCrowd(test.bits), make(chan struct{})
				for i := range test.clients {
					connections := 1
					if i < test.greedy {
						connections = test.each
					}
					c.join(fmt.Sprintf("192.0.2.%d", i+1), connections, test.piece, test.pause, stop)
				}
				index, total := jain(c.rates(test.measured))
				if index < .999 {
					t.Errorf("Jain's index is %.4f", index)
				}
				near(t, "rate of all", total, float64(test.bits)/8, 1)
				close(stop)
				c.group.Wait()
			})
		})
	}
}

// Of 8 Mbit/s one client takes 100 kB/s only, since it is slow: the two others share the rest.
func TestUnusedShareGoesToTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCrowd(8e6), make(chan struct{})
		c.join("192.0.2.1", 1, 1000, 10*time.Millisecond, stop)
		c.join("192.0.2.2", 1, 4096, 0, stop)
		c.join("192.0.2.3", 5, 4096, 0, stop)
		got := c.rates(10 * time.Second)
		slow := got["192.0.2.1"] // each time it waits for the end of a turn
		if slow < 70e3 {
			t.Errorf("the slow client gets %.0f bytes a second, want nearly 100000", slow)
		}
		near(t, "one connection", got["192.0.2.2"], (1e6-slow)/2, 3)
		near(t, "five connections", got["192.0.2.3"], (1e6-slow)/2, 3)
		close(stop)
		c.group.Wait()
	})
}

func TestJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop, early := newCrowd(8e6), make(chan struct{}), make(chan struct{})
		c.join("192.0.2.1", 1, 4096, 0, stop)
		near(t, "alone", c.rates(10 * time.Second)["192.0.2.1"], 1e6, 1)
		c.join("192.0.2.2", 3, 4096, 0, early)
		got := c.rates(10 * time.Second) // the one that was alone is in no debt
		near(t, "first of two", got["192.0.2.1"], 5e5, 1)
		near(t, "second of two", got["192.0.2.2"], 5e5, 1)
		close(early)
		near(t, "alone again", c.rates(10 * time.Second)["192.0.2.1"], 1e6, 1)
		time.Sleep(time.Minute)
		c.join("192.0.2.2", 1, 4096, 0, stop) // it has no claim to what it left unused
		got = c.rates(time.Second)
		near(t, "first after a minute", got["192.0.2.1"], 5e5, 5)
		near(t, "second after a minute", got["192.0.2.2"], 5e5, 5)
		close(stop)
		c.group.Wait()
	})
}

func TestPauseSavesNoMoreThanABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCrowd(8e6), make(chan struct{})
		time.Sleep(time.Hour)
		c.join("192.0.2.1", 1, 1000, 0, stop)
		synctest.Wait()
		if got, most := c.sent["192.0.2.1"].Load(), int64(1e6*burst.Seconds())+2000; got > most {
			t.Errorf("%d bytes at once, want at most %d", got, most)
		}
		close(stop)
		c.group.Wait()
	})
}

func TestRateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCrowd(8e6), make(chan struct{})
		c.join("192.0.2.1", 2, 4096, time.Millisecond, stop)
		c.join("192.0.2.2", 2, 4096, time.Millisecond, stop)
		for _, bits := range []int64{8e6, 80e6, 80e3, 8e3, 16e6} {
			c.shaper.SetRate(bits)
			time.Sleep(100 * time.Millisecond)
			// What was granted by a rate before is no debt that would hold up all by the next one.
			d := time.Duration(float64(400*4096*8) / float64(bits) * float64(time.Second))
			index, total := jain(c.rates(d))
			if near(t, fmt.Sprintf("at %d bit/s", bits), total, float64(min(bits/8, 4*4096*1000)), 5); index < .99 {
				t.Errorf("at %d bit/s Jain's index is %.4f", bits, index)
			}
		}
		c.shaper.SetRate(1)
		time.Sleep(time.Minute)
		if waiting := c.shaper.waits(); waiting != 2 {
			t.Errorf("%d clients wait at 1 bit/s", waiting)
		}
		c.shaper.SetRate(0) // also for those who wait
		if _, total := jain(c.rates(time.Second)); total < 4*4096*900 {
			t.Errorf("%.0f bytes a second without a rate", total)
		}
		if c.shaper.On() {
			t.Error("the rate is on")
		}
		close(stop)
		c.group.Wait()
	})
}

// A client is an address, or a /64 of IPv6; one as IPv4 and mapped into IPv6 is the same.
func TestClientIsAnAddressOrA64(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := newCrowd(8e6), make(chan struct{})
		for i := range 5 {
			c.join(fmt.Sprintf("2001:db8::%d", i+1), 1, 4096, 0, stop)
		}
		c.join("2001:db8:0:1::1", 1, 4096, 0, stop)
		c.join("192.0.2.1", 1, 4096, 0, stop)
		c.join("::ffff:192.0.2.1", 1, 4096, 0, stop)
		got := c.rates(10 * time.Second)
		var network float64
		for i := range 5 {
			network += got[fmt.Sprintf("2001:db8::%d", i+1)]
		}
		near(t, "2001:db8::/64", network, 1e6/3, 1)
		near(t, "2001:db8:0:1::/64", got["2001:db8:0:1::1"], 1e6/3, 1)
		near(t, "192.0.2.1", got["192.0.2.1"]+got["::ffff:192.0.2.1"], 1e6/3, 1)
		close(stop)
		c.group.Wait()
	})
}

// waits is how many clients wait.
func (s *Shaper) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// A waiter that goes leaves nothing behind.
func TestWaitIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shaper{}
		s.SetRate(80) // a turn of 4 KiB takes seven minutes
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		if n, err := s.Take(nil, a, 100_000, nil); n != leastQuantum || err != nil {
			t.Fatalf("got %d bytes, %v", n, err)
		}
		done := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			if n, err := s.Take(done, a, 100_000, nil); n != 0 || !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %d bytes, %v", n, err)
			}
		})
		gone := errors.New("gone")
		group.Go(func() {
			started := time.Now()
			n, err := s.Take(nil, b, 100_000, func() error {
				if time.Since(started) > 5*time.Second {
					return gone
				}
				return nil
			})
			if n != 0 || !errors.Is(err, gone) {
				t.Errorf("got %d bytes, %v", n, err)
			}
		})
		time.Sleep(10 * time.Second)
		if n := s.waits(); n != 1 {
			t.Errorf("%d clients wait, want 1", n)
		}
		close(done)
		group.Wait()
		if n := s.waits(); n != 0 {
			t.Errorf("%d clients wait, want none", n)
		}
		time.Sleep(time.Hour)
		if _, _, granted := s.state(); granted != leastQuantum {
			t.Errorf("%d bytes were granted, those of two that have gone too", granted)
		}
	})
}

func TestReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shaper{}
		s.SetRate(8e6)
		addr, begun := netip.MustParseAddr("192.0.2.1"), time.Now()
		for range 1000 {
			n, err := s.Take(nil, addr, 10_000, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.Return(addr, n-1000)
		}
		near(t, "milliseconds for a million bytes", float64(time.Since(begun).Milliseconds()), 1000, 5)
	})
}

func TestTableForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shaper{}
		s.SetRate(1e9)
		for i := range 100_000 {
			addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			if _, err := s.Take(nil, addr, 100, nil); err != nil {
				t.Fatal(err)
			}
			if i%100 == 99 {
				time.Sleep(10 * time.Millisecond)
			}
		}
		if n := len(s.clients); n > 25_000 {
			t.Errorf("%d clients are remembered of 10,000 a second", n)
		}
	})
}

// As many as like change the rate, ask and cancel: for the race detector, and for what is left behind.
func TestManyAtOnce(t *testing.T) {
	s := &Shaper{}
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i := range 16 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 5)})
		group.Go(func() {
			for range 300 {
				done := make(chan struct{})
				if i%4 == 0 {
					time.AfterFunc(time.Duration(i)*time.Microsecond, func() { close(done) })
				}
				if n, err := s.Take(done, addr, 3000, nil); err == nil && i%3 == 0 {
					s.Return(addr, n/3)
				}
			}
		})
	}
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				s.SetRate([]int64{1, 8e3, 1e9, 0}[i%4])
			}
		}
	}()
	group.Wait()
	close(stop)
	<-changed
	if n := s.waits(); n != 0 {
		t.Errorf("%d clients wait", n)
	}
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		g := NewGroup()
		registry.MustRegister(g)
		g.SetRate("off", 0)
		g.SetRate("files", 8e6)
		s := g.Route("files")
		for i := range 4 {
			if _, err := s.Take(nil, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1000, nil); err != nil {
				t.Fatal(err)
			}
		}
		want := `# HELP stack_proxy_rate_clients Client addresses that a route with a rate has sent to within a second, or that wait.
# TYPE stack_proxy_rate_clients gauge
stack_proxy_rate_clients{route="files"} 4
# HELP stack_proxy_rate_limit_bytes_per_second What a route may send to all clients together.
# TYPE stack_proxy_rate_limit_bytes_per_second gauge
stack_proxy_rate_limit_bytes_per_second{route="files"} 1e+06
# HELP stack_proxy_rate_sent_bytes_total Bytes that a route with a rate was let send.
# TYPE stack_proxy_rate_sent_bytes_total counter
stack_proxy_rate_sent_bytes_total{route="files"} 4000
`
		err := testutil.GatherAndCompare(registry, strings.NewReader(want), "stack_proxy_rate_clients",
			"stack_proxy_rate_limit_bytes_per_second", "stack_proxy_rate_sent_bytes_total")
		if err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
	})
}

// What a route without a rate costs, and one with a rate that nobody waits for.
func BenchmarkTake(b *testing.B) {
	addr := netip.MustParseAddr("192.0.2.1")
	for name, bits := range map[string]int64{"off": 0, "on": 1e15} {
		b.Run(name, func(b *testing.B) {
			s := &Shaper{}
			s.SetRate(bits)
			b.ReportAllocs()
			for b.Loop() {
				if s.On() {
					if _, err := s.Take(nil, addr, 1000, nil); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
