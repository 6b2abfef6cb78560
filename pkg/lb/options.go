// Package lb gives the addresses of Services of type LoadBalancer to one node at a time; docs/design/decisions.md says
// why it is built as it is. This package is the controller: it follows the API, and runs one task for each address.
package lb

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/forward"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/service"
	"github.com/tinkerbell/stack/pkg/lb/wire"
)

// Options are what a controller needs.
type Options struct {
	// Client reaches the API: services, endpointslices, nodes to watch; services/status, events and leases to write.
	Client API
	// Leases reaches it for leases alone. A request that hangs must not make the next one hang; nil is Client's.
	Leases typedcoordination.LeasesGetter
	// Node is this node's name, and Identity tells its boot from others; no other node has the same.
	Node, Identity string
	// Namespace is where the leases are.
	Namespace string
	// Watch is the namespace of the Services whose addresses are announced; empty is all.
	Watch string
	// LeaseOwner is the object of that namespace with which the leases go; nil is none.
	LeaseOwner *meta.OwnerReference
	Services   service.Options
	Times      elect.Times
	// Bounds are those of the TCP connections of Services in mode proxy.
	Bounds forward.Bounds
	// ProbeInterval is the least time between two questions for an address; zero is probe.WatchInterval.
	ProbeInterval time.Duration
	// Host is this host's links and addresses.
	Host Host
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// API is what of the Kubernetes API is used; kubernetes.Interface has it. The whole of that would make the program
// twice as large.
type API interface {
	CoreV1() typedcore.CoreV1Interface
	DiscoveryV1() typeddiscovery.DiscoveryV1Interface
	CoordinationV1() typedcoordination.CoordinationV1Interface
}

// Host is what is done with this host's links; [Network] is the real one.
type Host interface {
	Find(ip netip.Addr, name string) (address.Link, error)
	Put(link address.Link, ip netip.Addr, end time.Time) error
	Has(ip netip.Addr) (bool, error)
	Changed()
	Remove(ip netip.Addr) (found bool, err error)
	Neighbours(link address.Link, ip netip.Addr) ([]netip.Addr, error)
	Open(link address.Link, ip netip.Addr) (Port, error)
}

// Port is a link as far as one address is concerned; see wire.Port.
type Port interface {
	Announce() error
	probe.Port
	Close() error
}

// Network is the Host of a network namespace.
type Network struct {
	*address.Manager
	wires wire.Wires
}

// NewNetwork makes the Host of a manager's namespace.
func NewNetwork(m *address.Manager) *Network { return &Network{Manager: m} }

// Open implements Host.
func (n *Network) Open(link address.Link, ip netip.Addr) (Port, error) {
	port, err := n.wires.Open(link.Interface(), link.Source, ip)
	if err != nil {
		return nil, err
	}
	return port, nil
}

// hardware is an Ethernet address as people write it.
func hardware(m frame.MAC) string { return net.HardwareAddr(m[:]).String() }

// leasePrefix begins the names of our leases. statusLease is that of the node that writes the status of Services.
const (
	statusLease = "stack-lb"
	leasePrefix = statusLease + "-"
)

// Labels of our leases.
const (
	managedBy = "app.kubernetes.io/managed-by"
	program   = "stack-lb"
)

// LeaseName is the name of an address's lease.
func LeaseName(ip netip.Addr) string {
	return leasePrefix + strings.NewReplacer(".", "-", ":", "-").Replace(ip.StringExpanded())
}

// Identity is what a node writes into leases: its name, and what tells this boot of it from others.
func Identity(node, boot string) string {
	boot, _, _ = strings.Cut(strings.TrimSpace(boot), "-")
	return node + "_" + boot
}

// nodeOf is the node of an identity.
func nodeOf(identity string) string {
	node, _, _ := strings.Cut(identity, "_")
	return node
}
