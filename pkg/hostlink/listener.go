package hostlink

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mark begins the alias of every interface that this package made. An interface without it is never touched.
const mark = "broadcast-init: "

// Action is what has to happen to a listener.
type Action uint8

// The actions.
const (
	Create  Action = iota // there is none
	Keep                  // it is as it should be, or can be set so
	Replace               // it is of another kind, mode or parent
)

// String is the action as it stands in logs.
func (a Action) String() string {
	return [...]string{Create: "create", Keep: "keep", Replace: "replace"}[a]
}

// Plan is what [Host.Ensure] would do.
type Plan struct {
	Spec   Spec
	Parent Link
	Action Action
	// Why says what is wrong with the listener that is to be replaced.
	Why string
	// Warnings are the reasons why the listener may not receive, though it can be made.
	Warnings []*Fault

	existing netlink.Link
}

// Listener is a listener as it is.
type Listener struct {
	Name   string
	Kind   Kind
	Parent Link
	MAC    net.HardwareAddr
	MTU    int
	// Action is what was done to have it so.
	Action Action
	// Warnings are the reasons why it may be of no use, or do harm.
	Warnings []*Fault
}

// Ensure makes the listener that spec describes, or keeps the one that is there. Several at a time, of one pod, agree:
// the first makes the listener, and the others find it made.
func (h *Host) Ensure(spec Spec) (listener Listener, err error) {
	err = h.lock.hold(func() error {
		plan, err := h.plan(spec)
		if err == nil {
			listener, err = h.apply(plan)
		}
		return err
	})
	return listener, explain(err)
}

// Plan finds the parent and what there is, and changes nothing. Obstacles are a [Fault].
func (h *Host) Plan(spec Spec) (Plan, error) {
	plan, err := h.plan(spec)
	return plan, explain(err)
}

func (h *Host) plan(spec Spec) (Plan, error) {
	plan := Plan{Spec: spec}
	existing, err := h.podLink(spec.Name)
	if err != nil {
		return Plan{}, err
	}
	if existing != nil && !made(existing) {
		return Plan{}, nameTaken(spec.Name, existing.Type())
	}
	if plan.Parent, err = h.Parent(spec.Parent); err != nil {
		return Plan{}, err
	}
	if existing != nil {
		plan.existing = existing
		plan.Action = Keep
		if plan.Why = h.differs(existing, spec, plan.Parent); plan.Why != "" {
			plan.Action = Replace
		}
	}
	if err := h.check(plan.Parent, spec.Kind); err != nil {
		return Plan{}, err
	}
	plan.Warnings = h.warnings(plan.Parent, spec.Kind)
	return plan, nil
}

// settled reports whether there is nothing to do.
func (p Plan) settled() bool {
	if p.Action != Keep {
		return false
	}
	const flags = unix.IFF_UP | unix.IFF_NOARP
	want := uint32(flags)
	if p.Spec.Address.IsValid() {
		want = unix.IFF_UP
	}
	attrs := p.existing.Attrs()
	return attrs.RawFlags&flags == want && attrs.MTU == p.Parent.MTU && hasMAC(p.existing, p.Spec)
}

// hasMAC reports whether a link has the address that its specification asks for, if that asks for one.
func hasMAC(link netlink.Link, spec Spec) bool {
	return spec.Kind != Macvlan || spec.MAC == nil || bytes.Equal(link.Attrs().HardwareAddr, spec.MAC)
}

// String says what would be done.
func (p Plan) String() string {
	text := fmt.Sprintf("%s listener %s: %s on %s (chosen by %s), MTU %d",
		p.Action, p.Spec.Name, p.Spec.Kind, p.Parent.Name, p.Parent.Chosen, p.Parent.MTU)
	if p.Spec.Kind == Macvlan && p.Spec.MAC != nil {
		text += ", MAC address " + p.Spec.MAC.String()
	}
	if p.Why != "" {
		text += "; the present one's " + p.Why
	}
	return text
}

