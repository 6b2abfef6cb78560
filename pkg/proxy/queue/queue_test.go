package queue

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// door notes who was let in, in that order, and how many were served at a time.
type door struct {
	*Queue
	t     *testing.T
	group sync.WaitGroup

	mu   sync.Mutex
	in   []string
	now  map[string]int
	peak int
}

func newDoor(t *testing.T, most, length int) *door {
	t.Helper()
	d := &door{t: t, Queue: &Queue{}, now: map[string]int{}}
	d.SetLimits(most, length)
	return d
}

// come has a machine come for so long, unless its request is over before.
func (d *door) come(client string, stay time.Duration, done <-chan struct{}) {
	d.group.Go(func() {
		leave, err := d.Enter(Request{From: netip.MustParseAddr(client), Done: done})
		d.mu.Lock()
		if err != nil {
			d.in = append(d.in, client+": "+err.Error())
			d.mu.Unlock()
			return
		}
		d.in = append(d.in, client)
		d.now[client]++
		d.peak = max(d.peak, len(d.now))
		d.mu.Unlock()
		time.Sleep(stay)
		d.mu.Lock()
		if d.now[client]--; d.now[client] == 0 {
			delete(d.now, client)
		}
		d.mu.Unlock()
		leave()
	})
	synctest.Wait()
}

// want compares who was let in. In which order is not to be seen of those that were at the same moment.
func (d *door) want(in ...string) {
	d.t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff(slices.Sorted(slices.Values(in)), slices.Sorted(slices.Values(d.in))); diff != "" {
		d.t.Errorf("let in (-want +got):\n%s", diff)
	}
}

// empty waits until all have gone, and looks that nothing is left.
func (d *door) empty() {
	d.t.Helper()
	d.group.Wait()
	time.Sleep(2 * hold)
	d.Queue.mu.Lock()
	defer d.Queue.mu.Unlock()
	if len(d.machines) != 0 || d.served != 0 || d.waiting.Len() != 0 {
		d.t.Errorf("%d machines, %d served, %d waiting are left", len(d.machines), d.served, d.waiting.Len())
	}
}

func at(i int) string { return fmt.Sprintf("192.0.2.%d", i) }

func TestOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, want := newDoor(t, 3, 100), []string{}
		for i := range 50 {
			d.come(at(i), 10*time.Second, nil)
			want = append(want, at(i))
		}
		for i := 3; i < len(want); i += 3 {
			d.want(want[:i]...)
			time.Sleep(10*time.Second + hold)
		}
		d.group.Wait()
		d.want(want...)
		if d.peak != 3 {
			t.Errorf("%d machines were served at a time, want 3", d.peak)
		}
		d.empty()
	})
}

// Whatever a machine asks for at a time, it has one place, and one in the queue; of IPv6 a /64 is a machine.
func TestMachineHasOnePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, 1, 100)
		d.come("2001:db8::1", time.Minute, nil)
		d.come("192.0.2.1", time.Minute, nil)
		d.come("192.0.2.2", time.Minute, nil)
		d.come("2001:db8::2", time.Minute, nil)
		d.come("192.0.2.1", time.Minute, nil)
		d.want("2001:db8::1", "2001:db8::2")
		time.Sleep(time.Minute + hold)
		synctest.Wait()
		d.mu.Lock()
		n := d.now["192.0.2.1"]
		d.mu.Unlock()
		if n != 2 {
			t.Errorf("%d transfers of the next machine are under way, want both", n)
		}
		d.group.Wait()
		d.empty()
	})
}

// Between two files a machine keeps its place, for as long as firmware needs; not for ever.
func TestPlaceIsKeptBetweenFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, 1, 100)
		d.come(at(1), 10*time.Second, nil)
		d.come(at(2), 10*time.Second, nil)
		time.Sleep(10*time.Second + hold/2)
		d.come(at(1), 10*time.Second, nil) // the next file
		d.want(at(1), at(1))
		time.Sleep(10*time.Second + 2*hold)
		d.come(at(1), 10*time.Second, nil)
		d.want(at(1), at(1), at(2))
		d.group.Wait()
		d.want(at(1), at(1), at(2), at(1))
		d.empty()
	})
}

func TestThoseWhoGoAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, 1, 100)
		d.come(at(1), 10*time.Second, nil)
		gone := make(chan struct{})
		d.come(at(2), time.Second, gone)
		d.come(at(3), time.Second, nil)
		close(gone)
		d.want(at(1), at(2)+": the machine has gone")
		tired := errors.New("tired")
		d.group.Go(func() {
			_, err := d.Enter(Request{From: netip.MustParseAddr(at(4)), While: func() error { return tired }})
			if !errors.Is(err, tired) {
				t.Errorf("got %v", err)
			}
		})
		d.group.Wait()
		d.want(at(1), at(2)+": the machine has gone", at(3))
		d.empty()
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		g := NewGroup()
		registry.MustRegister(g)
		g.SetLimits("off", 0, 0)
		g.SetLimits("files", 1, 1)
		d := &door{t: t, Queue: g.Route("files"), now: map[string]int{}}
		d.come(at(1), 16*time.Second, nil)
		d.come(at(2), 10*time.Second, nil)
		d.come(at(3), 10*time.Second, nil)
		for _, client := range []string{at(2), at(4)} { // also one that waits already
			if _, err := d.Enter(Request{From: netip.MustParseAddr(client), Retries: true}); !errors.Is(err, ErrBusy) {
				t.Errorf("got %v", err)
			}
		}
		if leave, err := d.Enter(Request{From: netip.MustParseAddr(at(1)), Retries: true}); err != nil {
			t.Errorf("a machine that is served got %v", err)
		} else {
			leave()
		}
		d.want(at(1), at(3)+": too many machines wait")
		want := `# HELP stack_proxy_queue_limit_machines How many machines a route serves at a time.
# TYPE stack_proxy_queue_limit_machines gauge
stack_proxy_queue_limit_machines{route="files"} 1
# HELP stack_proxy_queue_refused_total Requests and connections that could not wait, by reason.
# TYPE stack_proxy_queue_refused_total counter
stack_proxy_queue_refused_total{reason="full",route="files"} 1
stack_proxy_queue_refused_total{reason="retry",route="files"} 2
# HELP stack_proxy_queue_served_machines How many machines a route with a bound serves now.
# TYPE stack_proxy_queue_served_machines gauge
stack_proxy_queue_served_machines{route="files"} 1
# HELP stack_proxy_queue_waiting_machines How many machines wait to be served.
# TYPE stack_proxy_queue_waiting_machines gauge
stack_proxy_queue_waiting_machines{route="files"} 1
`
		err := testutil.GatherAndCompare(registry, strings.NewReader(want), "stack_proxy_queue_limit_machines",
			"stack_proxy_queue_refused_total", "stack_proxy_queue_served_machines", "stack_proxy_queue_waiting_machines")
		if err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
		if got := d.RetryAfter(); got != time.Second {
			t.Errorf("come again after %v, before anybody has waited", got)
		}
		d.group.Wait()
		if got := d.RetryAfter(); got != 2*time.Second { // an eighth of 17 s
			t.Errorf("come again after %v", got)
		}
		d.empty()
	})
}

func TestLimitsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, want := newDoor(t, 4, 100), []string{}
		for i := range 20 {
			d.come(at(i), 10*time.Second, nil)
			want = append(want, at(i))
		}
		d.want(want[:4]...)
		d.SetLimits(2, 100) // those that are served stay
		time.Sleep(10*time.Second + hold)
		d.want(want[:6]...)
		d.SetLimits(5, 100)
		d.want(want[:9]...)
		d.SetLimits(0, 0)
		d.want(want...)
		if d.On() {
			t.Error("there is a bound")
		}
		d.come(at(99), time.Second, nil) // is not counted
		d.SetLimits(1, 100)
		d.group.Wait()
		d.come(at(100), time.Second, nil)
		d.group.Wait()
		d.want(append(want, at(99), at(100))...)
		d.empty()
	})
}

func TestManyAtOnce(t *testing.T) {
	q := &Queue{}
	q.SetLimits(3, 1000)
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for range 50 {
				done := make(chan struct{})
				if i%5 == 0 {
					time.AfterFunc(time.Duration(i)*time.Microsecond, func() { close(done) })
				}
				leave, err := q.Enter(Request{From: netip.MustParseAddr(at(i % 4)), Done: done})
				if err == nil {
					leave()
				}
			}
		})
	}
	time.AfterFunc(10*time.Millisecond, func() { q.SetLimits(1, 1000) })
	time.AfterFunc(300*time.Millisecond, func() { q.SetLimits(0, 0) })
	group.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting.Len() != 0 {
		t.Errorf("%d machines wait", q.waiting.Len())
	}
}
