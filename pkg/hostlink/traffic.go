package hostlink

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// AwaitTraffic waits until a listener has received a DHCPv4 request, at most for the given time, and explains the
// silence where it has not. A listener that was kept has counted the frames of its whole life. Where requests cannot
// be counted, any frame ends the wait, and proves nothing: heard is false.
func (h *Host) AwaitTraffic(ctx context.Context, listener Listener, within time.Duration) (heard bool, err error) {
	heard, err = h.awaitTraffic(ctx, listener, within)
	return heard, explain(err)
}

func (h *Host) awaitTraffic(ctx context.Context, listener Listener, within time.Duration) (heard bool, err error) {
	counts := h.countDHCP(listener.Name) == nil
	before, err := h.conn.link(getLink(h.nsid, listener.Parent.Index))
	if err != nil {
		return false, fmt.Errorf("failed to watch parent %s: %w", listener.Parent.Name, h.asked(err))
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	const interval = 20 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		frames, requests, err := h.received(listener.Name, counts)
		if err != nil {
			return false, err
		}
		if requests > 0 || frames > 0 && !counts {
			return requests > 0, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if frames > 0 {
				return false, noDHCP(listener.Name, listener.Parent.Name, frames, within)
			}
			after, err := h.conn.link(getLink(h.nsid, listener.Parent.Index))
			if err != nil {
				return false, fmt.Errorf("failed to watch parent %s: %w", listener.Parent.Name, h.asked(err))
			}
			return false, noTraffic(listener.Name, after.Name, after.received-before.received, within)
		}
	}
}

// received is how many frames a listener has received, and how many of them were counted as DHCPv4 requests.
func (h *Host) received(listener string, counts bool) (frames, requests uint64, err error) {
	link, err := h.podLink(listener)
	if err == nil && link == nil {
		err = errNoLink
	}
	if err != nil {
		return 0, 0, fmt.Errorf("failed to watch listener %s: %w", listener, err)
	}
	if statistics := link.Attrs().Statistics; statistics != nil {
		frames = statistics.RxPackets
	}
	if counts {
		requests, err = h.countedDHCP(listener)
	}
	return frames, requests, err
}

func noTraffic(listener, parent string, received uint64, within time.Duration) *Fault {
	do := "nothing arrived at the parent either: check its cable, its switch port and that port's VLAN"
	if received > 0 {
		do = fmt.Sprintf("frames do arrive at %s, but no broadcasts: check that it is the provisioning network's "+
			"interface (and not a trunk whose VLAN has one of its own)", parent)
	}
	return newFault(NoTraffic, nil,
		fmt.Sprintf("listener %s received nothing within %s, in which its parent %s received %d frames",
			listener, within, parent, received),
		"on a quiet network this is no fault; otherwise: "+do)
}

func noDHCP(listener, parent string, frames uint64, within time.Duration) *Fault {
	return newFault(NoDHCP, nil,
		fmt.Sprintf("listener %s received %d frames, and no DHCPv4 request within %s", listener, frames, within),
		fmt.Sprintf("while no machine asks for an address this is no fault; otherwise: find what takes DHCP away "+
			"before the listener, such as a filter on %s (nft list ruleset, tc filter show dev %[1]s ingress) or on the "+
			"switch, or name the interface of the VLAN in which machines boot as the parent", parent))
}

// warnings are the known reasons why a listener may not receive or send, though it can be made.
func (h *Host) warnings(parent Link, kind Kind) []*Fault {
	var faults []*Fault
	if !parent.Carrier {
		faults = append(faults, newFault(NoCarrier, nil,
			fmt.Sprintf("parent %s has no link", parent.Name),
			"connect it: nothing can be received until then"))
	}
	if kind != Macvlan {
		return faults
	}
	if maker, cure := macFilter(parent); maker != "" {
		faults = append(faults, newFault(MACFilter, nil,
			fmt.Sprintf("parent %s (%s) is a network card of %s, which drops what a macvlan sends by default",
				parent.Name, parent.MAC, maker),
			cure+", or set the kind to ipvlan"))
	}
	if strings.HasPrefix(parent.Name, "wl") && parent.Kind == "device" {
		faults = append(faults, newFault(Wireless, nil,
			fmt.Sprintf("parent %s has the name of a wireless interface", parent.Name),
			"if it is one, set the kind to ipvlan: an access point drops a macvlan's MAC address"))
	}
	return faults
}

// macFilter names the hypervisor that made a network card and drops foreign MAC addresses unless it is told not to.
// It goes by the maker's part of the address.
func macFilter(parent Link) (maker, cure string) {
	if len(parent.MAC) < 3 {
		return "", ""
	}
	switch [3]byte(parent.MAC[:3]) {
	case [3]byte{0x00, 0x50, 0x56}, [3]byte{0x00, 0x0c, 0x29}, [3]byte{0x00, 0x05, 0x69}:
		return "VMware", "have its port group accept forged transmits"
	case [3]byte{0x00, 0x15, 0x5d}:
		return "Hyper-V", "have it allow MAC address spoofing"
	default:
		return "", ""
	}
}

// countDHCP has DHCPv4 requests that a listener receives counted from now on, before they are dropped (see isolate). To
// read frames would take CAP_NET_RAW; CAP_NET_ADMIN is enough to have nftables count what is handed to the IP layer.
func (h *Host) countDHCP(listener string) error {
	if h.filterErr != nil {
		return h.filterErr
	}
	h.filter.InsertRule(&nftables.Rule{
		Table: table(listener), Chain: &nftables.Chain{Name: chain}, Exprs: append(requestsFrom(listener), &expr.Counter{}),
	})
	return h.filter.flush()
}

// countedDHCP is how many requests were counted.
func (h *Host) countedDHCP(listener string) (total uint64, err error) {
	if err := h.filter.bound(); err != nil {
		return 0, err
	}
	rules, err := h.filter.GetRules(table(listener), &nftables.Chain{Name: chain})
	if err != nil {
		return 0, fmt.Errorf("failed to read what %s has received: %w", listener, err)
	}
	for _, rule := range rules {
		for _, each := range rule.Exprs {
			if counter, ok := each.(*expr.Counter); ok {
				total += counter.Packets
			}
		}
	}
	return total, nil
}