// apply does what was planned. A listener of ours that is right in kind, mode and parent stays; a wrong one goes. The
// caller holds the lock since the plan was made.
func (h *Host) apply(plan Plan) (Listener, error) {
	if fault := h.isolate(plan.Spec.Name, plan.Spec.Address.IsValid()); fault != nil {
		plan.Warnings = append(plan.Warnings, fault)
	}
	if plan.Action == Keep {
		if err := h.configure(plan.existing, plan); err != nil {
			return Listener{}, err
		}
		return h.report(plan)
	}
	err := h.make(plan)
	if plan.Action == Replace && plan.existing.Type() == plan.Spec.Kind.other().String() && isBusy(err) {
		err = h.changeKind(plan)
	}
	if err != nil {
		return Listener{}, err
	}
	return h.report(plan)
}

// make makes a new listener, in place of what there is.
func (h *Host) make(plan Plan) error {
	link, err := h.create(plan)
	if err != nil {
		return err
	}
	if err := h.install(link, plan); err != nil {
		return errors.Join(err, h.discard(link))
	}
	return nil
}

// changeKind removes the listener first: the parent does not take both kinds at a time. The kernel has the new kind, or
// it would have said so. Where another interface on the parent refuses the new kind, the former listener is made again.
func (h *Host) changeKind(plan Plan) error {
	former := plan
	former.Spec.Kind, former.existing = plan.Spec.Kind.other(), nil
	if former.Spec.Kind == Macvlan {
		former.Spec.MAC = plan.existing.Attrs().HardwareAddr
	}
	if err := h.pod.LinkDel(plan.existing); err != nil {
		return fmt.Errorf("failed to remove listener %s: %w", plan.Spec.Name, err)
	}
	plan.existing = nil
	err := h.make(plan)
	if err != nil {
		return errors.Join(err, h.make(former))
	}
	return nil
}

// isBusy tells whether the parent has an interface of the other kind.
func isBusy(err error) bool {
	fault, ok := errors.AsType[*Fault](err)
	return ok && fault.Cause == OtherKind
}

// create makes the listener under a temporary name. An interface can be marked as ours only once it exists: if we
// are killed in between, the name alone tells the next run that it may be removed.
func (h *Host) create(plan Plan) (netlink.Link, error) {
	temporary := temporaryName(plan.Spec.Name)
	leftover, err := h.podLink(temporary)
	if err == nil && leftover != nil {
		err = h.pod.LinkDel(leftover)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to remove leftover %s: %w", temporary, err)
	}
	request := newListener(temporary, plan.Spec.Kind, plan.Spec.MAC, h.nsid, plan.Parent)
	if _, err := h.conn.do(request, 0); err != nil {
		return nil, refused(err, plan.Spec, plan.Parent)
	}
	link, err := h.podLink(temporary)
	if err == nil && link == nil {
		err = errNoLink // the parent went away with it
	}
	if err != nil {
		return nil, fmt.Errorf("failed to find new %s: %w", temporary, err)
	}
	return link, nil
}

// install puts a new listener in its place.
func (h *Host) install(link netlink.Link, plan Plan) error {
	name := plan.Spec.Name
	if plan.existing != nil {
		if err := h.pod.LinkDel(plan.existing); err != nil {
			return fmt.Errorf("failed to remove listener %s: %w", name, err)
		}
	}
	if err := h.pod.LinkSetAlias(link, alias(plan)); err != nil {
		return fmt.Errorf("failed to mark listener %s: %w", name, err)
	}
	if err := h.pod.LinkSetName(link, name); err != nil {
		return fmt.Errorf("failed to name listener %s: %w", name, err)
	}
	return h.configure(link, plan)
}

// configure brings everything to its value that can be changed on a living listener. It gets no address that was not
// asked for: a machine must reach the pod through its service only.
func (h *Host) configure(link netlink.Link, plan Plan) error {
	attrs, spec := link.Attrs(), plan.Spec
	if attrs.MTU != plan.Parent.MTU {
		if err := h.pod.LinkSetMTU(link, plan.Parent.MTU); err != nil {
			return fmt.Errorf("failed to set MTU of listener %s to %d: %w", spec.Name, plan.Parent.MTU, err)
		}
	}
	if !hasMAC(link, spec) {
		if err := h.pod.LinkSetHardwareAddr(link, spec.MAC); err != nil {
			return refused(err, spec, plan.Parent)
		}
	}
	const none = 1 // IN6_ADDR_GEN_MODE_NONE: no link-local address
	err := h.pod.LinkSetIP6AddrGenMode(link, none)
	if errno, _ := asErrno(err); err != nil && errno != unix.EAFNOSUPPORT { // the latter: no IPv6 on it anyway
		return fmt.Errorf("failed to keep listener %s free of addresses: %w", spec.Name, err)
	}
	setARP := h.pod.LinkSetARPOff
	if spec.Address.IsValid() {
		setARP = h.pod.LinkSetARPOn // without it the IP layer's broadcasts go to the listener's own MAC address
	}
	if err := setARP(link); err != nil {
		return fmt.Errorf("failed to say whether listener %s answers ARP: %w", spec.Name, err)
	}
	if err := h.address(link, spec); err != nil {
		return fmt.Errorf("failed to set the address of listener %s: %w", spec.Name, err)
	}
	if err := h.pod.LinkSetUp(link); err != nil {
		return refused(err, spec, plan.Parent)
	}
	return nil
}

