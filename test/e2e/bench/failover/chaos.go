package failover

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/network"
)

// Chaos are the ways in which two nodes might have an address, or none. Each leaves the site as [Site.restart] can have
// it again. A program that is given is an older stack-lb, which nodes run beside this one.
func Chaos(older string) []Case {
	leave := func(_ context.Context, _ *Site, n *node) error { return endLB(n) }
	cases := []Case{
		{Name: "admin-adds-24", few: 2, fault: adminAdds(24)},
		{Name: "admin-adds-32", few: 2, fault: adminAdds(32)},
		{Name: "two-installs", few: 3, fault: twoInstalls},
		{Name: "two-clusters", few: 3, fault: twoClusters},
		{Name: "stopped-young", few: 3, fault: stopped(1500 * time.Millisecond)},
		{Name: "stopped-old", few: 2, fault: stopped(8 * time.Second)},
		{Name: "slow-api-0.2s", few: 1, fault: slowAPI(200 * time.Millisecond)},
		{Name: "slow-api-1.4s", few: 1, fault: slowAPI(1400 * time.Millisecond)},
		{Name: "slow-api-2.8s", few: 2, fault: slowAPI(2800 * time.Millisecond)},
		{Name: "slow-api-3s", few: 2, fault: slowAPI(3 * time.Second)},
		{Name: "late-answers-1.5s", few: 2, fault: lateAnswers(1500 * time.Millisecond)},
		{Name: "late-answers-2.8s", few: 2, fault: lateAnswers(2800 * time.Millisecond)},
		{Name: "late-answers-3s", few: 2, fault: lateAnswers(3 * time.Second)},
		{Name: "late-answers-5s", few: 2, fault: lateAnswers(5 * time.Second)},
		{Name: "api-hangs", few: 1, fault: apiComesAndGoes(way{hangs: true})},
		{Name: "api-refuses", few: 1, fault: apiComesAndGoes(way{refuses: true})},
		{Name: "api-away-node-gone", few: 2, fault: apiAwayNodeGone},
		{Name: "api-away-for-owner", few: 3, fault: apiAwayForOwner, moves: true, shares: true},
		{Name: "loss-20", few: 2, fault: loss},
		{Name: "mute-switch-leave", few: 2, fault: muteSwitch(leave), moves: true},
		{Name: "mute-switch-gone", few: 1, fault: muteSwitch(nodeGone), moves: true},
		{Name: "deaf-node", few: 2, fault: deafNode},
		{Name: "crash-loop", few: 2, fault: crashLoop},
		{Name: "kube-ipvs0", few: 2, fault: ipvs},
		{Name: "two-cards", few: 2, fault: twoCards, moves: true},
		{Name: "forged", few: 2, fault: forged},
		{Name: "uninstall", few: 2, fault: uninstall},
		{Name: "uninstall-killed", few: 2, fault: uninstallKilled},
		{Name: "lease-deleted", few: 2, fault: leaseDeleted},
	}
	if older != "" {
		cases = append(cases, Case{Name: "two-versions", few: 2, fault: twoVersions(older)})
	}
	for i := range cases {
		cases[i].atMost = 20 * time.Second
	}
	return cases
}

// adminAdds gives the owner's node the address by hand, as cloud-init or a former keepalived might.
func adminAdds(bits int) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, _ *Site, n *node) error {
		if err := n.vip(link, bits, true); err != nil {
			return err
		}
		return errors.Join(sleep(ctx, 12*time.Second), n.vip(link, bits, false))
	}
}

// twoInstalls starts two stack-lb of one class in two namespaces at one time, on different nodes.
func twoInstalls(ctx context.Context, s *Site, owner *node) error {
	if err := endLB(s.nodes...); err != nil {
		return err
	}
	other := s.others(owner)[0]
	for _, n := range s.nodes {
		var settings []string
		if n == other {
			settings = []string{"STACK_LB_KUBECONFIG=" + filepath.Join(s.dir, "kubeconfig-"+n.name+"-elsewhere")}
		}
		if err := s.startLB(ctx, n, settings...); err != nil {
			return err
		}
	}
	return errors.Join(s.ready(ctx, s.nodes...), sleep(ctx, 12*time.Second), endLB(other))
}

