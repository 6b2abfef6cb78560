package lab

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Ports of the one binary as the preset "tinkerbell" has them.
const (
	TinkerbellHTTPPort  = 7080
	TinkerbellFilesPort = 7173 // of stack-proxy, for which the binary has no server of its own
)

// tinkerbellService is the name of the one binary's Kubernetes service, which the preset asks for everything.
const tinkerbellService = "tinkerbell"

// leavesOut tells whether a program is not started with the lab.
func (o *Options) leavesOut(name string) bool {
	switch {
	case slices.Contains(o.Without, name):
		return true
	case name == Tink:
		return o.Tink.Path == ""
	case name == Hardware:
		return o.Hardware.Path == ""
	case name == DHCP6:
		return !o.IPv6 || o.Tinkerbell != ""
	case name == Tinkerbell:
		return o.Tinkerbell == ""
	case name == Smee, name == Hegel:
		return o.Tinkerbell != ""
	}
	return false
}

// TinkAddr is where [Options.Tink] has to listen: with the one binary, that is the binary's own address, since one
// Service name stands for all its ports.
func (o *Options) TinkAddr() netip.AddrPort {
	if o.Tinkerbell != "" {
		return netip.AddrPortFrom(SmeeIP, 42113)
	}
	return netip.AddrPortFrom(TinkIP, 42113)
}

// tinkRole is the namespace of [Options.Tink].
func (o *Options) tinkRole() string {
	if o.Tinkerbell != "" {
		return RoleSmee
	}
	return RoleTink
}

// tinkerbell runs the one binary in Smee's place. What needs the Kubernetes API is off: metadata (Tootles), Tink
// Server, controllers, SSH, the user interface.
func (l *Lab) tinkerbell() (Process, func(context.Context) error, error) {
	path := filepath.Join(l.opts.RunDir, "hardware.yaml")
	if err := writeJSON(path, tinkerbellHardware(&l.opts)); err != nil {
		return Process{}, nil, err
	}
	service, own := ServiceIP.String(), SmeeIP.String()
	args := []string{
		"--backend=file", "--backend-file-path=" + path,
		"--enable-tootles=false", "--enable-tink-server=false", "--enable-tink-controller=false",
		"--enable-rufio-controller=false", "--enable-secondstar=false", "--enable-ui=false",
		"--enable-crd-migrations=false",
		"--public-ipv4=" + service,
		"--bind-address=" + own,
		"--tftp-server-bind-addr=" + own,
		"--syslog-bind-addr=" + own,
		"--dhcp-ip-for-packet=" + service,
		"--dhcp-tftp-ip=" + service,
		"--dhcp-syslog-ip=" + service,
		"--ipxe-http-script-osie-url=http://" + hostPort(ServiceIP, TinkerbellFilesPort),
		"--ipxe-script-tink-server-addr-port=" + hostPort(ServiceIP, 42113),
		"--trusted-proxies=" + PodIP.String() + "/32",
	}
	if l.opts.IPv6 {
		more, err := tinkerbell6(l.opts.Tinkerbell)
		if err != nil {
			return Process{}, nil, err
		}
		args = append(args, more...)
	}
	ready := l.httpReady(RoleSmee, "http://"+hostPort(SmeeIP, TinkerbellHTTPPort)+"/healthcheck")
	return Process{Role: RoleSmee, Path: l.opts.Tinkerbell, Args: args}, ready, nil
}

// ErrNoDHCPv6 is a Tinkerbell that has no DHCPv6 yet.
var ErrNoDHCPv6 = errors.New("this Tinkerbell has no DHCPv6")

// tinkerbell6 has the one binary serve DHCPv6, and point machines to the service's IPv6 address. In mode derived it
// makes addresses of the relay's link-address and the machine's MAC, for which it needs option 79. Some of its flags
// are called "dhcp-NAME-v6" in some versions, "dhcpv6-NAME" in others.
func tinkerbell6(path string) ([]string, error) {
	help, _ := exec.Command(path, "--help").CombinedOutput() // its status says nothing
	flag := func(name string) string { return "--dhcpv6-" + name }
	switch {
	case strings.Contains(string(help), "--dhcp-enabled-v6"):
		flag = func(name string) string { return "--dhcp-" + name + "-v6" }
	case !strings.Contains(string(help), "--dhcpv6-enabled"):
		return nil, ErrNoDHCPv6
	}
	service := ServiceIP6.String()
	return []string{
		flag("enabled") + "=true", flag("mode") + "=derived",
		flag("derived-relay-address-prefix") + "=" + strconv.Itoa(LAN6.Bits()),
		flag("tftp-ip") + "=" + service, flag("syslog-ip") + "=" + service,
		"--public-ipv6=" + service,
		"--ipxe-http-script-osie-url-v6=http://" + hostPort(ServiceIP6, TinkerbellFilesPort),
		"--ipxe-script-tink-server-addr-port-v6=" + hostPort(ServiceIP6, 42113),
	}, nil
}

// tinkerbellHardware is the format of the one binary's file backend: Hardware of tinkerbell.org/v1alpha1.
func tinkerbellHardware(o *Options) []any {
	hardware := []any{}
	for _, m := range o.Machines {
		lease := m.Lease
		if lease == 0 {
			lease = 24 * time.Hour
		}
		netboot := map[string]any{"allowPXE": !m.NoPXE}
		if m.Script != "" {
			netboot["ipxe"] = map[string]any{"contents": m.Script}
		}
		hardware = append(hardware, map[string]any{
			"apiVersion": "tinkerbell.org/v1alpha1",
			"kind":       "Hardware",
			"metadata":   map[string]any{"name": m.Name, "namespace": Namespace},
			"spec": map[string]any{"interfaces": []any{map[string]any{
				"dhcp": map[string]any{
					"mac":          m.MAC.String(),
					"hostname":     m.Name,
					"domain_name":  "lab.example",
					"lease_time":   int(lease / time.Second),
					"name_servers": []string{GatewayIP.String()},
					"time_servers": []string{GatewayIP.String()},
					"arch":         "x86_64",
					"uefi":         m.Firmware == UEFI,
					"ip": map[string]any{
						"address": m.IP.String(), "netmask": netmask(o.machinesNet()), "gateway": GatewayIP.String(),
					},
				},
				"netboot": netboot,
			}}},
		})
	}
	return hardware
}
