package lb

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// wires is a switch: which station has which address.
type wires struct {
	mu  sync.Mutex
	has map[netip.Addr]map[frame.MAC]bool
	two int // how often two stations were seen with one address
}

func (w *wires) set(ip netip.Addr, mac frame.MAC, has bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.has[ip] == nil {
		w.has[ip] = map[frame.MAC]bool{}
	}
	if delete(w.has[ip], mac); has {
		w.has[ip][mac] = true
	}
	if len(w.has[ip]) > 1 {
		w.two++
	}
}

func (w *wires) owners(ip netip.Addr) []frame.MAC {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Keys(w.has[ip]), func(a, b frame.MAC) int { return slices.Compare(a[:], b[:]) })
}

// station is a host on the switch, whose network is 192.0.2.0/24 and 2001:db8::/64.
type station struct {
	wires *wires
	mac   frame.MAC

	mu     sync.Mutex
	down   bool
	fail   error // of Put
	claims []int // how many questions were asked before each claim
}

func (s *station) Find(ip netip.Addr, name string) (address.Link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := netip.MustParsePrefix("192.0.2.0/24").Contains(ip) || netip.MustParsePrefix("2001:db8::/64").Contains(ip)
	switch {
	case name == "" && !in:
		return address.Link{}, reason.Errorf(reason.NoLink, "no link has a network with %s", ip)
	case s.down:
		return address.Link{}, reason.Errorf(reason.LinkDown, "link eth0 has no carrier")
	}
	return address.Link{Index: 2, Name: "eth0", MAC: net.HardwareAddr(s.mac[:])}, nil
}

func (s *station) Put(_ address.Link, ip netip.Addr, end time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil && address.Lifetime(time.Until(end)) > 0 {
		s.wires.set(ip, s.mac, true)
	}
	return s.fail
}

func (s *station) Has(_ address.Link, ip netip.Addr) (bool, error) {
	return slices.Contains(s.wires.owners(ip), s.mac), nil
}

func (s *station) Remove(ip netip.Addr) (bool, error) {
	has, _ := s.Has(address.Link{}, ip)
	s.wires.set(ip, s.mac, false)
	return has, nil
}

func (s *station) Left() ([]netip.Addr, error) {
	s.wires.mu.Lock()
	defer s.wires.mu.Unlock()
	var left []netip.Addr
	for ip, owners := range s.wires.has {
		if owners[s.mac] {
			left = append(left, ip)
		}
	}
	return left, nil
}

func (s *station) Open(_ address.Link, ip netip.Addr) (Port, error) {
	return &port{station: s, ip: ip}, nil
}

// port answers a question with the other stations that had the address when it was asked.
type port struct {
	station *station
	ip      netip.Addr
	queue   []frame.MAC
	asked   int
	claimed bool
}

func (p *port) Announce() error {
	p.station.mu.Lock()
	defer p.station.mu.Unlock()
	if !p.claimed {
		p.station.claims = append(p.station.claims, p.asked)
	}
	p.claimed = true
	return nil
}

func (*port) Close() error { return nil }
func (p *port) Ask() error {
	p.asked++
	p.queue = slices.DeleteFunc(p.station.wires.owners(p.ip), func(m frame.MAC) bool { return m == p.station.mac })
	return nil
}

func (p *port) Answer(deadline time.Time) (frame.MAC, error) {
	if len(p.queue) == 0 {
		time.Sleep(time.Until(deadline))
		return frame.MAC{}, os.ErrDeadlineExceeded
	}
	mac := p.queue[0]
	p.queue = p.queue[1:]
	return mac, nil
}

// newAPI is client-go's fake clientset with the optimistic concurrency of leases that an API server has.
func newAPI() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	resource := coordination.SchemeGroupVersion.WithResource("leases")
	store := func(action clienttesting.Action, object runtime.Object, check func(*coordination.Lease) error,
		write func(runtime.Object) error,
	) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		lease, ok := object.(*coordination.Lease)
		if !ok {
			return false, nil, nil
		}
		lease = lease.DeepCopy()
		if err := check(lease); err != nil {
			return true, nil, err
		}
		version++
		lease.Namespace, lease.ResourceVersion = action.GetNamespace(), strconv.Itoa(version)
		return true, lease, write(lease)
	}
	client.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, _ := action.(clienttesting.CreateAction)
		return store(action, create.GetObject(), func(*coordination.Lease) error { return nil }, func(o runtime.Object) error {
			return client.Tracker().Create(resource, o, action.GetNamespace())
		})
	})
	client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update, _ := action.(clienttesting.UpdateAction)
		return store(action, update.GetObject(), func(l *coordination.Lease) error {
			there, err := client.Tracker().Get(resource, action.GetNamespace(), l.Name)
			if err != nil {
				return err
			}
			if is, ok := there.(*coordination.Lease); ok && is.ResourceVersion != l.ResourceVersion {
				return apierrors.NewConflict(resource.GroupResource(), l.Name, errors.New("changed"))
			}
			return nil
		}, func(o runtime.Object) error { return client.Tracker().Update(resource, o, action.GetNamespace()) })
	})
	return client
}

// leaseOf is a lease that a node which is gone has left.
func leaseOf(ip netip.Addr) *coordination.Lease {
	l := &coordination.Lease{}
	l.Name, l.Labels = LeaseName(ip), leaseLabels
	return l
}
