package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of every lab. Labs do not see each other, so they all use the same.
var (
	LAN       = netip.MustParsePrefix("192.0.2.0/24")
	GatewayIP = netip.MustParseAddr("192.0.2.1")  // br0
	ServiceIP = netip.MustParseAddr("192.0.2.2")  // what machines talk to; an address of prov0, DNAT to the pod
	NodeIP    = netip.MustParseAddr("192.0.2.10") // prov0

	Pods     = netip.MustParsePrefix("10.244.0.0/24")
	PodsGWIP = netip.MustParseAddr("10.244.0.1") // cni0
	PodIP    = netip.MustParseAddr("10.244.0.10")
	SmeeIP   = netip.MustParseAddr("10.244.0.11")
	HegelIP  = netip.MustParseAddr("10.244.0.12")
	TinkIP   = netip.MustParseAddr("10.244.0.13")
	DNSIP    = netip.MustParseAddr("10.96.0.10") // on the node, as a cluster's DNS service
	LAN6     = netip.MustParsePrefix("2001:db8:1::/64")
	Gateway6 = netip.MustParseAddr("2001:db8:1::1")
)

// Names in the pod's DNS.
const (
	Namespace = "tink-system"                    // of Kubernetes
	Domain    = Namespace + ".svc.cluster.local" // what the pod searches first
)

// Ports of the service IP.
var (
	TCPPorts = []uint16{50061, 42113, 8080, 7171, 443, TinkerbellHTTPPort, TinkerbellFilesPort}
	UDPPorts = []uint16{69, 514, 67}
)

const (
	bridgeLAN  = "br0"
	bridgePods = "cni0"
	nodeUplink = "prov0"
)

// wire makes the namespaces and everything in them that carries packets.
func (l *Lab) wire() error {
	for _, role := range []string{RoleLAN, RoleNode, RolePod, RoleSmee, RoleHegel, RoleTink} {
		if err := l.addNamespace(role); err != nil {
			return err
		}
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"make LAN", l.wireLAN},
		{"make node", l.wireNode},
		{"make pods", l.wirePods},
		{"make service IP", func() error { return l.Do(RoleNode, forwardService) }},
	}
	if l.opts.IPv6 {
		steps = append(steps, struct {
			what string
			do   func() error
		}{"add IPv6", l.wire6})
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return fmt.Errorf("failed to %s: %w", step.what, err)
		}
	}
	return nil
}

func (l *Lab) wireLAN() error {
	return l.Do(RoleLAN, func() error {
		if err := addBridge(bridgeLAN); err != nil {
			return err
		}
		if err := addAddr(bridgeLAN, netip.PrefixFrom(GatewayIP, LAN.Bits())); err != nil {
			return err
		}
		return addAddr(bridgeLAN, netip.PrefixFrom(Gateway6, LAN6.Bits()))
	})
}

func (l *Lab) wireNode() error {
	if err := l.cable(RoleLAN, "to-node", bridgeLAN, RoleNode, nodeUplink, nil); err != nil {
		return err
	}
	return l.Do(RoleNode, func() error {
		if err := addBridge(bridgePods); err != nil {
			return err
		}
		for _, addr := range []struct {
			link string
			at   netip.Prefix
		}{
			{nodeUplink, netip.PrefixFrom(NodeIP, LAN.Bits())},
			{nodeUplink, netip.PrefixFrom(ServiceIP, 32)},
			{bridgePods, netip.PrefixFrom(PodsGWIP, Pods.Bits())},
			{"lo", netip.PrefixFrom(DNSIP, 32)},
		} {
			if err := addAddr(addr.link, addr.at); err != nil {
				return err
			}
		}
		if err := addDefaultRoute(GatewayIP); err != nil {
			return err
		}
		return setSysctl("net/ipv4/ip_forward", "1")
	})
}

func (l *Lab) wirePods() error {
	for _, pod := range []struct {
		role string
		ip   netip.Addr
	}{{RolePod, PodIP}, {RoleSmee, SmeeIP}, {RoleHegel, HegelIP}, {RoleTink, TinkIP}} {
		if err := l.cable(RoleNode, "to-"+pod.role, bridgePods, pod.role, "eth0", nil); err != nil {
			return err
		}
		err := l.Do(pod.role, func() error {
			if err := addAddr("eth0", netip.PrefixFrom(pod.ip, Pods.Bits())); err != nil {
				return err
			}
			if err := addDefaultRoute(PodsGWIP); err != nil {
				return err
			}
			// The pod's safe sysctl: low ports without a capability.
			return setSysctl("net/ipv4/ip_unprivileged_port_start", "0")
		})
		if err != nil {
			return fmt.Errorf("%s: %w", pod.role, err)
		}
	}
	return nil
}

