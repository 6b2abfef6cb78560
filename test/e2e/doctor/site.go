package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// site is a lab with a laptop on the LAN, which has no address, and one that is plugged in elsewhere.
type site struct {
	*lab.Lab
	dir     string
	doctor  string // the program
	laptop  string // roles
	lost    string
	own     string              // has an address of its own
	args    map[string][]string // of the lab's services; changed before a restart
	servers []*http.Server
}

// laptopMAC is the laptop's own.
var laptopMAC = net.HardwareAddr{0x52, 0x54, 0, 0x5e, 3, 1}

// elsewhere is a laptop on another VLAN.
const elsewhere = "elsewhere"

// loaders is the name of the server of boot files: Smee, until another takes its place.
const loaders = "loaders"

// mirrorPort is a port of the service IP behind which the torn file is.
const mirrorPort = lab.TinkerbellFilesPort

// machines are those that Smee knows.
func machines() (all []lab.Machine) {
	script := func(kernel string) string {
		return "#!ipxe\nkernel " + kernel + " console=ttyS0\ninitrd http://192.0.2.2:8080/initramfs-x86_64\nboot\n"
	}
	for i, m := range []lab.Machine{
		{Name: good},
		{Name: notAllowed, NoPXE: true},
		{Name: noScript, ScriptURL: "http://192.0.2.2:7171" + missingScript},
		{Name: noKernel, Script: script("http://192.0.2.2:8080/vmlinuz-removed")},
		{Name: tornKernel, Script: script(fmt.Sprintf("http://192.0.2.2:%d/torn", mirrorPort))},
		{Name: expired, Script: script("https://192.0.2.2/vmlinuz")},
		{Name: strayScript, ScriptURL: "http://192.0.2.77:7171/auto.ipxe"},
		{Name: x86Script, Script: script("http://192.0.2.2:8080/vmlinuz-x86_64")},
		{Name: noName, Script: script("http://boot.nowhere/vmlinuz")},
		{Name: wantsTLS, Script: script(
			"http://192.0.2.2:8080/vmlinuz-x86_64 grpc_authority=192.0.2.2:42113 tinkerbell_tls=true")},
		{Name: rogueServed}, {Name: routerAtHome},
		{Name: unknown}, {Name: otherPortTFTP}, // these two are left out by open
	} {
		m.MAC = net.HardwareAddr{0x52, 0x54, 0, 0x5e, 2, byte(i + 1)}
		m.IP = netip.AddrFrom4([4]byte{192, 0, 2, byte(120 + i)})
		m.Firmware = lab.UEFI
		all = append(all, m)
	}
	return all
}

func machine(name string) lab.Machine {
	for _, m := range machines() {
		if m.Name == name {
			return m
		}
	}
	panic("no machine is named " + name)
}

// open brings the site up; a small one has nothing that only faults need.
func open(ctx context.Context, dir string, small bool, logf func(string, ...any)) (*site, error) {
	s := &site{dir: dir, args: map[string][]string{}}
	files, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	tink, err := s.tink(ctx)
	if err != nil {
		return nil, err
	}
	known := machines()
	s.Lab, err = lab.Up(ctx, lab.Options{
		RunDir: filepath.Join(dir, "logs"), Artifacts: files, Machines: known[:len(known)-2], Args: s.args, Logf: logf,
		Routes: fmt.Sprintf(`preset: classic
routes:
  - {name: smee-tftp, protocol: tftp, listen: 69, backends: "%s:69", optional: true}
  - {name: mirror, protocol: http, listen: %d, backends: "%s"}
  - {name: secure, protocol: tcp, listen: 443, backends: "%s"}
`, loaders, mirrorPort, netip.AddrPortFrom(lab.TinkIP, mirrorPort), netip.AddrPortFrom(lab.TinkIP, 443)),
		Tink: tink,
	})
	if err != nil {
		return nil, err
	}
	if err := s.equip(small); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// prepare builds the doctor and makes what the lab's files are.
func (s *site) prepare(ctx context.Context) (files string, err error) {
	files = filepath.Join(s.dir, "artifacts")
	return files, errors.Join(os.RemoveAll(s.dir), os.MkdirAll(files, 0o755),
		os.WriteFile(filepath.Join(files, "vmlinuz-x86_64"), kernel(), 0o644),
		os.WriteFile(filepath.Join(files, "initramfs-x86_64"), make([]byte, 1<<20), 0o644),
		os.WriteFile(filepath.Join(files, "menu.ipxe"), []byte("#!ipxe\nexit\n"), 0o644), s.build(ctx))
}

// tink is a stand-in of Tink Server without workflows.
func (s *site) tink(ctx context.Context) (lab.Command, error) {
	workflows := filepath.Join(s.dir, "workflows.json")
	path, err := program.Command(ctx, "tink-standin")
	return lab.Command{Path: path, Args: []string{
		"-listen", netip.AddrPortFrom(lab.TinkIP, 42113).String(), "-workflows", workflows,
	}}, errors.Join(err, os.WriteFile(workflows, []byte("{}"), 0o644))
}

// build builds the doctor.
func (s *site) build(ctx context.Context) error {
	repo, err := program.Repo()
	if err != nil {
		return err
	}
	bin := filepath.Join(repo, "build", "bin", "lab")
	s.doctor = filepath.Join(bin, "stack-doctor")
	return program.Build(ctx, repo, bin, []string{"./cmd/stack-doctor"})
}

// equip adds what a lab has not.
func (s *site) equip(small bool) (err error) {
	if err := s.SetRecord(loaders, lab.SmeeIP); err != nil {
		return err
	}
	if err := s.plugIn(); err != nil || small {
		return err
	}
	if err := s.serve(mirrorPort, http.HandlerFunc(torn), nil); err != nil {
		return err
	}
	old, err := certificate()
	if err != nil {
		return err
	}
	err = s.serve(443, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, filepath.Join(s.dir, "artifacts", "vmlinuz-x86_64"))
	}), &tls.Config{Certificates: []tls.Certificate{old}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	return s.otherServers()
}

