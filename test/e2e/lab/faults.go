package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// serviceOf is the name of a program's Kubernetes service.
var serviceOf = map[string]string{Smee: "smee", Hegel: "hegel", Tink: "tink-server"}

func (l *Lab) addrOf(program string) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addrs[program]
}

// Replace does to Smee, Hegel or Tink what a rollout does: the program ends, its address goes, a new one starts
// under another address of [Pods], and the service's name follows. Tink's own arguments must not name an address.
func (l *Lab) Replace(ctx context.Context, program string, addr netip.Addr) error {
	service, ok := serviceOf[program]
	if !ok {
		return fmt.Errorf("failed to replace %s: it is no service", program)
	}
	if !Pods.Contains(addr) {
		return fmt.Errorf("failed to replace %s: %s is not in %s", program, addr, Pods)
	}
	if err := l.Kill(program); err != nil {
		return err
	}
	old := l.addrOf(program)
	err := l.Do(program, func() error { // its namespace has its name
		if err := removeAddr("eth0", netip.PrefixFrom(old, Pods.Bits())); err != nil {
			return err
		}
		if err := addAddr("eth0", netip.PrefixFrom(addr, Pods.Bits())); err != nil {
			return err
		}
		return addDefaultRoute(PodsGWIP)
	})
	if err != nil {
		return fmt.Errorf("failed to replace %s: %w", program, err)
	}
	l.mu.Lock()
	l.addrs[program] = addr
	l.mu.Unlock()
	if err := l.Restart(ctx, program); err != nil {
		return err
	}
	return l.SetRecord(service, addr)
}

// Blackhole has a host lose what it sends to an address, or not any more, as a firewall does. A route would not do:
// the kernel ignores routes for sockets that are bound to an interface, as those of DHCP clients are.
func (l *Lab) Blackhole(role string, addr netip.Addr, lost bool) error {
	err := l.Do(role, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "blackhole-" + addr.String()}
		if !lost {
			conn.DelTable(table)
			return conn.Flush()
		}
		conn.AddTable(table)
		chain := conn.AddChain(&nftables.Chain{
			Name: "output", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
		})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: concat(
			matchAddr(ipDestination, netip.PrefixFrom(addr, 32), expr.CmpOpEq),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
		)})
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("failed to change what %s sends to %s: %w", role, addr, err)
	}
	return nil
}

// AddDHCPServer puts a second DHCP server on the LAN, see [Lab.StartDHCPServer]: the site's own server beside Smee in
// proxy mode, or a rogue.
func (l *Lab) AddDHCPServer(name string, addr, first, last netip.Addr, args ...string) (*Proc, error) {
	role, err := l.AddHost(name, nil)
	if err != nil {
		return nil, err
	}
	if err := l.Configure(role, netip.PrefixFrom(addr, LAN.Bits()), GatewayIP); err != nil {
		return nil, err
	}
	// Firmware in Go reads frames as they are: the checksum has to be in them.
	if err := l.Do(role, checksumsInSoftware); err != nil {
		return nil, err
	}
	return l.StartDHCPServer(name, role, first, last, args...)
}

// StartDHCPServer starts dnsmasq from Debian as an authoritative DHCP server on a role's eth0 and waits until it
// listens. It hands out the addresses of [LAN] from first to last. Args are added to its flags.
func (l *Lab) StartDHCPServer(name, role string, first, last netip.Addr, args ...string) (*Proc, error) {
	proc, err := l.Start(Process{
		Name: name, Role: role, Path: "dnsmasq", Watch: true,
		Args: append([]string{
			"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--user=root",
			"--port=0", // no DNS
			"--interface=eth0", "--bind-interfaces",
			"--dhcp-authoritative", "--no-ping", "--leasefile-ro",
			fmt.Sprintf("--dhcp-range=%s,%s,%s,10m", first, last, netmask(LAN)),
		}, args...),
		Tmpfs: []string{"/run"}, // its pid file
	})
	if err != nil {
		return nil, err
	}
	return proc, l.WaitReady(context.Background(), proc, func(context.Context) error {
		// It says so once its socket is open.
		said, err := os.ReadFile(proc.log)
		if err == nil && !strings.Contains(string(said), "DHCP, IP range "+first.String()) {
			err = errors.New("it has not announced its range")
		}
		return err
	})
}