// twoClusters has another cluster's stack-lb claim the address in the same moment. What makes it another cluster's is
// its class, its Service and its Leases: neither sees what is of the other, but on the wire.
func twoClusters(ctx context.Context, s *Site, owner *node) error {
	const class = "example.org/other"
	other := s.others(owner)[0]
	if err := endLB(other); err != nil {
		return err
	}
	err := s.startLB(ctx, other, "STACK_LB_CLASS="+class, "STACK_LB_WATCH_NAMESPACE="+elsewhere)
	if err != nil {
		return err
	}
	if err := errors.Join(s.ready(ctx, other), s.api.do(ctx, http.MethodDelete, servicesPath+"/"+web, nil)); err != nil {
		return err
	}
	if err := sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	theirs := s.balancer.service(s, 0)
	theirs["spec"].(object)["loadBalancerClass"] = class
	theirs["spec"].(object)["externalTrafficPolicy"] = "Cluster"
	const path = "/api/v1/namespaces/" + elsewhere + "/services"
	var both sync.WaitGroup
	var faults [2]error
	both.Go(func() { faults[0] = s.api.do(ctx, http.MethodPost, servicesPath, s.balancer.service(s, 0)) })
	both.Go(func() { faults[1] = s.api.do(ctx, http.MethodPost, path, theirs) })
	both.Wait()
	return errors.Join(faults[0], faults[1], sleep(ctx, 12*time.Second),
		s.api.do(ctx, http.MethodDelete, path+"/"+web, nil), sleep(ctx, time.Second), endLB(other))
}

// stopped has a node take the address, and its stack-lb stand still some time later, for longer than a lease.
func stopped(after time.Duration) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, owner *node) error {
		if err := endLB(owner); err != nil {
			return err
		}
		if err := s.until(ctx, func() bool { return s.sampler.Owners()[owner.name] == 0 }); err != nil {
			return err
		}
		next, err := s.owner()
		if err != nil {
			return err
		}
		if err := errors.Join(s.startLB(ctx, owner), sleep(ctx, after), next.lb.Signal(syscall.SIGSTOP)); err != nil {
			return err
		}
		// The pod goes, too, so that the node serves nobody who takes it for the owner; and it stands still for longer than
		// the next owner's announcements last, which would mend what it says when it wakes.
		pods := s.allReady()
		delete(pods, next)
		err = errors.Join(s.api.endpoints(ctx, pods), sleep(ctx, 14*time.Second))
		return errors.Join(err, next.lb.Signal(syscall.SIGCONT), sleep(ctx, 4*time.Second))
	}
}

// until waits until something is so, for as long as a failover may take.
func (s *Site) until(ctx context.Context, so func() bool) error {
	for range 200 {
		if so() {
			return nil
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("waited in vain: %v", s.sampler.Owners())
}

// through has the ways of nodes to the API be another one for a time.
func through(ctx context.Context, w way, long time.Duration, nodes ...*node) error {
	for _, n := range nodes {
		n.gate.set(w)
	}
	err := sleep(ctx, long)
	for _, n := range nodes {
		n.gate.set(way{})
	}
	return err
}

func slowAPI(late time.Duration) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, _ *node) error {
		return through(ctx, way{up: late / 2, down: late / 2}, 15*time.Second, s.nodes...)
	}
}

// lateAnswers has the owner alone hear late of what the API does at once.
func lateAnswers(late time.Duration) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, _ *Site, n *node) error {
		return through(ctx, way{down: late}, 15*time.Second, n)
	}
}

func apiComesAndGoes(w way) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, _ *node) error {
		for range 3 {
			if err := errors.Join(through(ctx, w, 5*time.Second, s.nodes...), sleep(ctx, 5*time.Second)); err != nil {
				return err
			}
		}
		return nil
	}
}

// apiAwayForOwner has the API go for the node that has the address alone, so that another one takes it: the one case in
// which two nodes may have it, until the former one has heard the other.
func apiAwayForOwner(ctx context.Context, _ *Site, owner *node) error {
	return through(ctx, way{refuses: true}, 25*time.Second, owner)
}

// apiAwayNodeGone has the API go, and then the node that has the address.
func apiAwayNodeGone(ctx context.Context, s *Site, owner *node) error {
	if err := errors.Join(s.api.host.cable(false), sleep(ctx, 8*time.Second), nodeGone(ctx, s, owner)); err != nil {
		return err
	}
	return errors.Join(sleep(ctx, 10*time.Second), s.api.host.cable(true))
}

