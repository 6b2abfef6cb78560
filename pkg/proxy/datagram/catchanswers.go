package datagram

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// answerTable is the routing table, and the priority of the rule that leads to it, of [CatchAnswers].
const answerTable = 6969

// Actions of rules (linux/fib_rules.h).
const (
	actionLookup = 1
	actionGoto   = 2
	actionNop    = 3
)

// CatchAnswers makes the kernel deliver UDP datagrams to this process that come from other hosts and are addressed to
// other hosts: answers to the clients whose addresses transparent sockets send from. It does the same as these
// commands, for IPv4 and for IPv6:
//
//	ip route add local default dev lo table 6969
//	ip rule add pref 6970 nop
//	ip rule add pref 6968 iif lo goto 6970
//	ip rule add pref 6969 ipproto udp lookup 6969
//
// The interface lo stands for datagrams that this host sends, which the rule must not catch.
//
// It needs CAP_NET_ADMIN, and a network namespace that forwards nothing: a pod's. A route or rule that is there already
// is no error. None is removed, since the namespace ends with the pod.
func CatchAnswers() error {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("failed to catch answers to clients' addresses: %w", err)
	}
	defer links.Close()
	loopback, err := links.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("failed to catch answers to clients' addresses: failed to find the interface lo: %w", err)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		err := catchAnswers(links, loopback.Attrs().Index, family)
		if family == unix.AF_INET6 && without6(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("failed to catch answers to clients' addresses (CAP_NET_ADMIN is needed): %w", err)
		}
	}
	return nil
}

// without6 tells whether an error means that this kernel, or this namespace, has no IPv6.
func without6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES)
}

func catchAnswers(links *netlink.Handle, loopback, family int) error {
	everywhere := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	if family == unix.AF_INET6 {
		everywhere = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	err := links.RouteAdd(&netlink.Route{
		Family: family, LinkIndex: loopback, Dst: everywhere, Table: answerTable,
		Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("failed to add the route of table %d: %w", answerTable, err)
	}
	after, ours, caught := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
	after.Priority, after.Type = answerTable+1, actionNop
	ours.Priority, ours.Type, ours.IifName, ours.Goto = answerTable-1, actionGoto, "lo", answerTable+1
	caught.Priority, caught.Type, caught.IPProto, caught.Table = answerTable, actionLookup, unix.IPPROTO_UDP, answerTable
	for _, rule := range []*netlink.Rule{after, ours, caught} {
		rule.Family = family
		if err := links.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("failed to add rule %d: %w", rule.Priority, err)
		}
	}
	return nil
}
