package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// Of the second relay: its network namespace, and its address among the pods.
const roleReplica = "pod2"

// ReplicaIP is the address of the second relay's pod.
var ReplicaIP = netip.MustParseAddr("10.244.0.14")

// SecondRelay is the name of [Lab.AddRelay]'s program, for [Lab.Kill].
const SecondRelay = "dhcp-relay-2"

// AddRelay starts a second dhcp-relay in a pod of its own, as on another node: its listener is on the same LAN. It
// returns when that relay is ready.
func (l *Lab) AddRelay(ctx context.Context) error {
	if err := l.addNamespace(roleReplica); err != nil {
		return err
	}
	port, err := l.portName()
	if err != nil {
		return err
	}
	if err := l.cable(RoleNode, "to-"+roleReplica, bridgePods, roleReplica, "eth0", nil); err != nil {
		return fmt.Errorf("failed to connect the second relay to the pods: %w", err)
	}
	if err := l.cable(RoleLAN, port, bridgeLAN, roleReplica, "macvlan0", nil); err != nil {
		return fmt.Errorf("failed to connect the second relay to the LAN: %w", err)
	}
	err = l.Do(roleReplica, func() error {
		if err := addAddr("eth0", netip.PrefixFrom(ReplicaIP, Pods.Bits())); err != nil {
			return err
		}
		if err := addDefaultRoute(PodsGWIP); err != nil {
			return err
		}
		return setSysctl("net/ipv4/ip_unprivileged_port_start", "0")
	})
	if err != nil {
		return fmt.Errorf("failed to configure the second relay's pod: %w", err)
	}
	program, _, err := l.program(DHCPRelay)
	if err != nil {
		return err
	}
	admin := hostPort(ReplicaIP, RelayAdminPort)
	program.Name, program.Role, program.Watch = SecondRelay, roleReplica, true
	program.Env = []string{
		"DHCP_RELAY_ADMIN_ADDRESS=" + admin, "DHCP_RELAY_SERVERS=" + SmeeIP.String(),
		"DHCP_RELAY_SOURCE_ADDRESS=" + ServiceIP.String(),
	}
	proc, err := l.Start(program)
	if err != nil {
		return err
	}
	return l.WaitReady(ctx, proc, l.httpReady(roleReplica, "http://"+admin+"/readyz"))
}
