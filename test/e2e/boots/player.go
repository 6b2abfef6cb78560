package boots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// User agents of what asks by HTTP.
const (
	agentIPXE   = "iPXE/1.21.1+"
	agentSystem = "Go-http-client/1.1"
)

// player is a machine whose every move a case makes: it speaks DHCP, TFTP, HTTP, syslog and gRPC as firmware, iPXE and
// an installer do. After the first move that fails all others do nothing.
type player struct {
	lab.Machine

	ctx   context.Context
	scene *scene
	role  string
	uuid  [16]byte
	arch  iana.Arch
	log   *slog.Logger

	lease netboot.Lease
	args  string // the kernel's command line
	files []string
	ends  []func() // what the case's end ends
	began time.Time
	err   error
}

const link = "eth0"

// newPlayer connects a machine to the LAN, switched off.
func (s *scene) newPlayer(ctx context.Context, m lab.Machine) *player {
	p := &player{Machine: m, ctx: ctx, scene: s, arch: iana.INTEL_X86PC, log: s.log.With("machine", m.Name)}
	if m.Firmware == lab.UEFI {
		p.arch = iana.EFI_X86_64
	}
	copy(p.uuid[10:], m.MAC)
	return p
}

// do makes a move on the LAN, to which the first one connects the machine.
func (p *player) do(what string, move func() error) {
	p.move(what, func() error {
		if p.role == "" {
			role, err := p.scene.AddHost(p.Name, p.MAC)
			if err != nil {
				return err
			}
			p.role = role
		}
		return move()
	})
}

// move makes a move that needs no LAN.
func (p *player) move(what string, move func() error) {
	if p.err != nil {
		return
	}
	p.log.Info("move", "what", what)
	if err := move(); err != nil {
		p.log.Warn("failed", "what", what, "error", err.Error())
		p.err = fmt.Errorf("%s: %w", what, err)
	}
}

// wait lets time pass.
func (p *player) wait(d time.Duration) {
	p.move("wait "+d.String(), func() error {
		select {
		case <-p.ctx.Done():
			return context.Cause(p.ctx)
		case <-time.After(d):
			return nil
		}
	})
}

func (p *player) askOf(stage netboot.Stage) netboot.Ask {
	return netboot.Ask{Stage: stage, Arch: p.arch, UUID: p.uuid}
}

// inside opens a DHCP client on the machine's interface, which gives its address up.
func (p *player) inside(move func(*netboot.DHCP) error) error {
	var client *netboot.DHCP
	err := p.scene.Do(p.role, func() (err error) {
		if err := netboot.Flush(link); err != nil {
			return err
		}
		client, err = netboot.OpenDHCP(link)
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(move(client), client.Close())
}

// take asks for an address and takes it on.
func (p *player) take(stage netboot.Stage) {
	p.do(fmt.Sprintf("DHCP of stage %d", stage), func() error {
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		err := p.inside(func(client *netboot.DHCP) (err error) {
			p.lease, err = client.Lease(ctx, p.askOf(stage))
			return err
		})
		if err != nil {
			return err
		}
		return p.scene.Do(p.role, func() error { return netboot.Configure(link, p.lease) })
	})
}

// askInVain asks for an address for some time, and wants no answer.
func (p *player) askInVain(stage netboot.Stage, most time.Duration) {
	p.do(fmt.Sprintf("DHCP of stage %d in vain", stage), func() error {
		ctx, cancel := context.WithTimeout(p.ctx, most)
		defer cancel()
		err := p.inside(func(client *netboot.DHCP) error {
			_, err := client.Lease(ctx, p.askOf(stage))
			return err
		})
		if err == nil {
			return errors.New("it got an answer")
		}
		return p.ctx.Err()
	})
}

// send sends a DHCP message that nothing answers.
func (p *player) send(stage netboot.Stage, vlan uint16, change ...dhcpv4.Modifier) {
	p.do("send DHCP", func() error {
		return p.inside(func(client *netboot.DHCP) error {
			message, err := client.Discover(p.askOf(stage))
			if err != nil {
				return err
			}
			for _, modify := range change {
				modify(message)
			}
			return client.Send(message, vlan)
		})
	})
}

// decline says that another station has the address that the machine was given.
func (p *player) decline(stage netboot.Stage) {
	p.send(stage, 0, dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(p.lease.Addr.Addr().AsSlice())),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(p.lease.Server.AsSlice())))
}

var errReset = errors.New("reset")

