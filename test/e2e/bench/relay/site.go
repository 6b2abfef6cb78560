package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/tinkerbell/stack/test/e2e/network"
)

// site is a LAN with machines, a relay with a leg on it, and a server: three network namespaces in a row.
type site struct {
	machines, relay, server netns.NsHandle
}

// Addresses of the site.
const (
	relayLAN = "192.0.2.9"
	// machinesLAN is for machines that have an address already.
	machinesLAN = "192.0.2.200"
	relayIP     = "10.244.0.10"
	serverIP    = "10.244.0.11"
	relayLAN6   = "2001:db8:1::9"
	// machinesLAN6 is for machines that have an address already.
	machinesLAN6 = "2001:db8:1::77"
	relayIP6     = "fd00:244::10"
	serverIP6    = "fd00:244::11"
	lanLink      = "lan0"
	upLink       = "eth0"
)

func newSite() (s *site, err error) {
	s = &site{}
	for _, each := range []*netns.NsHandle{&s.machines, &s.relay, &s.server} {
		if *each, err = network.New(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if err := s.wire(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *site) close() error {
	var faults []error
	for _, each := range []netns.NsHandle{s.machines, s.relay, s.server} {
		if each > 0 {
			faults = append(faults, each.Close())
		}
	}
	return errors.Join(faults...)
}

func (s *site) wire() error {
	for _, ns := range []netns.NsHandle{s.machines, s.relay, s.server} {
		// Without duplicate address detection an address is there at once.
		if err := network.Do(ns, func() error { return setConf6("default", "accept_dad", "0") }); err != nil {
			return err
		}
	}
	for _, join := range []struct {
		ns   netns.NsHandle
		name string
		peer string
		in   netns.NsHandle
	}{{s.relay, lanLink, lanLink, s.machines}, {s.relay, upLink, upLink, s.server}} {
		if err := network.Join(join.ns, join.name, join.in, join.peer); err != nil {
			return err
		}
	}
	for _, up := range []struct {
		ns        netns.NsHandle
		link      string
		addresses []string
	}{
		{s.machines, lanLink, []string{machinesLAN + "/24", machinesLAN6 + "/64"}},
		{s.relay, lanLink, []string{relayLAN + "/24", relayLAN6 + "/64"}},
		{s.relay, upLink, []string{relayIP + "/24", relayIP6 + "/64"}},
		{s.server, upLink, []string{serverIP + "/24", serverIP6 + "/64"}},
		{s.machines, "lo", nil}, {s.relay, "lo", nil}, {s.server, "lo", nil},
	} {
		if err := network.Raise(up.ns, up.link, up.addresses...); err != nil {
			return err
		}
	}
	// dnsmasq and dhcp-helper put their address on the LAN into giaddr.
	if err := network.Route(s.server, "192.0.2.0/24", relayIP); err != nil {
		return fmt.Errorf("failed to route the LAN to the server: %w", err)
	}
	// dnsmasq puts that on the LAN into the source of RELAY-FORW, too.
	if err := network.Route(s.server, "2001:db8:1::/64", relayIP6); err != nil {
		return fmt.Errorf("failed to route the LAN to the server: %w", err)
	}
	for n := range machinesLinkLocal {
		if err := network.Raise(s.machines, lanLink, netip.AddrFrom16(linkLocal(n)).String()+"/64"); err != nil {
			return fmt.Errorf("failed to give the machines their addresses: %w", err)
		}
	}
	// Every candidate may hear a broadcast from 0.0.0.0 on its UDP socket.
	return network.Do(s.relay, func() error {
		for _, link := range []string{"all", lanLink, upLink} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("0"), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// setConf6 sets an IPv6 setting of the calling thread's network namespace.
func setConf6(link, name, value string) error {
	err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/"+name, []byte(value), 0)
	if err != nil {
		return fmt.Errorf("failed to set %s of %s: %w", name, link, err)
	}
	return nil
}

// peers are the programs that this relay is compared with, and the Debian packages they come from.
var peers = map[string]string{"dhcrelay": "isc-dhcp-relay", "dnsmasq": "dnsmasq-base", "dhcp-helper": "dhcp-helper"}

// findPeers finds the peers on this machine, or fetches their packages and unpacks them into a directory: installed,
// their services would start. What it cannot get it leaves out.
func findPeers(directory string) (found map[string]string, missing []error) {
	found = map[string]string{}
	for program, name := range peers {
		path, err := findPeer(program, name, directory)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		found[program] = path
	}
	return found, missing
}

func findPeer(program, name, directory string) (string, error) {
	unpacked := filepath.Join(directory, "usr/sbin", program)
	if _, err := os.Stat(unpacked); err == nil {
		return unpacked, nil
	}
	for _, where := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin"} {
		if path := filepath.Join(where, program); exec.Command("test", "-x", path).Run() == nil {
			return path, nil
		}
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	fetch := exec.Command("apt-get", "download", "-q", name)
	fetch.Dir = directory
	if out, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to fetch Debian package %s (%s is left out): %w\n%s", name, program, err, out)
	}
	packages, err := filepath.Glob(filepath.Join(directory, name+"_*.deb"))
	if err != nil || len(packages) == 0 {
		return "", fmt.Errorf("failed to find Debian package %s in %s", name, directory)
	}
	if out, err := exec.Command("dpkg-deb", "-x", packages[0], directory).CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to unpack %s: %w\n%s", packages[0], err, out)
	}
	return unpacked, nil
}

// lower takes an address from a link.
func lower(ns netns.NsHandle, name, address string) error {
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return handle.AddrDel(link, parsed)
}
