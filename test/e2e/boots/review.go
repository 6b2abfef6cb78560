package boots

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
)

// With what cases are staged.
const (
	byHand     = "lab, machine in Go"
	byFirmware = "lab, QEMU's firmware"
)

// Cases are the rows of the review of boots, by somebody who had not read the rules, and good boots.
func Cases() []Case {
	return append(append(deafCases(), dhcpCases()...), append(append(fileCases(), systemCases()...), crowdCases()...)...)
}

// deafCases are of machines of which little or nothing is heard.
func deafCases() []Case {
	return []Case{
		{
			Row: "1", Name: "the port is in another VLAN: nothing arrives", in: kubernetes,
			Staged: "lab, stand-in of the Kubernetes API",
			Want:   Want{Causes: []string{"never-heard"}}, play: func(p []*player) { p[0].wait(5 * time.Minute) },
		},
		{
			Row: "2", Name: "DISCOVERs with another VLAN's tag", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"wrong-vlan"}},
			play: func(p []*player) {
				for range 4 {
					p[0].send(netboot.PXE, 100)
					p[0].wait(4 * time.Second)
				}
			},
		},
		{
			Row: "24", Name: "syslog from an address that nobody knows", Staged: byHand, in: site0, Unknown: true,
			Want: Want{States: []string{"quiet", "booting", ""}, NoNext: true},
			play: func(p []*player) {
				p[0].takes("192.0.2.78")
				for range 3 {
					p[0].says("sshd[7]: session opened")
					p[0].wait(5 * time.Second)
				}
			},
			of: func([]*player) []string { return []string{"192.0.2.78"} },
		},
		{
			Row: "33", Name: "dhcp-relay is dead, a machine is switched on", Staged: byHand, in: deadRelay,
			Want:  Want{Causes: []string{"dhcp-relay is gone"}},
			play:  func(p []*player) { p[0].askInVain(netboot.PXE, 20*time.Second) },
			check: relayGone,
		},
		{
			Row: "34", Name: "an unknown laptop or BMC asks in vain", Staged: byHand, in: site0, Unknown: true,
			Want: Want{Causes: []string{"no-hardware"}, States: []string{"quiet"}, Not: []string{"booted", "installed"}},
			play: func(p []*player) { p[0].askInVain(netboot.System, 40*time.Second) },
		},
	}
}

// relayGone asks whether the page and the API tell that dhcp-relay is not heard.
func relayGone(ctx context.Context, s *scene) (string, error) {
	page, err := s.get(ctx, "/boots")
	if err != nil {
		return "", err
	}
	text, err := s.get(ctx, "/api/v1/boots")
	if err != nil {
		return "", err
	}
	if !strings.Contains(page, "dhcp-relay") || !strings.Contains(text, `"program":"dhcp-relay"`) ||
		!strings.Contains(text, `"heard":false`) {
		return "nothing of dhcp-relay", nil
	}
	return "dhcp-relay is gone", nil
}

