package lb

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

var errAway = errors.New("connection refused")

// way is one node's way to the API, which may be cut for leases: requests fail, and a watch stands still silently.
type way struct {
	API
	mu    sync.Mutex
	cut   bool
	hangs bool // statuses of Services are not taken
	moved *sync.Cond
}

func newWay(api API) *way {
	w := &way{API: api}
	w.moved = sync.NewCond(&w.mu)
	return w
}

// IsWatchListSemanticsUnSupported is client-go's question whether it talks to its fake.
func (*way) IsWatchListSemanticsUnSupported() bool { return true }

func (w *way) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	w.moved.Broadcast()
}

// wait waits until it is not cut.
func (w *way) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.cut {
		w.moved.Wait()
	}
}

func (w *way) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return errAway
	}
	return nil
}

func (w *way) hang() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hangs = true
}

func (w *way) CoreV1() typedcore.CoreV1Interface { return wayCore{w.API.CoreV1(), w} }

type wayCore struct {
	typedcore.CoreV1Interface
	way *way
}

func (c wayCore) Services(namespace string) typedcore.ServiceInterface {
	return wayServices{c.CoreV1Interface.Services(namespace), c.way}
}

type wayServices struct {
	typedcore.ServiceInterface
	way *way
}

func (s wayServices) UpdateStatus(ctx context.Context, service *core.Service, o meta.UpdateOptions) (*core.Service, error) {
	s.way.mu.Lock()
	hangs := s.way.hangs
	s.way.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.ServiceInterface.UpdateStatus(ctx, service, o)
}

func (w *way) CoordinationV1() typedcoordination.CoordinationV1Interface {
	return wayGroup{w.API.CoordinationV1(), w}
}

type wayGroup struct {
	typedcoordination.CoordinationV1Interface
	way *way
}

func (g wayGroup) Leases(namespace string) typedcoordination.LeaseInterface {
	return wayLeases{g.CoordinationV1Interface.Leases(namespace), g.way}
}

type wayLeases struct {
	typedcoordination.LeaseInterface
	way *way
}

func (l wayLeases) Get(ctx context.Context, name string, o meta.GetOptions) (*coordination.Lease, error) {
	if err := l.way.err(); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Get(ctx, name, o)
}

func (l wayLeases) Create(ctx context.Context, lease *coordination.Lease, o meta.CreateOptions) (*coordination.Lease, error) {
	if err := l.way.err(); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Create(ctx, lease, o)
}

func (l wayLeases) Update(ctx context.Context, lease *coordination.Lease, o meta.UpdateOptions) (*coordination.Lease, error) {
	if err := l.way.err(); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Update(ctx, lease, o)
}

func (l wayLeases) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, o meta.PatchOptions, sub ...string,
) (*coordination.Lease, error) {
	if err := l.way.err(); err != nil {
		return nil, err
	}
	return l.LeaseInterface.Patch(ctx, name, kind, data, o, sub...)
}

func (l wayLeases) Watch(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
	from, err := l.LeaseInterface.Watch(ctx, o)
	if err != nil {
		return nil, err
	}
	w := &wayWatch{Interface: from, events: make(chan watch.Event), done: make(chan struct{})}
	go func() {
		defer close(w.events)
		for e := range from.ResultChan() {
			l.way.wait()
			select {
			case w.events <- e:
			case <-w.done:
				return
			}
		}
	}()
	return w, nil
}

// wayWatch is a watch whose events wait while the way is cut.
type wayWatch struct {
	watch.Interface
	events chan watch.Event
	once   sync.Once
	done   chan struct{}
}

func (w *wayWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *wayWatch) Stop() {
	w.once.Do(func() { close(w.done) })
	w.Interface.Stop()
}

// ownerOf is the node that has the address.
func (c *cluster) ownerOf(ip string) (owner *member, others []*member) {
	c.owner(ip)
	at := c.wires.owners(netip.MustParseAddr(ip))[0]
	for _, n := range c.nodes {
		if n.mac == at {
			owner = n
		} else {
			others = append(others, n)
		}
	}
	return owner, others
}