// loss loses a fifth of what nodes and the API send each other, and the owner is killed meanwhile. What the sampler and
// the client send is not lost, so that they see what is.
func loss(ctx context.Context, s *Site, owner *node) error {
	client, err := s.client.mac(link)
	if err != nil {
		return err
	}
	rules := fmt.Sprintf(`table netdev bench {
  chain lose {
    type filter hook ingress device %s priority 0
    ether saddr %s accept
    ether saddr & ff:ff:ff:ff:00:00 == 02:5a:5a:5a:00:00 accept
    numgen random mod 5 0 drop
  }
}
`, link, mac(client))
	for _, h := range s.machines() {
		if err := h.nft(rules); err != nil {
			return err
		}
	}
	if err := sleep(ctx, 12*time.Second); err != nil {
		return err
	}
	owner.lb.Kill()
	err = errors.Join(s.until(ctx, func() bool { return s.sampler.Owners()[owner.name] == 0 }), sleep(ctx, 5*time.Second))
	for _, h := range s.machines() {
		err = errors.Join(err, h.nft(""))
	}
	return err
}

// machines are the API's and the nodes.
func (s *Site) machines() []*host {
	all := []*host{s.api.host}
	for _, n := range s.nodes {
		all = append(all, n.host)
	}
	return all
}

func mac(b [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5])
}

// muteSwitch has the switch drop announcements, as one does that inspects ARP, while a node goes.
func muteSwitch(goes func(context.Context, *Site, *node) error) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, owner *node) error {
		ports := ""
		for _, n := range s.nodes {
			ports += n.port + ", "
		}
		err := s.sw.nft(fmt.Sprintf(`table netdev bench {
  chain mute {
    type filter hook ingress devices = { %s } priority 0
    arp saddr ip %s arp daddr ip %s drop
  }
}
`, ports, VIP, VIP))
		if err != nil {
			return err
		}
		return errors.Join(goes(ctx, s, owner), sleep(ctx, 10*time.Second), s.sw.nft(""))
	}
}

// deafNode has the switch pass on nothing between the owner and others, as if the uplink behind the node's own bridge
// were out: its link is up all the time. What it sends the API by IP goes another way, and the two know each other.
func deafNode(ctx context.Context, s *Site, owner *node) error {
	api, err := s.api.host.mac(link)
	if err != nil {
		return err
	}
	own := fmt.Sprintf("192.0.2.%d", node0+owner.number)
	rules := fmt.Sprintf(`table bridge bench {
  chain deafen {
    type filter hook forward priority 0
    ip saddr %[2]s accept
    ip daddr %[2]s accept
    iifname %[1]s drop
    oifname %[1]s drop
  }
}
`, owner.port, apiIP)
	err = errors.Join(owner.knows(apiIP, &api), s.api.host.knows(own, &owner.mac), s.sw.nft(rules))
	if err != nil {
		return err
	}
	return errors.Join(sleep(ctx, 30*time.Second), s.sw.nft(""), owner.knows(apiIP, nil), s.api.host.knows(own, nil))
}

// crashLoop kills the owner's stack-lb again and again, and starts it at once.
func crashLoop(ctx context.Context, s *Site, owner *node) error {
	for range 6 {
		owner.lb.Kill()
		if err := errors.Join(s.startLB(ctx, owner), sleep(ctx, 3*time.Second)); err != nil {
			return err
		}
	}
	return nil
}

// ipvs gives every node the address on a link that does not speak ARP, as kube-proxy in IPVS mode does. This kernel may
// have no other one of the kind than a bridge. The guest has the real kube-proxy.
func ipvs(ctx context.Context, s *Site, _ *node) error {
	const name = "kube-ipvs0"
	for _, n := range s.nodes {
		hidden := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		err := errors.Join(n.links.LinkAdd(hidden), n.links.LinkSetARPOff(hidden),
			n.sysctl("net/ipv4/conf/all/arp_ignore", "1"), n.sysctl("net/ipv4/conf/all/arp_announce", "2"))
		if err != nil {
			return fmt.Errorf("failed to make %s: %w", name, err)
		}
		if err := errors.Join(n.vip(name, 32, true), n.links.LinkSetUp(hidden)); err != nil {
			return err
		}
	}
	err := sleep(ctx, 10*time.Second)
	for _, n := range s.nodes {
		hidden, find := n.links.LinkByName(name)
		if find != nil {
			return find
		}
		err = errors.Join(err, n.links.LinkDel(hidden),
			n.sysctl("net/ipv4/conf/all/arp_ignore", "0"), n.sysctl("net/ipv4/conf/all/arp_announce", "0"))
	}
	return err
}