// address gives a listener the address that was asked for, and takes all others.
func (h *Host) address(link netlink.Link, spec Spec) error {
	addresses, err := h.pod.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	wanted := spec.Address.IsValid()
	for _, address := range addresses {
		if wanted && address.IPNet.String() == spec.Address.String() {
			wanted = false
			continue
		}
		if err := h.pod.AddrDel(link, &address); err != nil {
			return err
		}
	}
	if !wanted {
		return nil
	}
	address, err := netlink.ParseAddr(spec.Address.String())
	if err != nil {
		return err
	}
	if spec.Address.Addr().IsLoopback() { // or answers would leave with it, which the kernel refuses
		address.Scope = int(netlink.SCOPE_HOST)
	}
	return h.pod.AddrAdd(link, address)
}

// discard removes what was begun. It may have gone already, together with its parent.
func (h *Host) discard(link netlink.Link) error {
	err := h.pod.LinkDel(link)
	if errno, _ := asErrno(err); err != nil && errno != unix.ENODEV {
		return fmt.Errorf("failed to remove unfinished listener: %w", err)
	}
	return nil
}

// report reads back what is there now.
func (h *Host) report(plan Plan) (Listener, error) {
	link, err := h.podLink(plan.Spec.Name)
	if err == nil && link == nil {
		err = errNoLink
	}
	if err != nil {
		return Listener{}, fmt.Errorf("failed to verify listener %s: %w", plan.Spec.Name, err)
	}
	attrs := link.Attrs()
	if why := h.differs(link, plan.Spec, plan.Parent); why != "" {
		return Listener{}, fmt.Errorf("failed to verify listener %s: %s", plan.Spec.Name, why)
	}
	if attrs.RawFlags&unix.IFF_UP == 0 {
		return Listener{}, fmt.Errorf("failed to verify listener %s: down", plan.Spec.Name)
	}
	return Listener{
		Name: attrs.Name, Kind: plan.Spec.Kind, Parent: plan.Parent, MAC: attrs.HardwareAddr, MTU: attrs.MTU,
		Action: plan.Action, Warnings: plan.Warnings,
	}, nil
}

// differs says in what a listener cannot be brought to its specification; empty if it can.
func (h *Host) differs(link netlink.Link, spec Spec, parent Link) string {
	attrs := link.Attrs()
	if link.Type() != spec.Kind.String() {
		return fmt.Sprintf("kind is %s, not %s", link.Type(), spec.Kind)
	}
	switch l := link.(type) {
	case *netlink.Macvlan:
		if l.Mode != netlink.MACVLAN_MODE_BRIDGE {
			return "mode is not bridge"
		}
	case *netlink.IPVlan:
		if l.Mode != netlink.IPVLAN_MODE_L2 {
			return "mode is not L2"
		}
	}
	if attrs.ParentIndex != parent.Index || attrs.NetNsID != h.nsid {
		return "parent is not " + parent.Name
	}
	return ""
}

// podLink finds a link of the pod; nil if there is none.
func (h *Host) podLink(name string) (netlink.Link, error) {
	link, err := h.pod.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to look for interface %s: %w", name, err)
	}
	return link, nil
}

// made says that this package made an interface.
func made(link netlink.Link) bool { return strings.HasPrefix(link.Attrs().Alias, mark) }

func alias(plan Plan) string {
	return fmt.Sprintf("%s%s on %s", mark, plan.Spec.Kind, plan.Parent.Name)
}

// temporaryName is the name of the listener while it is being made: always the same for the same listener.
func temporaryName(name string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name)) // never fails
	return fmt.Sprintf("bi%08xtmp", sum.Sum32())
}