// dhcpCases are of addresses and boot files.
func dhcpCases() []Case {
	return []Case{
		{
			Row: "3a", Name: "another station has its address, firmware declines it", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"address-conflict"}},
			play: func(p []*player) {
				for range 6 {
					p[0].take(netboot.PXE)
					p[0].decline(netboot.PXE)
					p[0].wait(10 * time.Second)
				}
			},
		},
		{
			Row: "3b", Name: "another station has its address, the system declines it", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"address-conflict"}},
			play: func(p []*player) {
				p[0].reachesKernel()
				for range 6 {
					p[0].take(netboot.System)
					p[0].decline(netboot.System)
					p[0].wait(10 * time.Second)
				}
			},
		},
		{
			Row: "4", Name: "the server answers NAK", Staged: "lab, machine in Go, a DHCP server of its own", in: refusing,
			Want: Want{Causes: []string{"address-refused"}},
			play: func(p []*player) {
				for range 4 {
					p[0].askInVain(netboot.PXE, 20*time.Second)
					p[0].wait(4 * time.Second)
				}
			},
		},
		{
			Row: "5", Name: "the boot file is said to be at an address that is nobody's", Staged: byHand, in: strayTFTP,
			Want: Want{Causes: []string{"loader-not-asked"}, Names: strayIP},
			play: func(p []*player) {
				for range 3 {
					p[0].take(netboot.PXE)
					p[0].askLoader(10, 4*time.Second)
				}
			},
		},
		{
			Row: "6", Name: "the script is said to be at an address that is nobody's", Staged: byHand, in: site0,
			change: func(m *lab.Machine) { m.ScriptURL = "http://" + strayIP + "/auto.ipxe" },
			Want:   Want{Causes: []string{"script-not-asked"}, Names: strayIP},
			play: func(p []*player) {
				p[0].take(netboot.PXE)
				p[0].loader(allBlocks)
				for range 3 {
					p[0].take(netboot.IPXE)
					p[0].wait(30 * time.Second)
				}
			},
		},
		{
			Row: "7", Name: "a firewall takes the requests for the boot file", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"loader-not-asked"}},
			play: func(p []*player) {
				p[0].nft("table inet firewall {\n chain out {\n type filter hook output priority 0;\n" +
					" udp dport 69 drop\n }\n}\n")
				for range 3 {
					p[0].take(netboot.PXE)
					p[0].askLoader(10, 4*time.Second)
				}
			},
		},
		{
			Row: "18", Name: "two machines have one MAC", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"one-mac-two-machines"}},
			play: func(p []*player) {
				for i := range 6 {
					p[0].uuid[0], p[0].arch = byte(1+i%2), iana.INTEL_X86PC
					if i%2 == 1 {
						p[0].arch = iana.EFI_X86_64
					}
					p[0].reachesKernel()
					p[0].wait(10 * time.Second)
				}
			},
		},
		{
			Row: "19", Name: "of two NICs the services know one", Staged: byHand, in: site0, Machines: 2, UnknownToo: true,
			Want: Want{Early: []string{"no-hardware"}},
			play: func(p []*player) {
				b, a := p[0], p[1]
				a.uuid = b.uuid
				a.askInVain(netboot.PXE, 12*time.Second)
				b.reachesKernel()
				b.wait(5 * time.Second)
				a.askInVain(netboot.System, 8*time.Second)
				b.take(netboot.System)
				b.installs()
				b.off()
			},
			of: func(p []*player) []string { return []string{p[0].MAC.String()} },
		},
		{
			Row: "26", Name: "DHCPv6 alone, and the server does not know the machine", Staged: byHand, in: ipv6Site,
			Unknown: true, Want: Want{Causes: []string{"no-hardware"}},
			play: func(p []*player) { p[0].solicits(50 * time.Second) },
		},
		{
			Row: "38", Name: "an installed machine boots its disk", Staged: byHand, in: site0,
			change: func(m *lab.Machine) { m.NoPXE = true },
			play: func(p []*player) {
				p[0].take(netboot.PXE)
				p[0].wait(50 * time.Second)
				p[0].take(netboot.System)
			},
		},
		{
			Row: "38", Variant: "static", Name: "an installed machine boots its disk, and takes a static address",
			Staged: byHand, in: site0,
			change: func(m *lab.Machine) { m.NoPXE = true }, patience: 100 * time.Second,
			Want: Want{States: []string{"booting", "installed", "booted", "quiet"}},
			play: func(p []*player) {
				p[0].take(netboot.PXE)
				p[0].wait(30 * time.Second)
				p[0].takes(p[0].IP.String())
			},
			stay: 90 * time.Second,
		},
	}
}