// loader reads the boot file by TFTP: all of it, or some blocks, and then the machine is gone.
func (p *player) loader(blocks int) {
	p.do("TFTP of "+p.lease.BootFile, func() error {
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		conn, err := p.dial(ctx, "udp", netip.AddrPortFrom(p.lease.Next, 69).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		n := 0
		err = netboot.ReadBlocks(ctx, conn, p.lease.BootFile, func([]byte) error {
			if n++; n == blocks {
				return errReset
			}
			return nil
		}, func() {})
		if errors.Is(err, errReset) {
			return nil
		}
		return err
	})
}

// allBlocks is a boot file without a reset in it.
const allBlocks = 0

// askLoader sends requests for the boot file every few seconds, and heeds no answer: DATA is lost, or ACKs are.
func (p *player) askLoader(requests int, every time.Duration) {
	p.do("ask for "+p.lease.BootFile+" by TFTP", func() error {
		conn, err := p.dial(p.ctx, "udp", netip.AddrPortFrom(p.lease.Next, 69).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		request := []byte{0, 1}
		for _, word := range []string{p.lease.BootFile, "octet", "blksize", "1468", "tsize", "0"} {
			request = append(append(request, word...), 0)
		}
		for range requests {
			_, _ = conn.Write(request) // "network is unreachable" is what some cases are about
			select {
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			case <-time.After(every):
			}
		}
		return nil
	})
}

func (p *player) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return p.scene.Dial(p.role)(ctx, network, address)
}

// fetch is how a document is read.
type fetch struct {
	agent  string
	rate   int64         // bytes a second; 0: as fast as it comes
	most   int64         // bytes that are read, before the machine is gone; 0: all
	status int           // that is wanted; 0: 200
	within time.Duration // how long it may take; 0: as long as the case does
	reset  bool          // the connection is reset at the end, as by a machine that is gone
	fails  bool          // it is to fail
}

// get reads a document. It returns what it holds, up to a MiB.
func (p *player) get(url string, f fetch) (text string) {
	p.do("GET "+url, func() error {
		err := p.download(url, f, &text)
		if f.fails {
			if err == nil {
				return errors.New("it did not fail")
			}
			return p.ctx.Err()
		}
		return err
	})
	return text
}

func (p *player) download(url string, f fetch, text *string) error {
	ctx, cancel := p.ctx, func() {}
	if f.within > 0 {
		ctx, cancel = context.WithTimeout(ctx, f.within)
	}
	defer cancel()
	dialer := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := p.dial(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok && f.reset {
			err = tcp.SetLinger(0)
		}
		return conn, err
	}
	transport := &http.Transport{DialContext: dialer, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", f.agent)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != cmp.Or(f.status, http.StatusOK) {
		return fmt.Errorf("it answers %s", response.Status)
	}
	const keep = 1 << 20
	buffer, n := make([]byte, 32<<10), int64(0)
	for begin := time.Now(); ; {
		got, err := response.Body.Read(buffer)
		n += int64(got)
		if len(*text) < keep {
			*text += string(buffer[:got])
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("after %d bytes: %w", n, err)
		case f.most > 0 && n >= f.most:
			return nil
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		}
		if f.rate > 0 {
			time.Sleep(time.Until(begin.Add(time.Duration(n) * time.Second / time.Duration(f.rate))))
		}
	}
}

// script reads the script that DHCP named.
func (p *player) script() {
	text := p.get(p.lease.BootFile, fetch{agent: agentIPXE})
	p.do("script", func() error {
		script, err := netboot.ParseScript(text)
		if err == nil {
			p.args, p.files = script.Args, []string{script.Kernel, script.Initrd}
		}
		return err
	})
}

// kernel and initramfs read what the script names.
func (p *player) kernel()    { p.file(0, fetch{agent: agentIPXE}) }
func (p *player) initramfs() { p.file(1, fetch{agent: agentIPXE}) }

func (p *player) file(i int, f fetch) {
	if p.err == nil {
		p.get(p.files[i], f)
	}
}

// reachesIPXE goes from power-on to iPXE's address, reachesScript to the script, reachesKernel to the system's begin.
func (p *player) reachesIPXE() {
	p.take(netboot.PXE)
	p.loader(allBlocks)
	p.take(netboot.IPXE)
}

func (p *player) reachesScript() {
	p.reachesIPXE()
	p.script()
}

func (p *player) reachesKernel() {
	p.reachesScript()
	p.kernel()
	p.initramfs()
}

// reachesSystem goes on to the system's address.
func (p *player) reachesSystem() {
	p.reachesKernel()
	p.wait(3 * time.Second)
	p.take(netboot.System)
}

// says sends a line by syslog.
func (p *player) says(line string) {
	p.do("syslog", func() error {
		conn, err := p.dial(p.ctx, "udp", netip.AddrPortFrom(lab.ServiceIP, 514).String())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(conn, "<133>%s %s", time.Now().UTC().Format(time.Stamp), line)
		return errors.Join(err, conn.Close())
	})
}

// installs does what an installer does, up to the end of its Workflow.
func (p *player) installs(change ...func(*installer.Config)) {
	p.do("install", func() error {
		config, err := installer.ParseCommandLine(p.args)
		if err != nil {
			return err
		}
		config.Addr, config.Hostname, config.Dial = p.lease.Addr.Addr(), p.lease.Hostname, p.scene.Dial(p.role)
		config.Report = func(r installer.Report) { p.log.Info("installer", "step", r.Step, "ok", r.OK, "detail", r.Detail) }
		for _, each := range change {
			each(&config)
		}
		return installer.Run(p.ctx, config)
	})
}

// agent connects to Tink Server and asks for the Workflows of a worker. The connection stays until it is closed.
func (p *player) agent(worker string) (end func()) {
	end = func() {}
	p.do("agent asks for work of "+worker, func() error {
		client, err := tink.Dial(netip.AddrPortFrom(lab.ServiceIP, 42113).String(), dialOption(p))
		if err != nil {
			return err
		}
		end = func() { _ = client.Close() }
		_, err = client.Contexts(p.ctx, worker)
		return err
	})
	return end
}

// off takes the machine's link down: nothing that it would still say is heard.
func (p *player) off() { p.setLink("off", netlink.LinkSetDown) }
func (p *player) on()  { p.setLink("on", netlink.LinkSetUp) }

func (p *player) setLink(what string, set func(netlink.Link) error) {
	p.do("switched "+what, func() error {
		return p.scene.Do(p.role, func() error {
			l, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			return set(l)
		})
	})
}

// takes gives the machine an address that no server gave it.
func (p *player) takes(address string) {
	p.do("take "+address, func() error {
		lease := p.lease
		lease.Addr, lease.Gateway = netip.PrefixFrom(netip.MustParseAddr(address), lab.LAN.Bits()), lab.GatewayIP
		err := p.scene.Do(p.role, func() error {
			if err := netboot.Flush(link); err != nil {
				return err
			}
			return netboot.Configure(link, lease)
		})
		p.lease = lease
		return err
	})
}

// nft loads a rule set in the machine's network namespace.
func (p *player) nft(rules string) {
	p.do("nft", func() error { return p.scene.nft(p.ctx, p.role, rules) })
}

// power switches a virtual machine with real firmware on. Only some run at once.
func (p *player) power() {
	p.emulate(func() (*lab.Proc, error) { return machine.Boot(p.scene.Lab, p.Machine, func(installer.Report) {}) })
}

// powerARM does so with ARM's.
func (p *player) powerARM() {
	p.emulate(func() (*lab.Proc, error) {
		tap, err := p.scene.AddTap(p.Name)
		if err != nil {
			return nil, err
		}
		return p.scene.Start(lab.Process{
			Name: p.Name, Role: lab.RoleLAN, Path: qemuARM, Args: []string{
				"-accel", "tcg", "-M", "virt", "-cpu", "cortex-a57", "-m", "512", "-no-reboot", "-display", "none",
				"-nographic", "-monitor", "none", "-bios", armFirmware,
				"-device", "virtio-net-pci,netdev=n0,romfile=,mac=" + p.MAC.String(),
				"-netdev", "tap,id=n0,script=no,downscript=no,ifname=" + tap,
				"-serial", "file:" + machine.FirmwareLog(p.scene.Lab, p.Name),
			},
		})
	})
}

// The emulator of ARM machines, and its firmware: Debian's packages qemu-system-arm and qemu-efi-aarch64.
const (
	qemuARM     = "qemu-system-aarch64"
	armFirmware = "/usr/share/qemu-efi-aarch64/QEMU_EFI.fd"
)

func (p *player) emulate(boot func() (*lab.Proc, error)) {
	p.move("power on", func() error {
		select {
		case p.scene.emulators <- struct{}{}:
		case <-p.ctx.Done():
			return context.Cause(p.ctx)
		}
		p.ends = append(p.ends, func() { <-p.scene.emulators })
		p.began = time.Now()
		proc, err := boot()
		if err != nil {
			return err
		}
		p.ends = append(p.ends, func() { _ = p.scene.Kill(proc.Name()) }) // it may have ended by itself
		return nil
	})
}

// end ends what the machine has running.
func (p *player) end() {
	for _, each := range slices.Backward(p.ends) {
		each()
	}
}

// stops has a program of the site hang.
func (p *player) stops(program string) {
	p.move(program+" hangs", func() error { return p.scene.Proc(program).Signal(syscall.SIGSTOP) })
}

// solicits asks for an IPv6 address in vain.
func (p *player) solicits(most time.Duration) {
	p.do("DHCPv6 in vain", func() error {
		ctx, cancel := context.WithTimeout(p.ctx, most)
		defer cancel()
		err := p.scene.Do(p.role, func() error {
			if err := netboot.Flush(link); err != nil {
				return err
			}
			_, err := netboot.Lease6(ctx, link, func(string) {})
			return err
		})
		if err == nil {
			return errors.New("it got an answer")
		}
		return p.ctx.Err()
	})
}

// asks has an agent ask for a worker's Workflows for some time, on one connection, and hang up.
func (p *player) asks(worker string, most time.Duration) {
	p.do("agent asks for work of "+worker, func() error {
		client, err := tink.Dial(netip.AddrPortFrom(lab.ServiceIP, 42113).String(), dialOption(p))
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		for end := time.Now().Add(most); time.Now().Before(end); {
			if _, err := client.Contexts(p.ctx, worker); err != nil {
				return err
			}
			select {
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			case <-time.After(5 * time.Second):
			}
		}
		return nil
	})
}
