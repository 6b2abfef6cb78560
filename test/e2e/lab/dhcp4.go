package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// PoolServer is a DHCP server from Debian that gives addresses out of pools, of [LAN] and of [Rack]. It finds the pool
// by link selection, and knows no machines.
type PoolServer struct {
	Name    string
	Program string
	Package string // of Debian

	process func(dir string, pools []pool) (Process, error)
	ready   string // what it says when it listens
}

// pool is the addresses that a server gives on a network.
type pool struct {
	net         netip.Prefix
	gateway     netip.Addr
	first, last netip.Addr
}

// Bounds of the leases, in seconds: a renewal fits a test, and is due before the half of the lease.
const (
	poolLease = 40
	poolRenew = 6
)

// PoolServers are those that are known.
var PoolServers = []PoolServer{Kea4, Dhcpd, Dnsmasq}

// Kea4 is Kea's.
var Kea4 = PoolServer{
	Name: "Kea", Program: "kea-dhcp4", Package: "kea-dhcp4-server", ready: "DHCP4_STARTED",
	process: func(dir string, pools []pool) (Process, error) {
		type object = map[string]any
		var subnets []object
		for i, p := range pools {
			subnets = append(subnets, object{
				"id": i + 1, "subnet": p.net.Masked().String(),
				"pools":       []object{{"pool": fmt.Sprintf("%s-%s", p.first, p.last)}},
				"option-data": []object{{"name": "routers", "data": p.gateway.String()}},
			})
		}
		path := filepath.Join(dir, "kea-dhcp4.json")
		return Process{
				Args:  []string{"-c", path},
				Env:   []string{"KEA_PIDFILE_DIR=/run", "KEA_LOCKFILE_DIR=none", "PATH=/usr/sbin:/usr/bin"},
				Tmpfs: []string{"/run"},
			}, program.WriteJSON(path, object{"Dhcp4": object{
				"interfaces-config": object{"interfaces": []string{"eth0"}, "dhcp-socket-type": "udp"},
				"lease-database":    object{"type": "memfile", "persist": false},
				"valid-lifetime":    poolLease, "renew-timer": poolRenew, "rebind-timer": poolLease - 5,
				"subnet4": subnets,
				"loggers": []object{{
					"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 40, "output_options": []object{{"output": "stdout"}},
				}},
			}})
	},
}

// Dhcpd is ISC's.
var Dhcpd = PoolServer{
	Name: "dhcpd", Program: "dhcpd", Package: "isc-dhcp-server", ready: "Server starting service",
	process: func(dir string, pools []pool) (Process, error) {
		conf, leases := filepath.Join(dir, "dhcpd.conf"), filepath.Join(dir, "dhcpd.leases")
		text := fmt.Sprintf("authoritative; ping-check false; default-lease-time %d; max-lease-time %[1]d;\n"+
			"option dhcp-renewal-time %d; subnet %s netmask %s {}\n",
			poolLease, poolRenew, Pods.Masked().Addr(), netmask(Pods))
		for _, p := range pools {
			text += fmt.Sprintf("subnet %s netmask %s { range %s %s; option routers %s; }\n",
				p.net.Masked().Addr(), netmask(p.net), p.first, p.last, p.gateway)
		}
		return Process{Args: []string{"-4", "-f", "-d", "--no-pid", "-cf", conf, "-lf", leases, "eth0"}},
			errors.Join(os.WriteFile(conf, []byte(text), 0o644), os.WriteFile(leases, nil, 0o644))
	},
}

// Dnsmasq reads one option 82 only.
var Dnsmasq = PoolServer{
	Name: "dnsmasq", Program: "dnsmasq", Package: "dnsmasq-base", ready: "DHCP, IP range",
	process: func(_ string, pools []pool) (Process, error) {
		args := []string{
			"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--user=root", "--port=0",
			"--interface=eth0", "--bind-interfaces", "--dhcp-authoritative", "--no-ping", "--leasefile-ro",
			fmt.Sprintf("--dhcp-option-force=option:T1,%d", poolRenew),
		}
		for _, p := range pools {
			// dnsmasq gives no shorter lease than two minutes, and names the relay's giaddr where it is told no router.
			args = append(args, fmt.Sprintf("--dhcp-range=set:%s,%s,%s,%s,2m", p.first, p.first, p.last, netmask(p.net)),
				fmt.Sprintf("--dhcp-option=tag:%s,option:router,%s", p.first, p.gateway))
		}
		return Process{Args: args, Tmpfs: []string{"/run"}}, nil // its pid file
	},
}

// StartPools starts a server in place of Smee.
func (l *Lab) StartPools(ctx context.Context, s PoolServer) (*Proc, error) {
	process, err := s.process(l.opts.RunDir, []pool{
		{LAN, GatewayIP, netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.169")},
		{Rack, RackGatewayIP, netip.MustParseAddr("198.51.100.150"), netip.MustParseAddr("198.51.100.169")},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to configure %s: %w", s.Name, err)
	}
	process.Name, process.Role, process.Path, process.Watch = s.Name, RoleSmee, s.Program, true
	proc, err := l.Start(process)
	if err != nil {
		return nil, err
	}
	return proc, l.WaitReady(ctx, proc, l.saysReady(proc.name, s.ready))
}