// fileCases are of what is downloaded.
func fileCases() []Case {
	return []Case{
		{
			Row: "8", Name: "the boot file's DATA, or the ACKs, are lost", Staged: byHand, in: site0, Machines: 2,
			Want: Want{Causes: []string{"loader-stalled"}},
			play: func(p []*player) {
				both(p, func(p *player) { p.take(netboot.PXE) })
				both(p, func(q *player) {
					if q == p[0] {
						q.askLoader(10, 5*time.Second) // it asks again
					} else {
						q.askLoader(1, 50*time.Second)
					}
				})
			},
			patience: 40 * time.Second,
		},
		{
			Row: "9", Name: "large packets of the kernel's transfer are lost", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"file-torn", "slow", "loader-stalled"}, Untrue: "hung up"},
			play: func(p []*player) {
				p[0].reachesScript()
				p[0].nft("table inet mtu {\n chain in {\n type filter hook input priority 0;\n" +
					" tcp sport 8080 meta length > 1400 drop\n }\n}\n")
				p[0].file(0, fetch{agent: agentIPXE, within: 150 * time.Second, fails: true}) // firmware waits on
			},
		},
		{
			Row: "10", Name: "an ARM machine that its Hardware calls x86_64 gets an x86 kernel", in: site0,
			Staged: "lab, QEMU's ARM64 firmware",
			Want:   Want{Causes: []string{"wrong-architecture", "loader-error"}},
			play:   func(p []*player) { p[0].powerARM() }, patience: 4 * time.Minute,
		},
		{
			Row: "11", Name: "an ARM machine gets the x86 loader", Staged: "lab, QEMU's ARM64 firmware", in: armLoaders,
			Want: Want{Causes: []string{"wrong-architecture", "loader-did-not-start"}},
			play: func(p []*player) { p[0].powerARM() }, patience: 4 * time.Minute,
		},
		{
			Row: "12", Name: "the script is by HTTPS, and its authority unknown", Staged: byFirmware, in: site0,
			change: func(m *lab.Machine) { m.ScriptURL = "https://" + lab.ServiceIP.String() + "/auto.ipxe" },
			Want:   Want{Causes: []string{"tls-refused", "loader-error"}, Untrue: "XE: "}, // of the link's statistics
			play:   func(p []*player) { p[0].power() }, patience: 3 * time.Minute,
		},
		{
			Row: "13", Name: "the name of the script's host does not resolve", Staged: byFirmware, in: site0,
			change: func(m *lab.Machine) { m.ScriptURL = "http://boot.nowhere.example/auto.ipxe" },
			Want:   Want{Causes: []string{"loader-error", "script-not-asked"}, Names: "nowhere.example"},
			play:   func(p []*player) { p[0].power() }, patience: 3 * time.Minute,
		},
		{
			Row: "14", Name: "the kernel's file is truncated", Staged: byFirmware, in: site0,
			change: func(m *lab.Machine) { m.Script = script(url(filesPort, "/"+truncatedFile)) },
			Want:   Want{Causes: []string{"loader-error", "kernel-silent"}, Names: truncatedFile, Early: []string{"slow"}},
			play:   func(p []*player) { p[0].power() }, patience: 4 * time.Minute,
		},
		{
			Row: "15", Name: "the link is slow: the initramfs takes a quarter of an hour", Staged: byHand, in: site0,
			change: func(m *lab.Machine) { m.Script = slowScript },
			Want:   Want{Early: []string{"slow"}, Not: []string{"quiet", "failed", "stuck"}},
			play: func(p []*player) {
				p[0].reachesScript()
				p[0].kernel()
				p[0].file(1, fetch{agent: agentIPXE, rate: 150_000})
				p[0].take(netboot.System)
				p[0].installs(withoutArgs(p[0]))
				p[0].off()
			},
		},
		{
			Row: "20", Name: "a reset within the boot file, and the second attempt is well", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].take(netboot.PXE)
				p[0].loader(60)
				p[0].wait(3 * time.Second)
				p[0].reachesKernel()
				p[0].wait(45 * time.Second) // the server gives up meanwhile
				p[0].take(netboot.System)
				p[0].installs()
				p[0].off()
			},
		},
		{
			Row: "21", Name: "somebody presses reset after the loader", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].take(netboot.PXE)
				p[0].loader(allBlocks)
				p[0].wait(2 * time.Second)
				p[0].reachesSystem()
				p[0].installs()
				p[0].off()
			},
		},
		{
			Row: "32", Name: "Smee hangs after the address was given", Staged: byHand, in: hungSmee,
			Want: Want{Causes: []string{"waits-for-backend", "backend-down"}},
			play: func(p []*player) {
				p[0].reachesIPXE()
				p[0].stops(lab.Smee)
				p[0].get(p[0].lease.BootFile, fetch{agent: agentIPXE, within: 70 * time.Second, fails: true})
			},
		},
		{
			Row: "39", Name: "the script says to boot the disk", Staged: byHand, in: site0,
			change: func(m *lab.Machine) { m.Script = "#!ipxe\nexit\n" },
			play: func(p []*player) {
				p[0].reachesIPXE()
				p[0].get(p[0].lease.BootFile, fetch{agent: agentIPXE})
				p[0].wait(45 * time.Second)
				p[0].take(netboot.System)
			},
		},
		{
			Row: "39", Variant: "menu", Name: "a menu waits for a person, for four minutes", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesScript()
				p[0].wait(4 * time.Minute)
				p[0].kernel()
				p[0].initramfs()
				p[0].wait(5 * time.Second)
				p[0].take(netboot.System)
				p[0].installs()
				p[0].off()
			},
		},
	}
}

