package journal

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
)

func solicit(a actor, at float64, kind boot.Kind, t uint8, options ...option) shot {
	return a.dhcp(at, kind, t, append([]option{func(d *draft) { d.V6, d.Client = true, bytes16("fe80::1") }}, options...)...)
}

// lease6 is an exchange of DHCPv6.
func (a actor) lease6(at float64, file string, who ...option) []shot {
	given := func(d *draft) {
		d.Given, d.Lease, d.Endpoint, d.Port = bytes16("2001:db8::101"), 3600, bytes16("2001:db8::2"), 547
	}
	return []shot{
		solicit(a, at, boot.DHCPRequest, 1, who...), solicit(a, at+0.1, boot.DHCPReply, 2, given, with(boot.File, file)),
		solicit(a, at+0.2, boot.DHCPRequest, 3, who...), solicit(a, at+0.3, boot.DHCPReply, 7, given, with(boot.File, file)),
	}
}

// layer is UEFI's IPv6 layer, or a system that is known by the machine's UUID.
func layer(d *draft) {
	d.UUID, d.XID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 0xabcdef
}

// another is a transaction of DHCPv6.
func another(d *draft) { d.XID = 0xfedcba }

// Boots of other kinds than firmware, iPXE, script, kernel: their steps, where they are, and what comes next.
func TestKindsOfBoots(t *testing.T) {
	uefi := with(boot.Agent, "UefiHttpBoot/1.0")
	httpClient := []option{with(boot.VendorClass, "HTTPClient:Arch:00016:UNDI:003001"), arch(16)}
	uboot := []option{with(boot.VendorClass, "U-Boot.armv8"), arch(22)}
	pi := []option{with(boot.VendorClass, "PXEClient:Arch:00000:UNDI:002001"), arch(0)}
	missing := []option{size(0), status(2), with(boot.Message, "file not found")}
	piSerial := "1a2b3c4d/"
	six := actor{first, "2001:db8::101"}
	for _, c := range []struct {
		name  string
		shots []shot
		steps string
		state State
		next  Step
	}{
		{
			"iPXE in ROM", film(one.lease(0, rom, "undionly.kpxe"), one.tftp(2, 1, first+"/undionly.kpxe"),
				one.lease(3, tinkerbell, "http://x/auto.ipxe"), one.script(5), one.kernel(7), one.initramfs(9)),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok, kernel ok, initramfs ok", Booting, OSDHCP,
		},
		{
			"iPXE in ROM, which gets its script at once", film(one.lease(0, rom, "http://x/auto.ipxe"), one.script(2)),
			"dhcp ok, script ok", Booting, Kernel,
		},
		{
			"Smee's iPXE in ROM", film(one.lease(0, tinkerbell, "http://x/auto.ipxe"), one.script(2)),
			"ipxe-dhcp ok, script ok", Booting, Kernel,
		},
		{
			"an ISO that the BMC reads", film(
				one.get(1, 1, smee, 7171, "/iso/"+first+"/hook.iso", with(boot.Agent, "BMC"), status(206), size(1<<20)),
				one.get(2, 1, smee, 7171, "/iso/"+first+"/hook.iso", with(boot.Agent, "BMC"), status(206), size(2<<20)),
				one.lease(20, plain, ""), one.agent(30, 0, boot.Began)),
			"kernel ok, os-dhcp ok, agent going", Booting, Files,
		},
		{
			"UEFI HTTP boot", film(one.lease(0, httpClient, "http://192.0.2.2:7171/ipxe/binary/ipxe.efi"),
				one.get(1, 0.1, smee, 7171, "/ipxe/binary/ipxe.efi", uefi, with(boot.Method, "HEAD"), func(d *draft) { d.Bytes = 0 }),
				one.get(2, 0.5, smee, 7171, "/ipxe/binary/ipxe.efi", uefi), one.lease(4, tinkerbell, "http://x/auto.ipxe")),
			"dhcp ok, loader ok, ipxe-dhcp ok", Booting, Script,
		},
		{
			"U-Boot", film(one.lease(0, uboot, "boot.scr"),
				one.tftp(1, 0, "pxelinux.cfg/01-52-54-00-5e-00-01", missing...), one.tftp(2, 0, "pxelinux.cfg/C0A80165", missing...),
				one.tftp(3, 0.1, "pxelinux.cfg/default"), one.tftp(6, 2, "Image"), one.tftp(9, 2, "initrd.img"),
				one.tftp(10, 0.1, "bcm2711-rpi-4-b.dtb"), one.lease(30, plain, "")),
			"dhcp ok, script ok, kernel ok, initramfs ok, loader ok, os-dhcp ok", Booting, Syslog,
		},
		{
			"Raspberry Pi", film(one.lease(0, pi, ""), one.tftp(1, 0, piSerial+"start4.elf", missing...),
				one.tftp(1.5, 0.5, "start4.elf"), one.tftp(2, 0.1, "config.txt"), one.tftp(3, 0.1, "fixup4.dat"),
				one.tftp(5, 1, "kernel8.img"), one.lease(30, plain, "")),
			"dhcp ok, loader ok, kernel ok, os-dhcp ok", Booting, Syslog,
		},
		{
			"DHCPv6", film(six.lease6(0, "tftp://[2001:db8::2]/ipxe.efi", pxe...), six.tftp(2, 1, "ipxe.efi"),
				six.lease6(4, "http://[2001:db8::2]:7171/auto.ipxe", tinkerbell...), six.script(6), six.kernel(8)),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok, kernel ok", Booting, Initramfs,
		},
		{
			"the firmware's IPv6 layer asks as well", film(six.lease6(0, "", layer), six.lease6(0.15, "http://[2001:db8::2]/ipxe.efi", httpClient...),
				six.lease6(0.5, "", layer), six.get(1, 0.5, smee, 7171, "/ipxe/binary/ipxe.efi", uefi), six.lease6(1.5, "", layer),
				six.lease6(4, "http://[2001:db8::2]:7171/auto.ipxe", tinkerbell...), six.script(6)),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok", Booting, Kernel,
		},
		{
			"the same, where the machine has no UUID", film(six.lease6(0, "http://[2001:db8::2]/ipxe.efi", httpClient...),
				six.lease6(0.5, "", another), six.lease6(5, "http://[2001:db8::2]/ipxe.efi", httpClient...),
				six.get(6, 0.5, smee, 7171, "/ipxe/binary/ipxe.efi", uefi)),
			"dhcp ok, loader ok", Booting, IPXEDHCP,
		},
		{
			"the firmware finds no server by IPv6, and boots its disk", film(again(func(at float64) shot {
				return solicit(six, at, boot.DHCPRequest, 1, httpClient...)
			}, 0, 1, 3, 7, 15), six.lease6(60, "", another)),
			"dhcp failed, os-dhcp ok", Installed, "",
		},
		{
			"a system that has the machine's UUID", film(six.lease6(0, "http://[2001:db8::2]:7171/auto.ipxe", tinkerbell...), six.script(1),
				six.kernel(2), six.lease6(30, "", layer)),
			"ipxe-dhcp ok, script ok, kernel ok, os-dhcp ok", Booting, Syslog,
		},
		{
			"DHCPv6 unanswered beside DHCP", film(one.discover(0, pxe), solicit(one, 0.1, boot.DHCPRequest, 1, pxe...),
				one.lease(1, pxe, "ipxe.efi"), solicit(one, 2, boot.DHCPRequest, 1, pxe...), solicit(one, 6, boot.DHCPRequest, 1, pxe...)),
			"dhcp ok", Booting, Loader,
		},
		{
			"names that say nothing", film(one.toIPXE(0), one.get(5, 0.1, smee, 7171, "/boot/"+first),
				one.get(7, 1, files, 8080, "/k"), one.get(9, 1, files, 8080, "/i"), one.get(10, 1, files, 8080, "/k")),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok, kernel ok, initramfs ok", Booting, OSDHCP,
		},
		{
			"a unified kernel image", film(one.toScript(0), one.get(7, 1, files, 8080, "/images/talos.efi")),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok, kernel ok", Booting, Initramfs,
		},
		{
			"the firmware finds no server, and boots its disk", film(one.asks(0), one.lease(60, plain, "")),
			"dhcp failed, os-dhcp ok", Installed, "",
		},
		{
			"the agent's calls", film(one.toSystem(0),
				one.agent(33, 0.1, boot.Done, with(boot.File, "/proto.WorkflowService/GetWorkflowContexts")),
				one.agent(40, 0.1, boot.Done, with(boot.File, "/proto.WorkflowService/ReportActionStatus"))),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok, kernel ok, initramfs ok, os-dhcp ok, syslog ok, agent ok", Installed, "",
		},
		{
			"iPXE logs before there is a system", film(one.toIPXE(0), one.log(5, "ipxe", "chain"), one.script(6)),
			"dhcp ok, loader ok, ipxe-dhcp ok, script ok", Booting, Kernel,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := New(Options{})
			until := c.shots[len(c.shots)-1].at + 5
			if c.state == Installed {
				until += 60
			}
			play(j, c.shots, until)
			b := newest(t, j, first)
			var steps []string
			for _, s := range b.Steps {
				steps = append(steps, string(s.Step)+" "+string(s.Result))
			}
			if diff := cmp.Diff(c.steps, strings.Join(steps, ", ")); diff != "" {
				t.Error(diff)
			}
			if b.State != c.state || b.Next != c.next {
				t.Errorf("got %s, next %q; want %s, next %q (cause %+v)", b.State, b.Next, c.state, c.next, b.Cause)
			}
			if m, _ := j.Machine(first); len(m.Boots) != 1 {
				t.Errorf("got %d boots", len(m.Boots))
			}
		})
	}
}

