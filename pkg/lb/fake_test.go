package lb

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	meta1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// wires is a switch: which station has which address, and who listens for it.
type wires struct {
	mu    sync.Mutex
	has   map[netip.Addr]map[frame.MAC]bool
	ports map[*port]bool
	two   int // how often two stations were seen with one address
	// deaf are the stations that neither hear nor are heard, and hosts have the addresses of their nodes.
	deaf  map[frame.MAC]bool
	hosts map[netip.Addr]frame.MAC
}

// say tells the other stations' ports of an address.
func (w *wires) say(ip netip.Addr, h probe.Heard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.ports {
		if p.ip == ip && p.station.mac != h.MAC && !w.deaf[p.station.mac] && !w.deaf[h.MAC] {
			p.hears(h)
		}
	}
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
	claims []int // how many probes were sent before each claim
	asked  int   // how many questions
	byHand bool  // somebody else gives it each address that it has

	bond frame.MAC // the link's Ethernet address in place of mac, where a bond has changed it

	neighbours <-chan struct{} // closed when its kernel says who they are; nil is at once
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
	case s.byHand && slices.Contains(s.wires.owners(ip), s.mac):
		return address.Link{}, reason.Errorf(reason.NodeAddress, "this node has %s already", ip)
	}
	mac := cmp.Or(s.bond, s.mac)
	return address.Link{
		Index: 2, Name: "eth0", MAC: net.HardwareAddr(mac[:]), Stations: hardware(mac), Source: s.host(),
	}, nil
}

// host is the address of the node.
func (s *station) host() netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, 2, 200 + s.mac[4] + s.mac[5]})
}

func (s *station) Neighbours(address.Link, netip.Addr) ([]netip.Addr, error) {
	if s.neighbours != nil {
		<-s.neighbours
	}
	s.wires.mu.Lock()
	defer s.wires.mu.Unlock()
	hosts := maps.Clone(s.wires.hosts)
	delete(hosts, s.host())
	return slices.Collect(maps.Keys(hosts)), nil
}

func (*station) Changed() {}

func (s *station) Put(_ address.Link, ip netip.Addr, end time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil && address.Lifetime(time.Until(end)) > 0 {
		s.wires.set(ip, s.mac, true)
	}
	return s.fail
}

func (s *station) Has(ip netip.Addr) (bool, error) {
	return slices.Contains(s.wires.owners(ip), s.mac), nil
}

func (s *station) ours(ip netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.byHand && slices.Contains(s.wires.owners(ip), s.mac)
}

func (s *station) Remove(ip netip.Addr) (bool, error) {
	found := s.ours(ip)
	if found {
		s.wires.set(ip, s.mac, false)
	}
	return found, nil
}

func (s *station) Open(_ address.Link, ip netip.Addr) (Port, error) {
	p := &port{station: s, ip: ip, queue: make(chan probe.Heard, 64)}
	s.wires.mu.Lock()
	defer s.wires.mu.Unlock()
	s.wires.ports[p] = true
	return p, nil
}

// port answers a question with the other stations that had the address when it was asked.
type port struct {
	station *station
	ip      netip.Addr
	queue   chan probe.Heard
	probes  int
	claimed bool
}

func (p *port) hears(h probe.Heard) {
	select {
	case p.queue <- h:
	default:
	}
}

func (p *port) Announce() error {
	p.station.mu.Lock()
	if !p.claimed {
		p.station.claims = append(p.station.claims, p.probes)
	}
	p.claimed = true
	p.station.mu.Unlock()
	p.station.wires.say(p.ip, probe.Heard{Kind: probe.Claim, MAC: p.station.mac})
	return nil
}

func (p *port) Close() error {
	p.station.wires.mu.Lock()
	defer p.station.wires.mu.Unlock()
	delete(p.station.wires.ports, p)
	return nil
}

func (p *port) Ask() error {
	p.station.mu.Lock()
	p.station.asked++
	p.station.mu.Unlock()
	p.ask(probe.Answer)
	return nil
}

func (p *port) Probe() error {
	p.probes++
	p.station.wires.say(p.ip, probe.Heard{Kind: probe.Probing, MAC: p.station.mac})
	p.ask(probe.Claim)
	return nil
}

