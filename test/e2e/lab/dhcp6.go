package lab

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// dhcp6Service is the name of the DHCPv6 server's Kubernetes service.
const dhcp6Service = "dhcp6"

// relayEnv is the environment of dhcp-relay.
func (l *Lab) relayEnv() []string {
	env := []string{
		"DHCP_RELAY_UPSTREAM=eth0",
		"DHCP_RELAY_BOOTS_ADDRESS=" + bootsSocket,
	}
	if l.opts.IPv6 {
		return append(env, relayEnv6()...)
	}
	server := "smee"
	if l.opts.Tinkerbell != nil {
		server = tinkerbellService
	}
	return append(env,
		"DHCP_RELAY_SERVERS="+serviceName(server)+".",
		"DHCP_RELAY_SOURCE_ADDRESS="+ServiceIP.String())
}

// relayEnv6 has dhcp-relay relay DHCPv6. The listener has no address of the LAN, which is why it is told one.
func relayEnv6() []string {
	return []string{
		"DHCP_RELAY_DHCPV6_ENABLED=true",
		"DHCP_RELAY_DHCPV6_SERVERS=" + serviceName(dhcp6Service) + ".",
		"DHCP_RELAY_DHCPV6_LINK_ADDRESSES=macvlan0=" + ServiceIP6.String(),
	}
}

// Boot file URLs of RFC 5970 and what else a server has to say.
const (
	optBootFileURL = 59
	optVendorClass = 16
	// enterprise is Intel's number, under which PXE and HTTP boot have their vendor class (UEFI 24.7.3).
	enterprise = 343
	// tinkerbellClass is the user class of the iPXE that Smee serves.
	tinkerbellClass = "Tinkerbell"
)

// bootFileURL is what firmware loads first: Smee's iPXE by TFTP.
func bootFileURL(m Machine) string {
	if m.Firmware == UEFI {
		return "tftp://[" + ServiceIP6.String() + "]/ipxe.efi"
	}
	return "tftp://[" + ServiceIP6.String() + "]/undionly.kpxe"
}

// httpBootURL is what UEFI's HTTP boot loads first.
func httpBootURL() string { return "http://" + hostPort(ServiceIP6, 7171) + "/ipxe/ipxe.efi" }

// scriptURL is what Smee's iPXE loads.
func scriptURL(m Machine) string {
	return "http://" + hostPort(ServiceIP6, 7171) + "/" + m.MAC.String() + "/auto.ipxe"
}

// httpName is the vendor class without which UEFI's HTTP boot takes no offer (UEFI 24.7.3.1).
const httpName = "HTTPClient"

// httpClass is its option: an enterprise number, and classes each behind its length (RFC 9915 section 21.16).
func httpClass() []byte {
	return append([]byte{0, 0, enterprise >> 8, enterprise & 0xff, 0, byte(len(httpName))}, httpName...)
}

// dnsmasqHTTPClass is httpClass for dnsmasq, which knows nothing of the enterprise number: it takes texts, and writes
// each behind its length. The first text and its length stand where the number belongs, at which OVMF does not look.
const dnsmasqHTTPClass = "UE," + httpName

// halfOf is the lower (0) or upper (1) half of a range. OVMF's HTTP boot asks while its IP stack does, and dnsmasq
// advertises the same address to both: it refuses the one that requests it later, and OVMF repeats that request for
// ever. Out of a range of its own HTTP boot is given what it was offered. Kea gives it another address.
func halfOf(of netip.Prefix, half byte) netip.Prefix {
	addr := of.Addr().As16()
	addr[15] |= half << (127 - of.Bits())
	return netip.PrefixFrom(netip.AddrFrom16(addr), of.Bits()+1)
}