// slowScript boots an initramfs that takes its time.
var slowScript = strings.Replace(script(url(filesPort, "/"+machine.KernelFile)), machine.InitramfsFile, bigFile, 1)

// withoutArgs tells an installer what a script of the site's own does not.
func withoutArgs(p *player) func(*installer.Config) {
	p.args = fmt.Sprintf("worker_id=%s hw_addr=%[1]s syslog_host=%s grpc_authority=%[2]s:42113", p.MAC, lab.ServiceIP)
	return func(*installer.Config) {}
}

// systemCases are of what runs once a kernel does.
func systemCases() []Case {
	artifact := url(filesPort, "/"+machine.ArtifactFile)
	return []Case{
		{
			Row: "16", Name: "the kernel panics, and resets the machine again and again", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"boot-loop", "kernel-panic"}},
			play: func(p []*player) {
				for range 12 {
					p[0].reachesKernel()
					p[0].wait(8 * time.Second)
				}
			},
		},
		{
			Row: "17", Name: "it installs, resets, and installs again", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"boot-loop"}, Booted: true},
			play: func(p []*player) {
				for range 4 {
					p[0].reachesSystem()
					p[0].installs()
					p[0].wait(10 * time.Second)
				}
				p[0].reachesKernel()
			},
		},
		{
			Row: "23", Name: "the system takes a static address", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesKernel()
				p[0].wait(5 * time.Second)
				p[0].takes("192.0.2.77")
				p[0].installs(func(c *installer.Config) { c.Metadata = "" })
				p[0].wait(150 * time.Second) // the system works on
				p[0].off()
			},
		},
		{
			Row: "27a", Name: "the worker's ID is wrong, routes of the preset", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"no-workflow"}}, play: asksForOthersWork, patience: time.Minute,
		},
		{
			Row: "27b", Name: "the worker's ID is wrong, a route of gRPC", Staged: byHand, in: grpcSite,
			Want: Want{Causes: []string{"no-workflow"}}, play: asksForOthersWork,
		},
		{
			Row: "28", Name: "the agent speaks TLS, Tink Server does not", Staged: byHand, in: site0,
			Want: Want{Causes: []string{"tls-refused", "agent-refused"}},
			play: func(p []*player) {
				p[0].reachesSystem()
				p[0].says("tink-agent[1]: begins")
				for range 8 {
					p[0].handshakes()
					p[0].wait(8 * time.Second)
				}
			},
		},
		{
			Row: "35", Name: "one image is written to three disks", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesSystem()
				end := p[0].agent(p[0].MAC.String())
				for range 3 {
					p[0].get(artifact, fetch{agent: agentSystem})
					p[0].wait(12 * time.Second)
				}
				end()
				p[0].wait(20 * time.Second)
				p[0].off()
			},
		},
		{
			Row: "36", Name: "an optional file is not there, and the agent goes on", Staged: byHand, in: site0,
			Want: Want{States: []string{"booting", "installed", "booted"}},
			play: func(p []*player) {
				p[0].reachesSystem()
				end := p[0].agent(p[0].MAC.String())
				p[0].get(url(filesPort, "/optional.cfg"), fetch{agent: agentSystem, status: 404})
				p[0].wait(90 * time.Second)
				end()
			},
		},
		{
			Row: "37", Name: "an action downloads a loader for the disk", Staged: byHand, in: site0, Want: Want{Boots: 1},
			play: func(p []*player) {
				p[0].reachesSystem()
				end := p[0].agent(p[0].MAC.String())
				p[0].get(artifact, fetch{agent: agentSystem})
				p[0].get(url(filesPort, "/"+loaderFile), fetch{agent: agentSystem})
				p[0].wait(60 * time.Second)
				end()
				p[0].wait(20 * time.Second)
			},
		},
		{
			Row: "40", Name: "it installs, and starts its disk's kernel by kexec", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesSystem()
				end := p[0].agent(p[0].MAC.String())
				p[0].get(artifact, fetch{agent: agentSystem})
				p[0].off()
				end() // nobody hears it
				p[0].wait(15 * time.Second)
				p[0].on()
				p[0].take(netboot.System)
			},
			stay: 60 * time.Second,
		},
		{
			Row: "40", Variant: "off", Name: "it installs, and is switched off", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesSystem()
				end := p[0].agent(p[0].MAC.String())
				p[0].get(artifact, fetch{agent: agentSystem})
				p[0].wait(5 * time.Second)
				p[0].off()
				end()
			},
			patience: 5 * time.Minute, stay: 30 * time.Second,
		},
		{
			Row: "22", Name: "the node's clock jumps an hour ahead in mid-boot", in: clock,
			Staged: byHand + ", a clock of its own",
			play: func(p []*player) {
				p[0].reachesScript()
				p[0].wait(time.Until(p[0].scene.clockJumps) + 10*time.Second)
				p[0].kernel()
				p[0].initramfs()
				p[0].wait(10 * time.Second)
				p[0].take(netboot.System)
				p[0].installs()
				p[0].off()
			},
		},
		{
			Name: "BIOS installs", Staged: byFirmware, in: site0, patience: 3 * time.Minute,
			Want: Want{Early: []string{"slow"}},
			play: func(p []*player) { p[0].power() },
		},
		{
			Name: "UEFI installs", Staged: byFirmware, in: site0, patience: 3 * time.Minute,
			Want: Want{Early: []string{"slow"}}, Firmware: lab.UEFI,
			play: func(p []*player) { p[0].power() },
		},
		{
			Name: "machine in Go installs", Staged: byHand, in: site0,
			play: func(p []*player) {
				p[0].reachesSystem()
				p[0].installs()
				p[0].off()
			},
			stay: time.Minute,
		},
	}
}

