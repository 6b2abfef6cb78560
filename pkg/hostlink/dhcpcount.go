package hostlink

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// To read frames would take CAP_NET_RAW. CAP_NET_ADMIN is enough to have nftables count the packets that a listener
// hands to the IP layer: of those that are for everybody or for the listener, and of no other VLAN, those for DHCP
// servers.

// countDHCP has DHCPv4 requests that a listener receives counted from now on, before they are dropped (see isolate).
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