// dhcp6Server is dnsmasq as the DHCPv6 server behind the relay. It knows machines by option 79 (RFC 6939) alone, since
// firmware's DUID is the machine's UUID, and serves no others.
func (l *Lab) dhcp6Server() Process {
	args := []string{
		"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--user=root",
		"--port=0", // no DNS
		"--interface=eth0", "--bind-interfaces", "--leasefile-ro",
		fmt.Sprintf("--dhcp-range=%s,static,%d,1h", LAN6.Masked().Addr(), LAN6.Bits()),
		"--dhcp-userclass=set:tinkerbell," + tinkerbellClass,
		"--dhcp-match=set:http,option6:61,16", // architecture: x64 UEFI HTTP boot
		"--dhcp-option=tag:http,option6:bootfile-url," + httpBootURL(),
		fmt.Sprintf("--dhcp-option-force=tag:http,option6:%d,%s", optVendorClass, dnsmasqHTTPClass),
	}
	for i, m := range l.opts.Machines {
		tag := fmt.Sprintf("machine%d", i)
		args = append(args,
			fmt.Sprintf("--dhcp-host=%s,set:%s,[%s]", m.MAC, tag, halfOf(m.Range6(), 0)),
			fmt.Sprintf("--dhcp-host=tag:http,%s,set:%s,[%s]", m.MAC, tag, halfOf(m.Range6(), 1)),
			fmt.Sprintf("--dhcp-option=tag:%s,tag:!tinkerbell,tag:!http,option6:bootfile-url,%s", tag, bootFileURL(m)),
			fmt.Sprintf("--dhcp-option=tag:%s,tag:tinkerbell,option6:bootfile-url,%s", tag, scriptURL(m)))
	}
	return Process{Role: RoleSmee, Path: "dnsmasq", Args: args, Tmpfs: []string{"/run"}} // its pid file
}

// StartKea starts Kea's dhcp6 from Debian in place of dnsmasq, with the same answers. Like that, it knows machines by
// option 79 alone.
func (l *Lab) StartKea(ctx context.Context) (*Proc, error) {
	path := filepath.Join(l.opts.RunDir, "kea-dhcp6.json")
	if err := program.WriteJSON(path, keaConfig(l.opts.Machines)); err != nil {
		return nil, err
	}
	proc, err := l.Start(Process{
		Name: "kea", Role: RoleSmee, Path: "kea-dhcp6", Args: []string{"-c", path}, Watch: true,
		Env:   []string{"KEA_PIDFILE_DIR=/run", "KEA_LOCKFILE_DIR=none", "PATH=/usr/sbin:/usr/bin"},
		Tmpfs: []string{"/run"},
	})
	if err != nil {
		return nil, err
	}
	return proc, l.WaitReady(ctx, proc, l.saysReady(proc.name, "DHCP6_STARTED"))
}

// keaConfig is what dhcp6Server says in dnsmasq's words.
func keaConfig(machines []Machine) map[string]any {
	type object = map[string]any
	option := func(name, data string) object { return object{"name": name, "data": data} }
	isHTTP := "option[61].exists and option[61].hex == 0x0010"
	isTinkerbell := "substring(option[15].hex, 2, all) == '" + tinkerbellClass + "'"
	classes := []object{{
		"name": "http", "test": isHTTP,
		"option-data": []object{
			option("bootfile-url", httpBootURL()),
			{
				"code": optVendorClass, "space": "dhcp6", "csv-format": false, "always-send": true,
				"data": hex.EncodeToString(httpClass()),
			},
		},
	}}
	reservations := []object{}
	for _, m := range machines {
		known := "relay6[0].option[79].hex == 0x0001" + hex.EncodeToString(m.MAC)
		classes = append(classes,
			object{
				"name": m.Name + "-firmware", "test": known + " and not (" + isHTTP + ") and not (" + isTinkerbell + ")",
				"option-data": []object{option("bootfile-url", bootFileURL(m))},
			},
			object{
				"name": m.Name + "-ipxe", "test": known + " and " + isTinkerbell,
				"option-data": []object{option("bootfile-url", scriptURL(m))},
			})
		reservations = append(reservations, object{
			"hw-address": m.MAC.String(), "ip-addresses": m.addresses6(), "hostname": m.Name,
		})
	}
	return object{"Dhcp6": object{
		"interfaces-config":            object{"interfaces": []string{"eth0/" + DHCP6IP.String()}},
		"server-id":                    object{"type": "LL", "persist": false},
		"lease-database":               object{"type": "memfile", "persist": false},
		"mac-sources":                  []string{"client-link-addr-option"},
		"host-reservation-identifiers": []string{"hw-address"},
		"valid-lifetime":               60, "preferred-lifetime": 50,
		"renew-timer": 5, "rebind-timer": 10, // so that a lease's life fits a test
		"client-classes": classes,
		"subnet6": []object{{
			"id": 1, "subnet": LAN6.String(), "pools": []object{}, "reservations": reservations,
		}},
		"loggers": []object{{
			"name": "kea-dhcp6", "severity": "DEBUG", "debuglevel": 40,
			"output_options": []object{{"output": "stdout"}},
		}},
	}}
}

// saysReady waits for a text in a program's log.
func (l *Lab) saysReady(name, text string) func(context.Context) error {
	return func(context.Context) error {
		said, err := os.ReadFile(l.LogPath(name))
		if err == nil && !strings.Contains(string(said), text) {
			err = errors.New("it has not said " + text)
		}
		return err
	}
}
