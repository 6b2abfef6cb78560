package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Addresses of the site. The address is VIP; nodes follow on each other.
const (
	VIP   = "192.0.2.10"
	VIP6  = "2001:db8::10"
	vip1  = "192.0.2.100" // and those that follow are further ones
	apiIP = "192.0.2.2"
	node0 = 20 // 192.0.2.20 is the first node
	link  = "eth0"
	spare = "eth1" // a node's second card, which is down
)

// host is a network namespace with one link on the switch, and what runs there.
type host struct {
	name  string
	ns    netns.NsHandle
	links *netlink.Handle
	port  string // of the switch
	sw    *host
}

// in runs f inside the host's namespace; sockets that it opens stay there.
func (h *host) in(f func() error) error { return network.Do(h.ns, f) }

func newHost(name string) (*host, error) {
	ns, err := network.New()
	if err != nil {
		return nil, err
	}
	h := &host{name: name, port: name, ns: ns}
	if h.links, err = netlink.NewHandleAt(h.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, h.ns.Close())
	}
	return h, network.Raise(ns, "lo")
}

func (h *host) close() error {
	if h == nil {
		return nil
	}
	h.links.Close()
	return h.ns.Close()
}

// newSwitch makes a host whose one job is a bridge.
func newSwitch() (*host, error) {
	sw, err := newHost("switch")
	if err != nil {
		return nil, err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := sw.links.LinkAdd(bridge); err != nil {
		return sw, fmt.Errorf("failed to make bridge: %w", err)
	}
	return sw, sw.links.LinkSetUp(bridge)
}

// plug connects a host to the switch, with an address of either family.
func (h *host) plug(sw *host, number int) error {
	h.sw = sw
	if err := h.wire(link, h.port); err != nil {
		return err
	}
	return network.Raise(h.ns, link, fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number))
}

// wire leads a new card of the host to a new port of the switch.
func (h *host) wire(card, name string) error {
	if err := network.Join(h.ns, card, h.sw.ns, name); err != nil {
		return err
	}
	port, err := h.sw.links.LinkByName(name)
	if err != nil {
		return err
	}
	bridge, err := h.sw.links.LinkByName("br0")
	if err != nil {
		return err
	}
	if err := errors.Join(h.sw.links.LinkSetMaster(port, bridge), h.sw.links.LinkSetUp(port)); err != nil {
		return fmt.Errorf("failed to plug %s in: %w", h.name, err)
	}
	return nil
}

// knows has the host know for good which station has an address, or have to ask again.
func (h *host) knows(address string, station *[6]byte) error {
	own, err := h.links.LinkByName(link)
	if err != nil {
		return err
	}
	known := &netlink.Neigh{LinkIndex: own.Attrs().Index, IP: net.ParseIP(address), State: netlink.NUD_PERMANENT}
	if station == nil {
		return h.links.NeighDel(known)
	}
	known.HardwareAddr = station[:]
	return h.links.NeighSet(known)
}

// mac is the Ethernet address of one of the host's cards.
func (h *host) mac(card string) (mac [6]byte, err error) {
	own, err := h.links.LinkByName(card)
	if err != nil {
		return mac, fmt.Errorf("failed to find %s of %s: %w", card, h.name, err)
	}
	return [6]byte(own.Attrs().HardwareAddr), nil
}

// podIP are addresses of the network of a node's pod. The API wants them as it would write them: no zero before "::".
func podIP(number, last int) [2]string {
	return [2]string{fmt.Sprintf("10.244.%d.%d", number+1, last), fmt.Sprintf("fd00:244:0:%d::%d", number+1, last)}
}

// attach connects a pod to its node: the pod has the addresses that end in 1, and the node is its router.
func (h *host) attach(pod *host, number int) error {
	if err := network.Join(h.ns, "pod", pod.ns, link); err != nil {
		return err
	}
	node, own := podIP(number, 254), podIP(number, 1)
	err := errors.Join(network.Raise(h.ns, "pod", node[0]+"/24", node[1]+"/64"),
		network.Raise(pod.ns, link, own[0]+"/24", own[1]+"/64"))
	if err != nil {
		return err
	}
	leg, err := pod.links.LinkByName(link)
	if err != nil {
		return err
	}
	for _, router := range node {
		route := &netlink.Route{LinkIndex: leg.Attrs().Index, Gw: net.ParseIP(router)}
		if err := pod.links.RouteAdd(route); err != nil {
			return fmt.Errorf("failed to give %s its router: %w", pod.name, err)
		}
	}
	return errors.Join(h.sysctl("net/ipv4/ip_forward", "1"), h.sysctl("net/ipv6/conf/all/forwarding", "1"))
}

// vip gives the address to a link of the host as an administrator does, or takes it away.
func (h *host) vip(on string, bits int, has bool) error {
	own, err := h.links.LinkByName(on)
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(fmt.Sprintf("%s/%d", VIP, bits))
	if err != nil {
		return err
	}
	if has {
		return h.links.AddrReplace(own, address)
	}
	return h.links.AddrDel(own, address)
}

// sample begins to ask one of the host's links for addresses.
func (h *host) sample(on string, names map[[6]byte]string, addresses ...netip.Addr) (s *arp.Sampler, err error) {
	err = h.in(func() error {
		s, err = arp.Sample(on, names, addresses...)
		return err
	})
	return s, err
}

// sysctl sets a variable of the host's network.
func (h *host) sysctl(name, value string) error {
	return h.in(func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0) })
}

// nft has the host's kernel filter as rules say; nothing is what lifts all that was said before.
func (h *host) nft(rules string) error {
	return h.in(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table netdev bench {}\ndelete table netdev bench\n" +
			"table bridge bench {}\ndelete table bridge bench\n" + rules)
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("failed to filter on %s: %w: %s", h.name, err, said)
		}
		return nil
	})
}

// cable puts the host's cable in, or pulls it out: the link then has no carrier.
func (h *host) cable(in bool) error {
	port, err := h.sw.links.LinkByName(h.port)
	if err != nil {
		return err
	}
	if in {
		return h.sw.links.LinkSetUp(port)
	}
	return h.sw.links.LinkSetDown(port)
}

// start starts a program on the host and waits until it is ready. Its output goes to a file of the directory.
func (h *host) start(
	ctx context.Context, dir, name string, ready func(context.Context) error, env []string, args ...string,
) (*process.Process, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return process.Start(ctx, cmd, process.Options{
		Name: name, Enter: network.Into(h.ns), Log: filepath.Join(dir, name+".log"), Ready: ready,
	})
}