// keeps waits until a node keeps an address without the API, and looks that it is there all of the time.
func (c *cluster) keeps(owner *member, ip string, leases int) {
	c.t.Helper()
	c.until("an address without the API", func() bool { return testutil.ToFloat64(owner.c.metrics.alone) == 1 })
	for end := time.Now().Add(time.Duration(leases) * c.times.Lease); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if owners := c.wires.owners(netip.MustParseAddr(ip)); len(owners) != 1 || owners[0] != owner.mac {
			c.t.Fatalf("%v have the address", owners)
		}
	}
}

// While the API is away for everybody the address stays where it is, also when the API is back.
func TestAddressStaysWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.service("web", testIP)
	owner, _ := c.ownerOf(testIP)
	for _, n := range c.nodes {
		n.api.set(true)
	}
	c.keeps(owner, testIP, 3)
	for _, n := range c.nodes {
		n.api.set(false)
	}
	c.until("renewals", func() bool { return testutil.ToFloat64(owner.c.metrics.alone) == 0 })
	time.Sleep(2 * quick.Lease)
	if owners := c.wires.owners(netip.MustParseAddr(testIP)); len(owners) != 1 || owners[0] != owner.mac {
		t.Errorf("%v have the address when the API is back", owners)
	}
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// The API is there for the others: one of them takes the lease and announces itself, and the former holder gives way at
// once, by what it hears alone.
func TestCutOffHolderGivesWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.service("web", testIP)
	owner, others := c.ownerOf(testIP)
	owner.api.set(true)
	c.until("an address without the API", func() bool { return testutil.ToFloat64(owner.c.metrics.alone) == 1 })
	both := time.Duration(0)
	for end := time.Now().Add(6 * quick.Lease); time.Now().Before(end); time.Sleep(time.Millisecond) {
		switch owners := c.wires.owners(netip.MustParseAddr(testIP)); {
		case len(owners) == 0:
			t.Fatal("nobody has the address")
		case len(owners) == 2:
			both += time.Millisecond
		case owners[0] == others[0].mac:
			end = time.Now() // it has moved
		}
	}
	c.owner(testIP, others[0].mac)
	if both > time.Second {
		t.Errorf("both had the address for %v", both)
	}
	if !owner.log.has("another station has what the lease allows") {
		t.Error("it does not say why it gave way")
	}
	owner.api.set(false)
	time.Sleep(2 * quick.Lease)
	c.owner(testIP, others[0].mac)
}

// While the API is away a station that announces the address has it: the holder cannot know that it is none of ours.
func TestHolderWithoutTheAPIGivesWayToAStranger(t *testing.T) {
	t.Parallel()
	ip := netip.MustParseAddr(testIP)
	for name, speak := range map[string]func(*cluster){
		"announces": func(c *cluster) { c.wires.say(ip, probe.Heard{Kind: probe.Claim, MAC: stranger}) },
		"answers":   func(c *cluster) { c.wires.set(ip, stranger, true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.service("web", testIP)
			owner, _ := c.ownerOf(testIP)
			owner.api.set(true)
			c.keeps(owner, testIP, 1)
			speak(c)
			c.until("the address gone", func() bool { return !owner.ours(ip) })
			c.wires.set(ip, stranger, false)
			owner.api.set(false)
			c.owner(testIP, owner.mac)
		})
	}
}

// A probe claims nothing: monitors probe, too.
func TestHolderWithoutTheAPIKeepsWhatIsProbed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.service("web", testIP)
	owner, _ := c.ownerOf(testIP)
	owner.api.set(true)
	c.keeps(owner, testIP, 1)
	c.wires.say(netip.MustParseAddr(testIP), probe.Heard{Kind: probe.Probing, MAC: frame.MAC{2, 0, 0, 0, 0, 0x98}})
	c.keeps(owner, testIP, 1)
}
