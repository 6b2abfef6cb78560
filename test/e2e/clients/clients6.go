package clients

import (
	"os"
	"path/filepath"
	"syscall"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// All6 are the DHCPv6 clients that the relay is tested with. Debian's busybox has no udhcpc6.
var All6 = []Client{Dhclient6, Dhcpcd6, Networkd}

// Dhclient6 is ISC's.
var Dhclient6 = Client{
	Name: "dhclient6", Program: "dhclient", Package: "isc-dhcp-client",
	process: func(dir string) (lab.Process, error) {
		// By default it waits and asks for more than there is.
		if err := os.WriteFile(filepath.Join(dir, "dhclient.conf"), []byte("initial-delay 0;\n"), 0o644); err != nil {
			return lab.Process{}, err
		}
		return lab.Process{Args: append([]string{"-6", "-d", "-v"}, dhclientFiles(dir)...)}, nil
	},
	releaseArgs: func(dir string) []string { return append([]string{"-6", "-d", "-v", "-r"}, dhclientFiles(dir)...) },
}

// Dhcpcd6 is Roy Marples's. It asks by DHCPv6 when a router's advertisement has the M flag.
var Dhcpcd6 = Client{
	Name: "dhcpcd6", Program: "dhcpcd", Package: "dhcpcd-base", Configures: true,
	release: syscall.SIGALRM,
	process: func(dir string) (lab.Process, error) {
		conf := filepath.Join(dir, "dhcpcd.conf")
		text := "ipv6only\nnodelay\nscript /bin/true\ntimeout 20\n"
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			return lab.Process{}, err
		}
		return lab.Process{
			Args:  []string{"-B", "-d", "-f", conf, "eth0"},
			Tmpfs: []string{"/run", "/var/lib"}, // its socket, pid file and leases
		}, nil
	},
}

// Networkd is systemd's, without the rest of systemd. It asks by DHCPv6 when an advertisement has the M flag.
var Networkd = networkd("DHCP=ipv6\nIPv6AcceptRA=yes\nLinkLocalAddressing=ipv6\n" +
	"[DHCPv6]\nRapidCommit=no\n") // all four messages, also with a server that knows of two

// Networkd4 asks by DHCPv4.
var Networkd4 = networkd("DHCP=ipv4\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n")

// beforeNetworkd prepares what systemd would. A read-only /sys tells networkd that there is no udev to wait for.
const beforeNetworkd = `cd /run &&
mkdir -p systemd/network systemd/netif/links systemd/netif/leases systemd/netif/lldp &&
chown -R systemd-network /run/systemd && cp "$0" /run/systemd/network/ && mount -o remount,bind,ro /sys && exec "$@"`

func networkd(network string) Client {
	return Client{
		Name: "networkd", Program: "/lib/systemd/systemd-networkd", Package: "systemd", Configures: true,
		process: func(dir string) (lab.Process, error) {
			conf := filepath.Join(dir, "eth0.network")
			text := "[Match]\nName=eth0\n[Network]\n" + network
			if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
				return lab.Process{}, err
			}
			return lab.Process{
				Path: "/bin/sh", Args: []string{"-c", beforeNetworkd, conf, "/lib/systemd/systemd-networkd"},
				Env: []string{"SYSTEMD_LOG_LEVEL=debug", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Tmpfs: []string{"/run"},
			}, nil
		},
	}
}
