package hostlink

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// To read frames would take CAP_NET_RAW. CAP_NET_ADMIN is enough to have nftables count the packets that a listener
// hands to the IP layer: of those that are for everybody or for the listener, and of no other VLAN, those for DHCP
// servers.

// countDHCP has DHCPv4 requests that a listener receives counted from now on, before they are dropped (see isolate).
func (h *Host) countDHCP(listener string) error {
	if h.filterErr != nil {
		return h.filterErr
	}
	return h.filter.do([]nfMessage{ruleBefore(listener, append(requestsFrom(listener), expression("counter")))})
}

// countedDHCP is how many requests were counted.
func (h *Host) countedDHCP(listener string) (uint64, error) {
	messages, err := h.filter.dump(nfMessage{unix.NFT_MSG_GETRULE, 0, []*nl.RtAttr{
		text(unix.NFTA_RULE_TABLE, tablePrefix+listener), text(unix.NFTA_RULE_CHAIN, chain),
	}})
	if err != nil {
		return 0, fmt.Errorf("failed to read what %s has received: %w", listener, err)
	}
	total := uint64(0)
	for _, rule := range messages {
		for _, each := range children(rule, unix.NFTA_RULE_EXPRESSIONS) {
			if name := child(each.Value, unix.NFTA_EXPR_NAME); string(name) != "counter\x00" {
				continue
			}
			if packets := child(child(each.Value, unix.NFTA_EXPR_DATA), unix.NFTA_COUNTER_PACKETS); len(packets) == 8 {
				total += binary.BigEndian.Uint64(packets)
			}
		}
	}
	return total, nil
}
