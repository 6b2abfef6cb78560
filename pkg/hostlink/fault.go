package hostlink

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Cause is why a listener cannot be made, or may not receive.
type Cause uint8

// The causes. Each is a row of the table in docs/broadcast-init.md.
const (
	NoCapability     Cause = iota + 1 // the process lacks CAP_NET_ADMIN over its own network namespace
	NoHostAccess                      // it has it there, but not over the node's
	NoProcess                         // the process that stands for the node does not exist
	SameNamespace                     // that process shares the pod's network namespace
	NoParent                          // no interface of the node is the parent that was named
	Ambiguous                         // several are
	NoRoute                           // no parent was named, and the node has no default route
	ParentDown                        // the parent is administratively down
	NoCarrier                         // the parent has no link
	NotEthernet                       // the parent has no Ethernet frames
	BridgePort                        // a bridge takes the parent's frames
	BondSlave                         // a bond or team does
	OtherKind                         // the parent already has children of the other kind
	OtherMode                         // the parent already has ipvlans of another mode
	Wireless                          // the parent's access point drops foreign MAC addresses
	NameTaken                         // an interface that we did not make has the listener's name
	NoKind                            // the kernel has no such kind of interface
	MACTaken                          // another child of the parent has the listener's MAC address
	MACFilter                         // the parent is a virtual card whose hypervisor drops foreign MAC addresses
	NotIsolated                       // the kernel has no nftables, so the pod's IP layer receives its frames as well
	NoTraffic                         // the listener received nothing in the time it was given
	NoDHCP                            // it received frames in that time, and no DHCP request
	Busy                              // another broadcast-init of the pod is at work
	ChangedMeanwhile                  // an interface came or went while the listener was made
	Forbidden                         // a security module refuses what NET_ADMIN allows
	NoResources                       // the kernel has no memory, no descriptor or no time
	OldKernel                         // the kernel lacks rtnetlink's requests about other namespaces
	Refused                           // the kernel refused a step for another reason
)

var causes = map[Cause]string{
	NoCapability: "no_capability", NoHostAccess: "no_host_access", NoProcess: "no_process",
	SameNamespace: "same_namespace", NoParent: "no_parent", Ambiguous: "ambiguous_parent", NoRoute: "no_default_route",
	ParentDown: "parent_down", NoCarrier: "no_carrier", NotEthernet: "not_ethernet", BridgePort: "bridge_port",
	BondSlave: "bond_slave", OtherKind: "other_kind", OtherMode: "other_mode",
	Wireless: "wireless", NameTaken: "name_taken",
	NoKind: "no_kind", MACTaken: "mac_taken", MACFilter: "mac_filter", NotIsolated: "not_isolated",
	NoTraffic: "no_traffic", NoDHCP: "no_dhcp", Busy: "busy", ChangedMeanwhile: "changed_meanwhile",
	Forbidden: "forbidden", NoResources: "no_resources", OldKernel: "old_kernel", Refused: "refused",
}

// String is the cause as it stands in logs.
func (c Cause) String() string { return causes[c] }

// Passing reports whether the cause may go away without anybody changing a setting: an interface appears or comes
// up, an old pod or another broadcast-init of this pod ends.
func (c Cause) Passing() bool {
	passing := []Cause{NoParent, NoRoute, ParentDown, OtherKind, MACTaken, Busy, ChangedMeanwhile, NoResources}
	return slices.Contains(passing, c)
}

// Fault is a known cause of trouble together with what to do about it.
type Fault struct {
	Cause Cause
	// What says what is wrong, with names.
	What string
	// Do says what mends it.
	Do string
	// Err is the kernel's error, if there was one.
	Err error
}

func newFault(cause Cause, err error, what, do string) *Fault { return &Fault{cause, what, do, err} }

// Error implements error.
func (f *Fault) Error() string {
	if f.Err != nil {
		return fmt.Sprintf("%s (%v): %s", f.What, f.Err, f.Do)
	}
	return f.What + ": " + f.Do
}

// Unwrap returns the kernel's error.
func (f *Fault) Unwrap() error { return f.Err }