// What begins another boot, and what belongs to the one that goes on.
func TestWhereABootBegins(t *testing.T) {
	for _, c := range []struct {
		name  string
		shots []shot
		want  int
	}{
		{"firmware asks again at once", film(one.discover(0, pxe), one.discover(4, pxe)), 1},
		{"firmware asks again after minutes", film(one.discover(0, pxe), one.discover(310, pxe)), 2},
		{"firmware asks again for minutes", film(again(func(at float64) shot { return one.discover(at, pxe) }, 0, 60, 120, 180, 240, 300, 360)), 1},
		{"the firmware is back after the loader", film(one.toLoader(0), one.discover(9, pxe)), 1},
		{"switched off and on at the script", film(one.toScript(0), one.toScript(20)), 2},
		{"iPXE in ROM, at the script again", film(one.lease(0, rom, "u.kpxe"), one.tftp(1, 1, "u.kpxe"), one.lease(2, tinkerbell, "http://x/a.ipxe"),
			one.script(3, status(404)), one.lease(10, rom, "u.kpxe")), 2},
		{"iPXE asks twice", film(one.toScript(0), one.lease(7, tinkerbell, "x.ipxe"), one.kernel(10)), 1},
		{"the system renews its lease", film(one.toSystem(0), one.dhcp(1800, boot.DHCPRequest, 3, func(d *draft) {
			d.Client = bytes16(one.address)
		}), one.reply(1800.1, 5, "")), 1},
		{"the installed system", film(one.toAgent(0), one.agent(60, 25, boot.Done), one.lease(120, plain, "")), 2},
		{"the firmware's IPv6 layer", film(one.toAgent(0), one.agent(60, 25, boot.Done), one.lease6(120, "", layer), one.lease(125, pxe, "u.kpxe")), 2},
		{"the installed system, again and again", film(one.lease(0, plain, ""), one.lease(100, plain, ""), one.lease(200, plain, "")), 1},
		{"no DHCP heard", film(one.script(0), one.kernel(5), one.script(1000)), 2},
		{"the agent's connection ends after the next boot began", film(one.toAgent(0), one.discover(60, pxe), one.agent(70, 35, boot.Torn)), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := New(Options{})
			play(j, c.shots, c.shots[len(c.shots)-1].at+1)
			m, _ := j.Machine(first)
			if len(m.Boots) != c.want {
				t.Errorf("got %d boots, want %d: %+v", len(m.Boots), c.want, m.Boots)
			}
			if strings.Contains(c.name, "next boot began") && m.Boots[0].At != DHCP {
				t.Errorf("the connection of the last boot is taken for one of this: at %s", m.Boots[0].At)
			}
		})
	}
}

