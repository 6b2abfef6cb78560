package lab

import (
	"context"
	"errors"
	"os/exec"
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
		return !o.IPv6 || o.Tinkerbell != nil
	case name == API, name == Tinkerbell:
		return o.Tinkerbell == nil
	case name == Smee, name == Hegel:
		return o.Tinkerbell != nil
	}
	return false
}

// FilesPort is where machines get the operating system's files: the preset's port.
func (o *Options) FilesPort() uint16 {
	if o.Tinkerbell != nil {
		return TinkerbellFilesPort
	}
	return 8080
}

// tinkerbell runs the one binary in Smee's place. Left out are what asks a BMC (Rufio, the serial console) and the user
// interface, which the preset hides from machines.
func (l *Lab) tinkerbell() (Process, func(context.Context) error, error) {
	if err := l.writeKubeconfig(); err != nil {
		return Process{}, nil, err
	}
	service, own := ServiceIP.String(), SmeeIP.String()
	args := []string{
		"--backend=kube", "--backend-kube-config=" + l.kubeconfigPath(), "--backend-kube-namespace=" + Namespace,
		"--enable-rufio-controller=false", "--enable-secondstar=false", "--enable-ui=false",
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
		more, err := tinkerbell6(l.opts.Tinkerbell.Server)
		if err != nil {
			return Process{}, nil, err
		}
		args = append(args, more...)
	}
	http := l.httpReady(RoleSmee, "http://"+hostPort(SmeeIP, TinkerbellHTTPPort)+"/healthcheck")
	grpc := l.tcpReady(RoleSmee, hostPort(SmeeIP, 42113))
	ready := func(ctx context.Context) error {
		if err := errors.Join(http(ctx), grpc(ctx)); err != nil {
			return err
		}
		return l.createHardware(ctx) // the binary has defined what that is
	}
	return Process{Role: RoleSmee, Path: l.opts.Tinkerbell.Server, Args: args}, ready, nil
}

// createHardware tells the API of the machines that it does not know yet.
func (l *Lab) createHardware(ctx context.Context) error {
	for _, object := range tinkerbellHardware(&l.opts) {
		if err := l.Create(ctx, "hardware", object); err != nil && !errors.Is(err, ErrExists) {
			return err
		}
	}
	return nil
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

// tinkerbellHardware are the machines as Hardware of tinkerbell.org/v1alpha1.
func tinkerbellHardware(o *Options) []any {
	hardware := []any{}
	for _, m := range o.Machines {
		lease := m.Lease
		if lease == 0 {
			lease = 24 * time.Hour
		}
		netboot := map[string]any{"allowPXE": !m.NoPXE, "allowWorkflow": true}
		ipxe := map[string]any{}
		if m.Script != "" {
			ipxe["contents"] = m.Script
		}
		if m.BootFile != "" {
			ipxe["binary"] = m.BootFile
		}
		if len(ipxe) > 0 {
			netboot["ipxe"] = ipxe
		}
		if m.PXELinux != "" {
			netboot["pxelinux"] = map[string]any{"config": m.PXELinux}
		}
		address, mask, gateway := m.IP.String(), netmask(o.machinesNet()), GatewayIP.String()
		spec := map[string]any{
			"metadata": map[string]any{"instance": map[string]any{
				"id": m.MAC.String(), "hostname": m.Name, "ips": []any{map[string]any{
					"address": address, "netmask": mask, "gateway": gateway, "family": 4, "public": true,
				}},
			}},
			"interfaces": []any{map[string]any{
				"dhcp": map[string]any{
					"mac":          m.MAC.String(),
					"hostname":     m.Name,
					"domain_name":  "lab.example",
					"lease_time":   int(lease / time.Second),
					"name_servers": []string{gateway},
					"time_servers": []string{gateway},
					"arch":         "x86_64",
					"uefi":         m.Firmware == UEFI,
					"ip":           map[string]any{"address": address, "netmask": mask, "gateway": gateway},
				},
				"netboot": netboot,
			}},
		}
		if m.Userdata != "" {
			spec["userData"] = m.Userdata
		}
		hardware = append(hardware, Object("Hardware", m.Name, spec))
	}
	return hardware
}