// twoCards gives every node a second card in the address's network, and has the owner leave then.
func twoCards(ctx context.Context, s *Site, owner *node) error {
	for _, n := range s.nodes {
		if err := network.Raise(n.ns, spare, fmt.Sprintf("192.0.2.%d/24", 2*node0+n.number)); err != nil {
			return err
		}
	}
	err := errors.Join(sleep(ctx, 8*time.Second), endLB(owner), sleep(ctx, 4*time.Second))
	for _, n := range s.nodes {
		second, find := n.links.LinkByName(spare)
		if find != nil {
			return find
		}
		address, parse := netlink.ParseAddr(fmt.Sprintf("192.0.2.%d/24", 2*node0+n.number))
		if parse != nil {
			return parse
		}
		err = errors.Join(err, n.links.AddrDel(second, address), n.links.LinkSetDown(second))
	}
	return err
}

// forged has a stranger announce the address as its own, once each three seconds.
func forged(ctx context.Context, s *Site, _ *node) error {
	const times = 4
	stranger, vip := []byte{2, 0, 0, 0, 0, 0x66}, netip.MustParseAddr(VIP).AsSlice()
	all := []byte{255, 255, 255, 255, 255, 255}
	frame := slices.Concat(all, stranger, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, stranger, vip, all, vip)
	for range times {
		err := s.watcher.in(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(fd) }()
			on, err := s.watcher.links.LinkByName(link)
			if err != nil {
				return err
			}
			return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: on.Attrs().Index, Halen: 6})
		})
		if err := errors.Join(err, sleep(ctx, 3*time.Second)); err != nil {
			return err
		}
	}
	return nil
}

// uninstall takes all of stack-lb and its rights away while a node has the address. No node may have it then.
func uninstall(ctx context.Context, s *Site, _ *node) error {
	faults := make([]error, len(s.nodes))
	expelled := s.api.expel(ctx)
	var all sync.WaitGroup
	for i, n := range s.nodes {
		all.Go(func() { faults[i] = endLB(n) })
	}
	all.Wait()
	return errors.Join(expelled, errors.Join(faults...), s.uninstalled(ctx))
}

// uninstallKilled does so three seconds after the owner was killed.
func uninstallKilled(ctx context.Context, s *Site, owner *node) error {
	owner.lb.Kill()
	return errors.Join(sleep(ctx, 3*time.Second), s.api.expel(ctx), endLB(s.others(owner)...), s.uninstalled(ctx))
}

// uninstalled looks whether the address is away, and has everything again.
func (s *Site) uninstalled(ctx context.Context) error {
	err := sleep(ctx, 6*time.Second)
	for _, log := range s.sampler.Since(time.Now().Add(-time.Second)) {
		if log.NoOwner < log.Probes {
			answered := log.Probes - log.NoOwner
			err = errors.Join(err, fmt.Errorf("it was uninstalled, and %d of %d probes were answered", answered, log.Probes))
		}
	}
	err = errors.Join(err, s.api.admit(ctx), s.api.do(ctx, http.MethodPost, bindings, binding("Role")))
	for _, n := range s.nodes {
		err = errors.Join(err, s.revive(ctx, n))
	}
	return err
}

// leaseDeleted has somebody delete the address's Lease by hand, twice.
func leaseDeleted(ctx context.Context, s *Site, _ *node) error {
	const path = "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases/stack-lb-192-0-2-10"
	for range 2 {
		if err := errors.Join(s.api.do(ctx, http.MethodDelete, path, nil), sleep(ctx, 9*time.Second)); err != nil {
			return err
		}
	}
	return nil
}

// twoVersions has an address go from this stack-lb to an older one and back, as each leaves and as each is killed.
func twoVersions(older string) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, owner *node) error {
		other := s.others(owner)[0]
		goes := []func(*node) error{
			func(n *node) error { return endLB(n) },
			func(n *node) error { n.lb.Kill(); return nil },
		}
		if err := endLB(s.others(owner)...); err != nil {
			return err
		}
		for _, end := range goes {
			for _, turn := range []struct {
				from, to *node
				with     Balancer
			}{{owner, other, StackLB(older)}, {other, owner, s.balancer}} {
				err := errors.Join(s.startAs(ctx, turn.to, turn.with), s.ready(ctx, turn.to), sleep(ctx, 3*time.Second))
				if err != nil {
					return err
				}
				if err := end(turn.from); err != nil {
					return err
				}
				err = s.until(ctx, func() bool { return s.sampler.Owners()[turn.to.name] == len(s.addresses) })
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
}