// An installed machine that may not boot from the network any more asks it first at each start, and is not stuck.
func TestInstalledMachineBootsItsDisk(t *testing.T) {
	j := New(Options{Hardware: hardware(map[string]Hardware{first: {Known: true, Name: "default/node-1"}})})
	play(j, film(one.toAgent(0), one.agent(70, 35, boot.Done), one.asks(100)), 120)
	if b := newest(t, j, first); b.State != Booting || b.Cause != nil {
		t.Fatalf("got %s, %+v", b.State, b.Cause)
	}
	wait(j, 121, 1020)
	if b := newest(t, j, first); b.State != Quiet || b.Cause != nil {
		t.Errorf("got %s, %+v", b.State, b.Cause)
	}
	put(j, one.lease(1021, plain, "")...)
	if b := newest(t, j, first); b.State != Installed {
		t.Errorf("got %s, %+v", b.State, b.Cause)
	}
}

// A machine whose boots fail alike does not look well in between.
func TestCauseOfABootLoopStays(t *testing.T) {
	j := New(Options{})
	loop := func(at float64) []shot { return film(one.toIPXE(at), one.script(at+5, status(404))) }
	play(j, film(loop(0), loop(20), one.lease(40, pxe, "ipxe.efi")), 41)
	b := newest(t, j, first)
	if b.State != Stuck || causeName(b) != "not-found" || !strings.HasPrefix(b.Cause.Text, carried) || b.Cause.Certain {
		t.Fatalf("got %s, %+v", b.State, b.Cause)
	}
	play(j, film(one.tftp(43, 1, "ipxe.efi"), one.lease(44, tinkerbell, "http://x/auto.ipxe"), one.script(46), one.kernel(48)), 49)
	if b := newest(t, j, first); b.State != Booting || b.Cause != nil {
		t.Errorf("got %s, %+v", b.State, b.Cause)
	}
	near := New(Options{})
	play(near, film(loop(0), one.lease(20, pxe, "ipxe.efi")), 21)
	if b := newest(t, near, first); b.State != Booting || b.Cause != nil {
		t.Errorf("after one boot that failed: got %s, %+v", b.State, b.Cause)
	}
}