// AddHost gives a machine that is no virtual one a namespace with "eth0" on the LAN: up, without an address. It
// returns the role for [Lab.Do], [Lab.Dial] and [Process].
func (l *Lab) AddHost(name string, mac net.HardwareAddr) (role string, err error) {
	role = "host-" + name
	if err := l.addNamespace(role); err != nil {
		return "", err
	}
	port, err := l.portName()
	if err != nil {
		return "", err
	}
	if err := l.cable(RoleLAN, port, bridgeLAN, role, "eth0", mac); err != nil {
		return "", fmt.Errorf("failed to connect host %s: %w", name, err)
	}
	return role, nil
}

// Configure gives a host of [Lab.AddHost] its address and, where gateway is valid, its default route.
func (l *Lab) Configure(role string, addr netip.Prefix, gateway netip.Addr) error {
	err := l.Do(role, func() error {
		if err := addAddr("eth0", addr); err != nil {
			return err
		}
		if !gateway.IsValid() {
			return nil
		}
		return addDefaultRoute(gateway)
	})
	if err != nil {
		return fmt.Errorf("failed to configure %s: %w", role, err)
	}
	return nil
}

// AddTap makes a tap device on the LAN for a virtual machine that runs in [RoleLAN], and returns the device's
// name there.
func (l *Lab) AddTap(machine string) (ifname string, err error) {
	name, err := l.portName()
	if err != nil {
		return "", err
	}
	err = l.Do(RoleLAN, func() error {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name},
			Mode:      netlink.TUNTAP_MODE_TAP,
			Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		return plug(name, bridgeLAN)
	})
	if err != nil {
		return "", fmt.Errorf("failed to make tap for %s: %w", machine, err)
	}
	return name, nil
}

// IsolatePorts keeps the machines' ports apart, those that there are by now: what a machine sends reaches the node and
// the router, but no other machine, as with a switch's protected ports (private VLAN).
func (l *Lab) IsolatePorts() error {
	err := l.Do(RoleLAN, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			if !strings.HasPrefix(link.Attrs().Name, machinePort) {
				continue
			}
			if err := netlink.LinkSetIsolated(link, true); err != nil {
				return fmt.Errorf("%s: %w", link.Attrs().Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to isolate ports: %w", err)
	}
	return nil
}

// machinePort begins the names of the machines' ports on the LAN.
const machinePort = "port"

func (l *Lab) portName() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return "", errors.New("failed to add port: the lab is down")
	}
	l.taps++
	return fmt.Sprintf("%s%d", machinePort, l.taps), nil
}

// SetLink takes a link up or down, as a pulled cable or a flapping switch port does.
func (l *Lab) SetLink(role, ifname string, up bool) error {
	err := l.Do(role, func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		if up {
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	})
	if err != nil {
		return fmt.Errorf("failed to set link %s in %s: %w", ifname, role, err)
	}
	if up && role == RoleNode && ifname == nodeUplink {
		// The kernel drops the routes of a link that goes down; a node's network daemon restores them.
		return l.Do(RoleNode, func() error { return addDefaultRoute(GatewayIP) })
	}
	return nil
}

// cable joins two namespaces by a veth pair; the near end is a port of a bridge.
func (l *Lab) cable(nearRole, near, bridge, farRole, far string, mac net.HardwareAddr) error {
	return l.with(farRole, func(farFd int) error {
		return l.Do(nearRole, func() error {
			veth := &netlink.Veth{
				LinkAttrs:        netlink.LinkAttrs{Name: near},
				PeerName:         far,
				PeerNamespace:    netlink.NsFd(farFd),
				PeerHardwareAddr: mac,
			}
			if err := netlink.LinkAdd(veth); err != nil {
				return fmt.Errorf("failed to make veth %s-%s: %w", near, far, err)
			}
			if err := plug(near, bridge); err != nil {
				return err
			}
			return l.Do(farRole, func() error {
				link, err := netlink.LinkByName(far)
				if err != nil {
					return err
				}
				return netlink.LinkSetUp(link)
			})
		})
	})
}

// plug makes a link a port of a bridge in the same namespace.
func plug(port, bridge string) error {
	link, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	master, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("failed to plug %s into %s: %w", port, bridge, err)
	}
	return netlink.LinkSetUp(link)
}

func addBridge(name string) error {
	off := false
	if err := netlink.LinkAdd(&netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name},
		MulticastSnooping: &off,
	}); err != nil {
		return fmt.Errorf("failed to make bridge %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func addAddr(ifname string, at netip.Prefix) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: ipNet(at)}
	if at.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // duplicate address detection takes 1.5 s
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("failed to add %s to %s: %w", at, ifname, err)
	}
	return nil
}

func removeAddr(ifname string, at netip.Prefix) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(at)}); err != nil {
		return fmt.Errorf("failed to remove %s from %s: %w", at, ifname, err)
	}
	return nil
}

func addDefaultRoute(via netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(everywhere(via)), Gw: via.AsSlice()}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("failed to add default route via %s: %w", via, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func netmask(p netip.Prefix) string { return net.IP(ipNet(p).Mask).String() }

// serviceName is a service's full name as a resolver may ask for them, without the last dot.
func serviceName(service string) string {
	if strings.Contains(service, ".") {
		return service
	}
	return service + "." + Domain
}