// asksForOthersWork is an agent whose worker ID no Workflow names. It asks again and again, and hangs up in the end.
func asksForOthersWork(p []*player) {
	p[0].reachesSystem()
	p[0].says("tink-agent[1]: begins")
	p[0].asks("00:00:00:00:00:01", 320*time.Second)
	p[0].wait(20 * time.Second)
}

// crowdCases are of machines that meet the same fault at the same time, and of machines behind one address.
func crowdCases() []Case {
	return []Case{
		{
			Row: "25", Name: "machines behind NAT", Staged: byHand, in: nat, Machines: 3,
			Want: Want{Causes: []string{"behind-nat"}, States: []string{"installed", "booted"}},
			play: func(p []*player) {
				for i, q := range p {
					q.wait(time.Duration(i) * 400 * time.Millisecond / time.Duration(len(p)))
				}
				both(p, func(p *player) {
					p.reachesSystem()
					p.installs(func(c *installer.Config) { c.Metadata = "" }) // Hegel cannot know who asks
					p.off()
				})
			},
		},
		{
			Row: "29", Name: "a rack of machines that nobody knows, Smee is well", Staged: byHand, in: unknownRack,
			Machines: 3, Unknown: true, Want: Want{Causes: []string{"no-hardware"}},
			play: func(p []*player) { both(p, func(p *player) { p.askInVain(netboot.PXE, 70*time.Second) }) },
		},
		{
			Row: "30", Name: "a rack with Secure Boot on hangs at the loader", Staged: byHand, in: loaderRack, Machines: 3,
			Firmware: lab.UEFI, Want: Want{Causes: []string{"loader-did-not-start"}},
			play: func(p []*player) {
				both(p, func(p *player) {
					p.take(netboot.PXE)
					p.loader(allBlocks)
				})
			},
			patience: 70 * time.Second,
		},
		{
			Row: "31", Name: "a rack without the NIC's driver in its initramfs", Staged: byHand, in: kernelRack, Machines: 3,
			Want: Want{Causes: []string{"kernel-silent"}},
			play: func(p []*player) { both(p, (*player).reachesKernel) }, patience: 150 * time.Second,
		},
	}
}

// both has all machines do something at once.
func both(all []*player, what func(*player)) {
	done := make(chan struct{})
	for _, p := range all {
		go func() {
			what(p)
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
}

// handshakes has the agent speak TLS to Tink Server.
func (p *player) handshakes() {
	p.do("TLS with Tink Server", func() error {
		conn, err := p.dial(p.ctx, "tcp", netip.AddrPortFrom(lab.ServiceIP, 42113).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		secure := tls.Client(conn, &tls.Config{ServerName: "tink", NextProtos: []string{"h2"}})
		if secure.HandshakeContext(p.ctx) == nil {
			return errors.New("it speaks TLS")
		}
		return nil
	})
}