// plugIn adds the laptops.
func (s *site) plugIn() (err error) {
	if s.laptop, err = s.AddHost("laptop", laptopMAC); err != nil {
		return err
	}
	if s.lost, err = s.AddHost(elsewhere, net.HardwareAddr{0x52, 0x54, 0, 0x5e, 3, 2}); err != nil {
		return err
	}
	if err := s.unplug(s.lost); err != nil {
		return err
	}
	if s.own, err = s.AddHost("own", net.HardwareAddr{0x52, 0x54, 0, 0x5e, 3, 3}); err != nil {
		return err
	}
	return s.Configure(s.own, netip.MustParsePrefix("192.0.2.50/24"), netip.Addr{})
}

// otherServers starts DHCP servers beside Smee, each for a machine of its own.
func (s *site) otherServers() error {
	only := func(name string, given netip.Addr) []string {
		return []string{"--dhcp-host=" + machine(name).MAC.String() + "," + given.String(), "--dhcp-ignore=tag:!known"}
	}
	for i, server := range []struct {
		name string
		at   netip.Addr
		more []string
	}{
		{rogueServed, rogueIP, []string{"--dhcp-boot=pxelinux.0,," + rogueIP.String()}},
		{routerAtHome, homeIP, nil},
		{otherPortTFTP, otherIP, []string{
			"--dhcp-boot=tag:!ipxe,ipxe.efi,," + otherIP.String(), "--enable-tftp", "--tftp-root=" + s.dir,
			"--dhcp-userclass=set:ipxe,iPXE", "--dhcp-boot=tag:ipxe,http://192.0.2.2:8080/menu.ipxe",
		}},
	} {
		given := netip.AddrFrom4([4]byte{192, 0, 2, byte(200 + i)})
		_, err := s.AddDHCPServer(server.name, server.at, given, given, append(only(server.name, given), server.more...)...)
		if err != nil {
			return err
		}
	}
	// An EFI program for x86-64 that the other site's TFTP server has.
	return os.WriteFile(filepath.Join(s.dir, "ipxe.efi"), loader(0x64, 0x86), 0o644)
}

// loader is the begin of an EFI program for a machine, and zeros.
func loader(machine ...byte) []byte {
	b := make([]byte, 200<<10)
	copy(b, "MZ")
	b[0x3c] = 0x80
	copy(b[0x80:], "PE\x00\x00")
	copy(b[0x84:], machine)
	return b
}

// serve serves HTTP beside Tink.
func (s *site) serve(port uint16, handler http.Handler, secure *tls.Config) error {
	var listener net.Listener
	err := s.Do(lab.RoleTink, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(lab.TinkIP, port).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("failed to serve on port %d: %w", port, err)
	}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	s.servers = append(s.servers, server)
	go func() { _ = server.Serve(listener) }() // until close
	return nil
}