// A repeated answer counts, and one that went on is completed, not added.
func TestAnswers(t *testing.T) {
	j := New(Options{})
	play(j, film(one.asks(0), one.lease(14, pxe, "ipxe.efi"), one.tftp(15, 0, "ipxe.efi", outcome(boot.Began), size(0)), one.tftp(17, 2, "ipxe.efi")), 18)
	var rows []string
	for _, s := range newest(t, j, first).Steps {
		for _, a := range s.Answers {
			rows = append(rows, strings.Join([]string{string(s.Step), a.Kind, a.Text, a.Result, string(rune('0' + a.Count))}, "|"))
		}
	}
	want := []string{
		"dhcp|DISCOVER||sent on|4", "dhcp|OFFER|192.0.2.101, boot file ipxe.efi, next server 192.0.2.2|sent on|1",
		"dhcp|REQUEST|asks for 192.0.2.101 of 192.0.2.2|sent on|1",
		"dhcp|ACK|192.0.2.101, boot file ipxe.efi, next server 192.0.2.2|sent on|1", "loader|TFTP|ipxe.efi|ok|1",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

func TestHostileTextsAreCleaned(t *testing.T) {
	j := New(Options{})
	nasty := "<script>\x1b[31m\r\n\x00\xff\u202e" + strings.Repeat("A", 300)
	play(j, film(one.discover(0, []option{with(boot.VendorClass, "PXEClient"+nasty[:40]), with(boot.HostName, nasty[:40])}),
		one.lease(1, pxe, nasty[:100]), one.tftp(2, 1, nasty, size(0), status(2), with(boot.Message, nasty[:50])), one.log(3, nasty[:20], nasty)), 10)
	m, _ := j.Machine(first)
	var walk []string
	walk = append(walk, m.Name, m.VendorClass, m.Boots[0].Cause.Text)
	for _, s := range m.Boots[0].Steps {
		walk = append(walk, s.Text)
		for _, a := range s.Answers {
			walk = append(walk, a.Text, a.Result)
		}
	}
	for _, l := range m.Lines {
		walk = append(walk, l.Tag, l.Text)
	}
	for _, s := range walk {
		if strings.ContainsAny(s, "\x1b\r\n\x00\u202e") || !utf8.ValidString(s) || len(s) > 1200 {
			t.Errorf("%q", s)
		}
	}
	if len(m.Lines) != 1 || causeName(m.Boots[0]) != "not-found" {
		t.Errorf("got %d lines, cause %q", len(m.Lines), causeName(m.Boots[0]))
	}
}