func noCapability(user int, err error) *Fault {
	return newFault(NoCapability, err,
		fmt.Sprintf("capability NET_ADMIN is missing (user id %d)", user),
		"add NET_ADMIN to the container's securityContext.capabilities and run it as user 0, "+
			"since Kubernetes gives added capabilities to root only")
}

func noHostAccess(err error) *Fault {
	return newFault(NoHostAccess, err,
		"capability NET_ADMIN does not reach the node's network",
		"run the pod in the node's user namespace (no hostUsers: false)")
}

func noProcess(pid int, err error) *Fault {
	return newFault(NoProcess, err,
		fmt.Sprintf("process %d, which stands for the node, is not to be seen", pid),
		"set hostPID: true in the pod and leave the process id at 1")
}

func sameNamespace(pid int) *Fault {
	return newFault(SameNamespace, nil,
		fmt.Sprintf("process %d, which stands for the node, is in this pod's own network namespace", pid),
		"set hostPID: true in the pod; with hostNetwork: true no listener is needed, "+
			"the relay can listen on the node's interface, as on a host without Kubernetes (DHCP_RELAY_LISTENERS=eth0)")
}

func noParent(selector string, links []Link) *Fault {
	do := "name another parent, or create this one"
	if names := candidates(links); len(names) > 0 {
		do += "; the node has: " + strings.Join(names, ", ")
	}
	return newFault(NoParent, nil, fmt.Sprintf("no interface of the node is %q", selector), do)
}

// candidates lists what could be a parent, the likely ones first.
func candidates(links []Link) []string {
	const most = 16
	var names, veths []string
	for _, link := range links {
		switch {
		case !link.ethernet || link.loopback:
		case link.Kind == "veth": // one per pod, as a rule; but the node's own where the node is a container
			veths = append(veths, link.String())
		default:
			names = append(names, link.String())
		}
	}
	if names = append(names, veths...); len(names) > most {
		names = append(names[:most], "...")
	}
	return names
}

func nameTaken(name, kind string) *Fault {
	return newFault(NameTaken, nil,
		fmt.Sprintf("the pod has an interface %s of kind %s that broadcast-init did not make", name, kind),
		"give the listener another name; if Multus provides this one, broadcast-init is not needed")
}

func ambiguous(selector string, found []Link) *Fault {
	names := make([]string, len(found))
	for i, link := range found {
		names[i] = link.Name
	}
	return newFault(Ambiguous, nil,
		fmt.Sprintf("several interfaces of the node are %q: %s", selector, strings.Join(names, ", ")),
		"name one of them as the parent")
}

func noRoute() *Fault {
	return newFault(NoRoute, nil,
		"the node has no default route from which to take the parent",
		"name the interface of the provisioning network as the parent")
}

// refused puts the kernel's refusal of a new listener into words.
func refused(err error, spec Spec, parent Link) error {
	errno, _ := asErrno(err)
	switch errno {
	case unix.EPERM, unix.EACCES:
		return noHostAccess(err)
	case unix.EOPNOTSUPP:
		return newFault(NoKind, err,
			fmt.Sprintf("the node's kernel has no %s interfaces", spec.Kind),
			fmt.Sprintf("load the module %s on the node, or set the kind to %s", spec.Kind, spec.Kind.other()))
	case unix.EBUSY:
		return newFault(OtherKind, err,
			fmt.Sprintf("parent %s refuses an interface of kind %s", parent.Name, spec.Kind),
			fmt.Sprintf("most likely a pod on this node has an %s on it (the stack's old pod: use the strategy "+
				"Recreate; Multus or a CNI: set the kind to %s), or Open vSwitch has it: name another parent",
				spec.Kind.other(), spec.Kind.other()))
	case unix.EADDRINUSE:
		return newFault(MACTaken, err,
			fmt.Sprintf("another interface on parent %s has the MAC address %s", parent.Name, spec.MAC),
			"wait for the old pod to end (strategy Recreate), or leave the address to the kernel")
	case unix.ENODEV:
		return newFault(NoParent, err, fmt.Sprintf("parent %s went away", parent.Name), "start again when it is back")
	default:
		return fmt.Errorf("failed to make %s %s on %s: %w", spec.Kind, spec.Name, parent.Name, err)
	}
}