// unplug takes a host's port out of the LAN's switch.
func (s *site) unplug(role string) error {
	var port int
	err := s.Do(role, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err == nil {
			port = eth0.Attrs().ParentIndex
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.Do(lab.RoleLAN, func() error {
		link, err := netlink.LinkByIndex(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetNoMaster(link)
	})
}

// otherLoaders has dnsmasq serve boot files in place of Smee: the one for UEFI is ARM's, and there is none for BIOS.
func otherLoaders(_ context.Context, s *site) (func() error, error) {
	root := filepath.Join(s.dir, "tftp")
	err := errors.Join(os.MkdirAll(root, 0o755),
		os.WriteFile(filepath.Join(root, "ipxe.efi"), loader(0x64, 0xaa), 0o644))
	if err != nil {
		return nil, err
	}
	_, err = s.Start(lab.Process{
		Name: loaders, Role: lab.RoleHegel, Path: "dnsmasq",
		Args: []string{
			"--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--user=root", "--port=0",
			"--enable-tftp", "--tftp-root=" + root, "--listen-address=" + lab.HegelIP.String(), "--bind-interfaces",
		},
		Tmpfs: []string{"/run"}, // its pid file
	})
	if err != nil {
		return nil, err
	}
	move := func(to netip.Addr) error {
		err := s.SetRecord(loaders, to)
		time.Sleep(3 * time.Second) // answers of the lab's DNS live for two
		return err
	}
	return func() error { return errors.Join(s.Kill(loaders), move(lab.SmeeIP)) }, move(lab.HegelIP)
}

// twin gives the service IP to another host, too, and squatter gives the machine's to one.
func twin(_ context.Context, s *site) (func() error, error) { return s.give("twin", lab.ServiceIP) }
func squatter(_ context.Context, s *site) (func() error, error) {
	return s.give("squatter", machine(good).IP)
}

func (s *site) give(name string, addr netip.Addr) (func() error, error) {
	role, err := s.AddHost(name, nil)
	if err != nil {
		return nil, err
	}
	return func() error { return s.unplug(role) }, s.Configure(role, netip.PrefixFrom(addr, 32), netip.Addr{})
}

// orphaned takes the service IP from its node.
func orphaned(_ context.Context, s *site) (func() error, error) {
	change := func(do func(netlink.Link, *netlink.Addr) error) error {
		return s.Do(lab.RoleNode, func() error {
			uplink, err := netlink.LinkByName("prov0")
			if err != nil {
				return err
			}
			mask := net.CIDRMask(32, 32)
			return do(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: lab.ServiceIP.AsSlice(), Mask: mask}})
		})
	}
	return func() error { return change(netlink.AddrReplace) }, change(netlink.AddrDel)
}

// drop has the LAN's switch lose the packets that match.
func (s *site) drop(match []expr.Any) (undo func() error, err error) {
	table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "fault"}
	change := func(do func(*nftables.Conn)) error {
		return s.Do(lab.RoleLAN, func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			do(conn)
			return conn.Flush()
		})
	}
	err = change(func(conn *nftables.Conn) {
		conn.AddTable(table)
		chain := conn.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		conn.AddRule(&nftables.Rule{
			Table: table, Chain: chain, Exprs: append(match, &expr.Verdict{Kind: expr.VerdictDrop}),
		})
	})
	return func() error { return change(func(conn *nftables.Conn) { conn.DelTable(table) }) }, err
}

// longer matches packets of more bytes, without their Ethernet header.
func longer(bytes uint32) func() []expr.Any {
	return func() []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
			// Numbers are compared byte by byte, from the first: they have to be big-endian.
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binaryutil.BigEndian.PutUint32(bytes)},
		}
	}
}

// Offsets of the ports in UDP's header.
const (
	source      = 0
	destination = 2
)

// udp matches IPv4 datagrams from or to a port.
func udp(side uint32, port uint16) func() []expr.Any {
	return func() []expr.Any {
		return append(ipv4UDP(),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: side, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)})
	}
}

// udpFromHighPorts matches what a host sends from ports that are no service's.
func udpFromHighPorts(host netip.Addr) func() []expr.Any {
	const ipSource, least = 12, 1024
	return func() []expr.Any {
		return append(ipv4UDP(),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: ipSource, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: host.AsSlice()},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: source, Len: 2},
			&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binaryutil.BigEndian.PutUint16(least)})
	}
}

func ipv4UDP() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
	}
}

func (s *site) close() error {
	var faults []error
	for _, server := range s.servers {
		faults = append(faults, server.Close())
	}
	return errors.Join(append(faults, s.Down())...)
}

// ask runs the doctor with the rights of the chart, and gives what it writes.
func (s *site) ask(ctx context.Context, f Fault, out io.Writer, more ...string) error {
	name, role, arch := f.machine, s.laptop, f.arch
	if name == "" {
		name = good
	}
	switch {
	case f.laptop == elsewhere:
		role = s.lost
	case f.Mute:
		role = s.own
	}
	if arch == "" {
		arch = "uefi"
	}
	args := append([]string{"--interface", "eth0", "--mac", machine(name).MAC.String(), "--arch", arch}, more...)
	if f.Mute {
		args = append(args, "--service", lab.ServiceIP.String())
	}
	proc, err := s.Start(lab.Process{
		Name: "doctor", Role: role, Path: s.doctor, Args: args, Stdout: out,
		Security: &lab.Security{UID: 0, Capabilities: []int{unix.CAP_NET_RAW}},
	})
	if err != nil {
		return err
	}
	select {
	case <-proc.Done():
		return proc.Wait()
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), s.Kill("doctor"))
	}
}