func (p *port) ask(kind probe.Kind) {
	w := p.station.wires
	owners := w.owners(p.ip)
	w.mu.Lock()
	defer w.mu.Unlock()
	if host, is := w.hosts[p.ip]; is {
		owners = append(owners, host)
	}
	for _, mac := range owners {
		if mac != p.station.mac && !w.deaf[mac] && !w.deaf[p.station.mac] {
			p.hears(probe.Heard{Kind: kind, MAC: mac})
		}
	}
}

func (p *port) Hear(ctx context.Context, deadline time.Time) (probe.Heard, error) {
	select {
	case <-ctx.Done():
		return probe.Heard{}, ctx.Err()
	case h := <-p.queue:
		return h, nil
	case <-time.After(time.Until(deadline)):
		return probe.Heard{}, os.ErrDeadlineExceeded
	}
}

// newAPI is client-go's fake clientset with the optimistic concurrency of an API server: it refuses an update of a version
// that is not the newest, and an update of a Service's status changes nothing else of it.
func newAPI() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	leases := coordination.SchemeGroupVersion.WithResource("leases")
	services := core.SchemeGroupVersion.WithResource("services")
	for _, resource := range []schema.GroupVersionResource{leases, services} {
		store := func(action clienttesting.Action, object runtime.Object, create bool) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			object = object.DeepCopyObject()
			is, err := meta.Accessor(object)
			if err != nil {
				return true, nil, err
			}
			there, err := client.Tracker().Get(resource, action.GetNamespace(), is.GetName())
			if !create {
				if err != nil {
					return true, nil, err
				}
				was, err := meta.Accessor(there)
				if err != nil {
					return true, nil, err
				}
				if v := is.GetResourceVersion(); v != "" && v != was.GetResourceVersion() {
					return true, nil, apierrors.NewConflict(resource.GroupResource(), is.GetName(), errors.New("changed"))
				}
			}
			if next, ok := object.(*core.Service); ok && action.GetSubresource() == "status" {
				before, _ := there.(*core.Service)
				before = before.DeepCopy()
				before.Status = next.Status
				object, is = before, before
			}
			version++
			is.SetNamespace(action.GetNamespace())
			is.SetResourceVersion(strconv.Itoa(version))
			if create {
				is.SetCreationTimestamp(meta1.Now())
				return true, object, client.Tracker().Create(resource, object, action.GetNamespace())
			}
			return true, object, client.Tracker().Update(resource, object, action.GetNamespace())
		}
		client.PrependReactor("create", resource.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			create, _ := a.(clienttesting.CreateAction)
			return store(a, create.GetObject(), true)
		})
		client.PrependReactor("update", resource.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
			update, _ := a.(clienttesting.UpdateAction)
			return store(a, update.GetObject(), false)
		})
	}
	client.PrependReactor("patch", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch, _ := a.(clienttesting.PatchAction)
		var operations []struct {
			Op, Path string
			Value    any
		}
		if err := json.Unmarshal(patch.GetPatch(), &operations); err != nil {
			return true, nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		there, err := client.Tracker().Get(leases, a.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		lease := asLease(there).DeepCopy()
		for _, o := range operations {
			is, _ := o.Value.(string)
			annotation := strings.ReplaceAll(strings.TrimPrefix(o.Path, "/metadata/annotations/"), "~1", "/")
			was := lease.Annotations[annotation]
			if o.Path == "/spec/holderIdentity" && lease.Spec.HolderIdentity != nil {
				was = *lease.Spec.HolderIdentity
			}
			switch {
			case o.Path == "/spec/renewTime":
				stamp, err := time.Parse(meta1.RFC3339Micro, is)
				if err != nil {
					return true, nil, err
				}
				lease.Spec.RenewTime = new(meta1.NewMicroTime(stamp))
			case o.Op == "test" && was != is:
				return true, nil, apierrors.NewInvalid(schema.GroupKind{}, lease.Name, nil)
			case o.Op != "test" && annotation != o.Path:
				lease.Annotations[annotation] = is
			}
		}
		version++
		lease.ResourceVersion = strconv.Itoa(version)
		return true, lease, client.Tracker().Update(leases, lease, a.GetNamespace())
	})
	return client
}
