package journal

import (
	"slices"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/pkg/boot"
)

// hardware is what Kubernetes knows in a test.
func hardware(known map[string]Hardware) func([6]byte) (Hardware, bool) {
	return func(mac [6]byte) (Hardware, bool) { return known[macString(mac)], true }
}

func again(shots func(at float64) shot, times ...float64) []shot {
	var all []shot
	for _, t := range times {
		all = append(all, shots(t))
	}
	return all
}

// asks is a machine whose firmware asks again and again.
func (a actor) asks(from float64) []shot {
	return again(func(at float64) shot { return a.discover(at, pxe) }, from, from+4, from+12)
}

// sent is how much goes to an agent on its connection, which began at a time: so much each time, and once something else.
func (a actor) sent(begin, every float64, each uint64, once ...uint64) (all []shot) {
	bytes := uint64(0)
	for at := every; begin+at < 340; at += every {
		bytes += each
		if len(once) > 0 && at > 60 {
			bytes, once = bytes+once[0], nil
		}
		all = append(all, a.agent(begin+at, at, boot.Began, func(e *draft) { e.Bytes = bytes }))
	}
	return all
}

// case_ is a row of the table of causes: what was heard, and what it means for a machine.
type case_ struct {
	name     string
	shots    []shot
	until    float64 // seconds
	hardware map[string]Hardware
	want     string   // cause; empty: none
	says     []string // parts of text and remedy
	state    State    // empty: Stuck with a cause, Booting without
	step     Step     // that it is at; empty: any
}

var elsewhere = "192.0.2.9"

func causes() []case_ {
	refusedCall := func(code uint16, message string) option {
		return func(e *draft) {
			e.Status = code
			e.texts[boot.File] = "/proto.WorkflowService/GetWorkflowContexts"
			e.texts[boot.Message] = message
		}
	}
	kernelOf := func(n, of uint64, o boot.Outcome) option {
		return func(e *draft) { e.Bytes, e.Expected, e.Outcome = n, of, o }
	}
	tagged := dropped("other-host")
	served := two.lease(6, pxe, "ipxe.efi")
	slow := func(o boot.Outcome, bytes uint64, resent uint32) option {
		return func(e *draft) { e.Outcome, e.Bytes, e.Resent = o, bytes, resent }
	}
	offer := func(at float64, server string) shot {
		return one.reply(at, 2, "ipxe.efi", func(e *draft) { e.Server = bytes16(server) })
	}
	return []case_{
		// DISCOVER again and again, no OFFER; the server answers others.
		{name: "no answer, others have one", shots: film(one.discover(0, pxe), one.discover(4, pxe), served, one.discover(12, pxe)),
			until: 13, want: "no-hardware", says: []string{first, "3 times", "answers others", "Hardware object"}, step: DHCP},
		{name: "no Hardware object", shots: one.asks(0), until: 4.5, want: "no-hardware",
			hardware: map[string]Hardware{first: {Closest: "52:54:00:5e:00:11 (default/node-11)"}},
			says:     []string{"no Hardware object has this MAC", "closest is 52:54:00:5e:00:11 (default/node-11)"}},
		{name: "the server answered another a moment ago", shots: film(two.lease(0, pxe, "ipxe.efi"), one.asks(20)), until: 33,
			want: "no-hardware", says: []string{"answered another machine at 08:00:00 UTC"}},
		{name: "near: the second DISCOVER is answered", shots: film(one.discover(0, pxe), served[:0], one.lease(4, pxe, "ipxe.efi")),
			until: 10, want: ""},
		{name: "near: one DISCOVER only", shots: film(one.discover(0, pxe)), until: 60, want: ""},
		{name: "allowPXE is false", shots: one.asks(0), until: 13, want: "netboot-not-allowed",
			hardware: map[string]Hardware{first: {Known: true, Name: "default/node-1", Workflow: &Workflow{State: "PENDING"}}},
			says:     []string{"allowPXE", "default/node-1"}},
		{name: "near: allowPXE is false, and nothing is to be installed", shots: one.asks(0), until: 13,
			hardware: map[string]Hardware{first: {Known: true, Name: "default/node-1"}}},
		{name: "allowPXE is false, as Smee says it", shots: film(one.lease(0, pxe, "/netboot-not-allowed"),
			one.lease(8, pxe, "/netboot-not-allowed"), one.lease(20, pxe, "/netboot-not-allowed")), until: 21,
			want: "netboot-not-allowed", says: []string{"allowPXE"}},
		{name: "near: an installed machine is told so, and boots its disk", shots: one.lease(0, pxe, "/netboot-not-allowed"), until: 90,
			want: ""},
		{name: "near: Hardware is there and allows it", shots: one.lease(0, pxe, "ipxe.efi"), until: 5, want: "",
			hardware: map[string]Hardware{first: {Known: true, Netboot: true}}},

		// The same, and the server answers nobody.
		{name: "Smee is gone, or knows none of them", shots: film(one.asks(0), two.asks(1), three.asks(2)), until: 15, want: CannotTell,
			says: []string{"2 other machines", "Smee", "3 machines, all EFI x86-64, stop here"}, step: DHCP},
		{name: "Smee is gone, for two machines", shots: film(one.asks(0), two.asks(1)), until: 15, want: CannotTell,
			says: []string{"as 1 other machine does: the server answers nobody"}, step: DHCP},
		{name: "Smee is gone, behind a router", shots: film(one.discover(0, pxe, func(e *draft) { e.Relay = bytes16("10.0.0.1") }),
			one.discover(4, pxe, func(e *draft) { e.Relay, e.Endpoint, e.Port = bytes16("10.0.0.1"), bytes16(smee), 67 })), until: 61,
			want: CannotTell, says: []string{"10.0.0.1", "192.0.2.2:67"}},
		{name: "Smee is gone, and the Hardware object is right", shots: film(two.lease(0, pxe, "ipxe.efi"), one.asks(1)), until: 14,
			hardware: map[string]Hardware{first: {Known: true, Netboot: true}}, want: "server-silent"},
		{name: "Smee is gone, and answered this machine before", shots: film(one.lease(0, pxe, "ipxe.efi"), two.lease(50, pxe, "ipxe.efi"),
			one.asks(100)), until: 110, want: "server-silent"},
		{name: "near: another machine is not known either", shots: film(three.discover(0, pxe), three.discover(4, pxe), two.lease(5, pxe, "ipxe.efi"),
			three.discover(12, pxe), one.asks(20)), until: 33, want: "no-hardware"},
		{name: "Smee is gone between offer and ACK", shots: film(one.lease(0, pxe, "")[:2], one.request(1, pxe, smee),
			one.request(4, pxe, smee), one.request(8, pxe, smee)), until: 9, want: "server-silent", says: []string{"does not confirm"}},
		{name: "the relay has no server", shots: again(func(at float64) shot { return one.discover(at, pxe, dropped("no-server")) }, 0, 4),
			until: 5, want: "no-server", says: []string{"SERVER"}},
		{name: "near: Smee is back", shots: film(one.asks(0), one.lease(20, pxe, "ipxe.efi")), until: 22, want: ""},
		{name: "the relay drops its messages", shots: again(func(at float64) shot { return one.discover(at, pxe, dropped("client-limit")) }, 0, 4),
			until: 5, want: "relay-dropped", says: []string{"client-limit", "docs/reference/dhcp-relay.md"}},
		{name: "near: one was dropped, the next went on", shots: film(one.discover(0, pxe, dropped("client-limit")), one.lease(4, pxe, "ipxe.efi")),
			until: 7, want: ""},
		{name: "the relay drops the replies", shots: film(one.discover(0, pxe), one.reply(1, 2, "", dropped("untrusted-server")),
			one.discover(4, pxe), one.reply(5, 2, "", dropped("untrusted-server"))), until: 6, want: "reply-dropped",
			says: []string{"untrusted-server"}},

		// DISCOVER never seen, but other frames of the MAC.
		{name: "frames of another VLAN", shots: again(func(at float64) shot { return one.discover(at, pxe, tagged) }, 0, 4), until: 5,
			want: "wrong-vlan", says: []string{"VLAN"}},
		{name: "replies for a machine that did not ask here",
			shots: again(func(at float64) shot { return one.reply(at, 2, "", dropped("unsolicited")) }, 0, 4), until: 5,
			want: "wrong-vlan", says: []string{"another relay"}},
		{name: "near: its own VLAN, too", shots: film(one.discover(0, pxe, tagged), one.lease(0.1, pxe, "ipxe.efi"), one.tftp(2, 1, "ipxe.efi")),
			until: 6, want: ""},
		{name: "near: a late reply", shots: film(one.lease(0, pxe, "ipxe.efi"), one.reply(1, 2, "", dropped("unsolicited")),
			one.reply(2, 2, "", dropped("unsolicited"))), until: 6, want: ""},

		// OFFER passed, REQUEST names another server.
		{name: "a second DHCP server", shots: film(one.lease(0, pxe, "ipxe.efi")[:2], one.request(1, pxe, elsewhere)), until: 2,
			want: "other-dhcp-server", says: []string{elsewhere, smee, "second DHCP server"}},
		{name: "a second DHCP server, which is the only one that offers", shots: film(two.lease(0, pxe, "x"), one.discover(10, pxe),
			one.request(11, pxe, elsewhere)), until: 12, want: "other-dhcp-server", says: []string{elsewhere}},
		{name: "a second DHCP server, heard on the machine's side", shots: film(one.lease(0, pxe, "ipxe.efi")[:2],
			one.reply(0.5, 5, "", dropped("reply-from-client"), func(e *draft) { e.Server = bytes16(elsewhere) })), until: 2,
			want: "other-dhcp-server", says: []string{elsewhere}},
		{name: "a second DHCP server, and Smee confirms all the same", shots: film(one.lease(0, pxe, "ipxe.efi")[:2],
			one.request(1, pxe, elsewhere), one.reply(1.1, 5, "ipxe.efi")), until: 30, want: "other-dhcp-server", says: []string{elsewhere, smee}},
		{name: "near: REQUEST names our server", shots: film(one.lease(0, pxe, "ipxe.efi")[:3]), until: 2, want: ""},
		{name: "near: proxyDHCP leaves the address to another server", shots: film(one.discover(0, pxe),
			one.reply(0.1, 2, "ipxe.efi", func(e *draft) { e.Given = [16]byte{} }), one.request(1, pxe, elsewhere),
			one.tftp(3, 1, "ipxe.efi")), until: 6, want: ""},
		{name: "near: another of our servers", shots: film(two.reply(0, 2, "x", func(e *draft) { e.Server = bytes16(elsewhere) }),
			one.lease(1, pxe, "ipxe.efi")[:2], one.request(3, pxe, elsewhere)), until: 4, want: ""},
		{name: "offers that are not taken", shots: film(one.lease(0, pxe, "")[:2], one.lease(4, pxe, "")[:2], one.lease(8, pxe, "")[:2]),
			until: 10, want: "offer-not-taken", says: []string{"3 offers"}},
		{name: "near: the third offer is taken", shots: film(one.lease(0, pxe, "")[:2], one.lease(4, pxe, "")[:2], one.lease(8, pxe, "a.efi")),
			until: 10, want: ""},
		{name: "near: three servers offer, and the firmware has not chosen yet", shots: film(one.discover(0, pxe), offer(0.1, "192.0.2.2"),
			offer(0.2, "192.0.2.3"), offer(0.3, "192.0.2.4")), until: 3, want: ""},
		{name: "the address is refused", shots: film(one.request(0, pxe, ""), one.reply(0.1, 6, ""), one.request(2, pxe, ""), one.reply(2.1, 6, "")),
			until: 3, want: "address-refused", says: []string{"2 times"}},
		{name: "near: refused once, then a new one", shots: film(one.request(0, pxe, ""), one.reply(0.1, 6, ""), one.lease(1, pxe, "ipxe.efi")),
			until: 5, want: ""},

		// ACK, no loader asked.
		{name: "no boot file", shots: one.lease(0, pxe, ""), until: 5, want: "no-boot-file", says: []string{"no boot file", "EFI x86-64"}},
		{name: "no boot file by DHCPv6", shots: one.lease6(0, "", pxe...), until: 5, want: "no-boot-file", says: []string{"of 2001:db8::2 to"}},
		{name: "no boot file for this architecture", shots: film(one.discover(0, pxe, arch(2)), one.reply(0.1, 2, ""),
			one.dhcp(0.2, boot.DHCPRequest, 3, with(boot.VendorClass, "PXEClient"), arch(2)), one.reply(0.3, 5, "")), until: 5,
			want: "no-boot-file", says: []string{"EFI Itanium, 2"}},
		{name: "the loader is not asked for", shots: one.lease(0, pxe, "ipxe.efi"), until: 22, want: "loader-not-asked",
			says: []string{`"ipxe.efi"`, smee, "Secure Boot"}},
		{name: "near: the loader is asked for", shots: film(one.lease(0, pxe, "ipxe.efi"), one.tftp(15, 1, "ipxe.efi")), until: 22, want: ""},
		{name: "a loader for BIOS", shots: one.lease(0, pxe, "undionly.kpxe"), until: 22, want: "wrong-architecture",
			says: []string{"made for BIOS", "EFI x86-64"}},
		{name: "a loader for ARM", shots: film(one.lease(0, pxe, "snp-arm64.efi"), one.tftp(2, 1, "snp-arm64.efi"), one.discover(9, pxe)),
			until: 10, want: "wrong-architecture", says: []string{"made for ARM64"}},
		{name: "a kernel for ARM", shots: film(one.toScript(0), one.get(7, 1, files, 8080, "/vmlinuz-aarch64", size(9<<20))), until: 130,
			want: "wrong-architecture", says: []string{"vmlinuz-aarch64", "ARM64"}},

		// TFTP error 1 / 2, HTTP 404 / 403.
		{name: "the loader's file is missing", shots: film(two.toLoader(0), one.lease(9, pxe, "ipxe.efi"),
			one.tftp(10, 0, "ipxe-new.efi", size(0), status(2), with(boot.Message, "file not found"))), until: 14, want: "not-found",
			says: []string{`"ipxe-new.efi"`, "192.0.2.2:69", "TFTP error 1: file not found", `"ipxe.efi"`}, step: Loader},
		{name: "near: a file that firmware only tries", shots: film(one.lease(0, pxe, "ipxe.efi"),
			one.tftp(1, 0, "revocations.efi", size(0), status(2)), one.tftp(2.5, 1, "ipxe.efi")), until: 8, want: ""},
		{name: "near: a script that iPXE only tries", shots: film(one.toLoader(0),
			one.tftp(2.1, 0, "autoexec.ipxe", size(0), status(2), with(boot.Message, "file does not exist"))), until: 20, want: "", step: Loader},
		{name: "the loader may not be read", shots: film(one.lease(0, pxe, "ipxe.efi"), one.tftp(1, 0, "ipxe.efi", size(0), status(3))),
			until: 5, want: "forbidden", says: []string{"TFTP error 2"}},
		{name: "404 of a script", shots: film(one.toIPXE(0), one.script(5, status(404))), until: 9, want: "not-found",
			says: []string{"/auto.ipxe", "192.0.2.2:7171", "404"}, step: Script},
		{name: "near: 404 of a script, then it is there", shots: film(one.toIPXE(0), one.script(5, status(404)), one.script(6)), until: 12, want: ""},
		{name: "403 of a script", shots: film(one.toIPXE(0), one.script(5, status(403))), until: 9, want: "forbidden", says: []string{"403"}},
		{name: "the proxy refuses a path", shots: film(one.toIPXE(0), one.script(5, status(404), outcome(boot.Refused), with(boot.Where, "smee-http"),
			with(boot.Reason, "path"))), until: 9, want: "refused-here", says: []string{"smee-http", "path"}},
		{name: "500 of a script", shots: film(one.toIPXE(0), one.script(5, status(500))), until: 9, want: "server-error", says: []string{"500"}},
		{name: "the kernel is gone", shots: film(two.toKernel(0), one.toScript(0), one.kernel(6, status(404))), until: 10, want: "not-found",
			says: []string{"/vmlinuz-x86_64", files, "404", "initramfs-x86_64"}, step: Kernel},

		// TFTP blocks sent again without end, a transfer stalls.
		{name: "a transfer that ends unfinished", shots: film(one.lease(0, pxe, "ipxe.efi"), one.tftp(31, 30, "ipxe.efi", slow(boot.Torn, 20000, 6))),
			until: 35, want: "loader-stalled", says: []string{"MTU", "1468", "6 blocks", "20000 of 97000"}, step: Loader},
		{name: "a transfer that does not end", shots: film(one.lease(0, pxe, "ipxe.efi"), one.tftp(1, 0, "ipxe.efi", slow(boot.Began, 0, 0))),
			until: 48, want: "loader-stalled", says: []string{"goes on for"}},
		{name: "near: a slow transfer", shots: film(one.lease(0, pxe, "ipxe.efi"), one.tftp(1, 0, "ipxe.efi", slow(boot.Began, 0, 0)),
			one.tftp(40, 39, "ipxe.efi", slow(boot.Done, 97000, 6))), until: 42, want: ""},
		{name: "near: firmware asks for the size first", shots: film(one.lease(0, pxe, "ipxe.efi"),
			one.tftp(1, 0, "ipxe.efi", slow(boot.Done, 1468, 0), status(1), with(boot.Reason, "client_error")), one.tftp(12, 1, "ipxe.efi")),
			until: 14, want: ""},

		// Loader, then DISCOVER as firmware again.
		{name: "the firmware is back", shots: film(one.toLoader(0), one.discover(9, pxe), one.discover(13, pxe)), until: 60, want: "loader-did-not-start",
			says: []string{"Secure Boot", `"ipxe.efi"`}, step: DHCP},
		{name: "nothing after the loader but a look for a file's size", shots: film(one.toLoader(0),
			one.tftp(2.1, 0, "grub.efi", slow(boot.Began, 0, 0)), one.tftp(2.2, 0.1, "grub.efi", slow(boot.Done, 0, 0), status(1),
				with(boot.Reason, "client_error"))), until: 50, want: "loader-did-not-start"},
		{name: "nothing after the loader", shots: one.toLoader(0), until: 50, want: "loader-did-not-start", says: []string{"nothing was heard since"}},
		{name: "UEFI does not trust the certificate of HTTPS boot", shots: film(one.lease(0, pxe, "https://192.0.2.2:7173/ipxe.efi"),
			one.agent(2, 0, boot.Refused, with(boot.Where, "files"), with(boot.Reason, boot.ReasonHandshake),
				with(boot.Message, "remote error: tls: unknown certificate authority"), func(e *draft) { e.AskedPort = 7173 })), until: 8,
			want: "tls-refused", says: []string{"7173", "unknown certificate authority"}, step: Loader},
		{name: "it tries HTTPS boot again", shots: film(one.lease(0, pxe, "https://192.0.2.2:7173/ipxe.efi"), again(func(at float64) shot {
			return one.agent(at, 0, boot.Refused, with(boot.Where, "files"), with(boot.Reason, boot.ReasonHandshake),
				with(boot.Message, "remote error: tls: expired certificate (certificate valid from 2024-01-01 to 2025-01-01)"),
				func(e *draft) { e.AskedPort = 7173 })
		}, 2, 3, 4)), until: 10, want: "tls-refused", says: []string{"7173", "to 2025-01-01", "clock"}, step: Loader},
		{name: "the kernel is elsewhere", shots: film(one.toScript(0), one.get(6, 0.1, files, 8080, "/vmlinuz", status(301),
			with(boot.Message, "https://files.example/vmlinuz"))), until: 30, want: "redirected",
			says: []string{"vmlinuz", "https://files.example/vmlinuz", "301"}, step: Kernel},
		{name: "near: the redirect is followed", shots: film(one.toScript(0), one.get(6, 0.1, files, 8080, "/vmlinuz", status(302),
			with(boot.Message, "/new/vmlinuz")), one.get(7, 1, files, 8080, "/new/vmlinuz")), until: 30, want: ""},
		{name: "UEFI tries its next boot entry", shots: film(one.toLoader(0), one.discover(4, pxe)), until: 5, want: "loader-did-not-start",
			says: []string{"Secure Boot", `"ipxe.efi"`}, step: DHCP},
		{name: "UEFI does not start iPXE", shots: one.toLoader(0), until: 11, want: "loader-did-not-start", state: Booting,
			says: []string{"Secure Boot", "Smee's"}},
		{name: "near: iPXE looks for autoexec.ipxe", shots: film(one.toLoader(0), one.tftp(3, 0, "autoexec.ipxe", size(0), status(2))), until: 15,
			want: ""},
		{name: "shim does not trust GRUB", shots: film(one.lease(0, pxe, "shimx64.efi"), one.tftp(1, 0.5, "shimx64.efi"),
			one.tftp(2, 0, "revocations.efi", size(0), status(2)), one.tftp(3, 1, "grubx64.efi"),
			one.tftp(4, 0, "mmx64.efi", size(0), status(2))), until: 9, want: "loader-did-not-start",
			says: []string{`"grubx64.efi"`, "does not trust"}, step: Loader},
		{name: "near: a key waits to be enrolled", shots: film(one.lease(0, pxe, "shimx64.efi"), one.tftp(1, 0.5, "shimx64.efi"),
			one.tftp(3, 1, "mmx64.efi")), until: 9, want: ""},
		{name: "GRUB does not trust the kernel", shots: film(one.lease(0, pxe, "shimx64.efi"), one.tftp(1, 0.5, "shimx64.efi"),
			one.tftp(3, 1, "grubx64.efi"), one.tftp(4, 0, "/grub/grub.cfg"), one.tftp(9, 4, "/vmlinuz-x86_64")), until: 18,
			want: "kernel-silent", state: Booting, says: []string{"Secure Boot", `"/vmlinuz-x86_64"`}, step: Kernel},
		{name: "near: iPXE asks", shots: one.toIPXE(0), until: 9, want: ""},
		{name: "near: iPXE asks once the firmware was back", shots: film(one.toLoader(0), one.discover(9, pxe), one.toIPXE(12)), until: 20, want: ""},
		{name: "near: switched off and on after the kernel", shots: film(one.toKernel(0), one.discover(15, pxe)), until: 16, want: ""},
		{name: "iPXE loads itself", shots: film(one.toLoader(0), one.lease(4, tinkerbell, "ipxe.efi"), one.tftp(6, 1, "ipxe.efi"),
			one.lease(8, tinkerbell, "ipxe.efi"), one.tftp(10, 1, "ipxe.efi"), one.lease(12, tinkerbell, "ipxe.efi")), until: 14,
			want: "loader-loop", says: []string{"3 times"}},

		// Script served, kernel not asked for.
		{name: "the script is not followed", shots: one.toScript(0), until: 127, want: "script-not-followed",
			hardware: map[string]Hardware{first: {Known: true, Netboot: true, Workflow: &Workflow{State: "PENDING"}}},
			says:     []string{"/auto.ipxe", "certificate"}, step: Script},
		{name: "near: a menu may wait", shots: one.toScript(0), until: 600},
		{name: "a menu may wait, or not", shots: one.toScript(0), until: 730, want: CannotTell, state: Booting,
			says: []string{"menu", "script-not-followed"}},
		{name: "near: the kernel comes from elsewhere", shots: film(one.toScript(0), one.lease(20, plain, "")), until: 45, state: Installed},
		{name: "the script is not asked for", shots: one.toIPXE(0), until: 27, want: "script-not-asked",
			says: []string{"http://192.0.2.2:7171/52:54:00:5e:00:01/auto.ipxe"}, step: IPXEDHCP},
		{name: "near: the script is asked for", shots: one.toScript(0), until: 22, want: ""},

		// Kernel served, then silence.
		{name: "silence after the kernel", shots: one.toKernel(0), until: 131, want: "kernel-silent", says: []string{"console", "NIC"}},
		{name: "silence after the kernel alone", shots: film(one.toScript(0), one.kernel(7)), until: 131, want: "kernel-silent",
			says: []string{"No initramfs"}},
		{name: "silence after a page in place of the kernel", shots: film(one.toScript(0), one.kernel(7, size(4096))), until: 131,
			want: "kernel-silent", says: []string{"The kernel has 4096 bytes"}},
		{name: "near: a system that starts slowly", shots: film(one.toKernel(0), one.lease(100, plain, "")), until: 200, want: ""},
		{name: "near: a system that logs", shots: film(one.toKernel(0), one.log(100, "kernel", "Linux")), until: 200, want: ""},
		{name: "no agent", shots: one.toSystem(0), until: 340, want: "system-silent"},
		{name: "near: an agent", shots: one.toAgent(0), until: 340, want: ""},
		{name: "the system gets no address", shots: film(two.toKernel(0), one.toKernel(1), again(func(at float64) shot {
			return one.discover(at, plain)
		}, 30, 33, 40), two.lease(41, plain, "")), until: 44, want: "no-hardware", step: OSDHCP},

		// The agent's stream is refused.
		{name: "the agent is refused", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(7, "worker not known"))),
			until: 39, want: "agent-refused", says: []string{"PERMISSION_DENIED", "worker not known", "Workflow"}, step: Agent},
		{name: "the agent's worker ID is unknown", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(5, ""))),
			until: 39, want: "agent-refused", says: []string{"NOT_FOUND"}},
		{name: "the agent is of another release", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(12, "unknown service"))),
			until: 39, want: "agent-refused", says: []string{"UNIMPLEMENTED", "unknown service", "release"}},
		{name: "the agent's token is refused", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(16, "token is not valid yet"))),
			until: 39, want: "agent-refused", says: []string{"UNAUTHENTICATED", "not valid yet", "clock"}},
		{name: "Tink Server fails", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(13, "etcd"))),
			until: 39, want: "agent-refused", says: []string{"INTERNAL", "etcd", "log"}},
		{name: "the agent is sent away", shots: film(one.toSystem(0), again(func(at float64) shot { return one.agent(at, 0.1, boot.Done) }, 35, 36, 37)),
			until: 39, want: "agent-refused", says: []string{"3 times"}},
		{name: "near: the agent is refused once", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(7, "")),
			one.agent(36, 0, boot.Began, refusedCall(0, "")), one.agent(37, 1, boot.Done, refusedCall(0, ""))), until: 42, want: ""},
		{name: "near: the agent hangs up", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.Done, refusedCall(1, ""))), until: 39, want: ""},
		{name: "no workflow", shots: film(one.toSystem(0), again(func(at float64) shot {
			return one.agent(at, 0.1, boot.Done, refusedCall(0, ""))
		}, 35, 95, 155, 215, 275, 335)), until: 340, want: "no-workflow", says: []string{"Workflow"}},
		{name: "no workflow, by TCP", shots: film(one.toAgent(0), one.sent(35, 5, 30)), until: 340, want: "no-workflow",
			says: []string{"as little each time"}},
		{name: "near: an agent by TCP that got work, and asks for more at last", shots: film(one.toAgent(0), one.sent(35, 5, 30, 4000)),
			until: 340},
		{name: "near: a connection that is only kept alive", shots: film(one.toAgent(0), one.sent(35, 10, 17)), until: 340},
		{name: "Tink Server is gone", shots: film(one.toSystem(0), one.agent(35, 0.1, boot.NoServer)), until: 39, want: "backend-down",
			says: []string{"tink"}},

		// A file served short, a checksum asked twice.
		{name: "the kernel is torn", shots: film(one.toScript(0), one.kernel(7, kernelOf(4<<20, 9<<20, boot.Torn))), until: 11, want: "file-torn",
			says: []string{"4194304 of 9437184 bytes", "/vmlinuz-x86_64"}, step: Kernel},
		{name: "the kernel is short", shots: film(one.toScript(0), one.kernel(7, kernelOf(4<<20, 9<<20, boot.Done))), until: 11, want: "file-torn"},
		{name: "near: torn once, then whole", shots: film(one.toScript(0), one.kernel(7, kernelOf(4<<20, 9<<20, boot.Torn)), one.kernel(8)),
			until: 20, want: ""},
		{name: "near: an ISO in parts", shots: film(one.get(1, 1, smee, 7171, "/iso/"+first+"/hook.iso", kernelOf(4<<20, 9<<20, boot.Torn),
			with(boot.Agent, "BMC"))), until: 11, want: ""},
		// Backends.
		{name: "no endpoint for the script", shots: film(one.toIPXE(0), one.script(5, status(502), outcome(boot.NoServer),
			with(boot.Where, "smee-http"))), until: 9, want: "backend-down", says: []string{"smee-http"}, step: Script},
		{name: "503 of the script", shots: film(one.toIPXE(0), one.script(5, status(503))), until: 9, want: "backend-down", says: []string{"503"}},
		{name: "the TFTP server is silent", shots: film(one.lease(0, pxe, "ipxe.efi"),
			one.tftp(11, 10, "ipxe.efi", size(0), slow(boot.NoServer, 0, 0), with(boot.Where, "smee-tftp"))), until: 15, want: "backend-down",
			says: []string{"smee-tftp"}},
		{name: "Hegel is gone", shots: film(one.toSystem(0), one.metadata(33, status(502), outcome(boot.NoServer), with(boot.Where, "hegel"))),
			until: 50, want: "no-hegel", says: []string{"hegel"}, step: Metadata},
		{name: "the Hardware object is deleted under the installer", shots: film(one.toSystem(0), one.metadata(33, status(404)),
			one.metadata(36, status(404))), until: 90, hardware: map[string]Hardware{}, want: "no-hardware", says: []string{"no Hardware object"}},
		{name: "near: Hegel is back", shots: film(one.toSystem(0), one.metadata(33, status(502), outcome(boot.NoServer)), one.metadata(40)),
			until: 60, want: ""},
		{name: "near: metadata that a system can do without", shots: film(one.toSystem(0), one.metadata(33, status(404)), one.metadata(34)),
			until: 60, want: ""},

		// All machines at the same step.
		{name: "all machines stop at the loader", shots: film(one.toLoader(0), two.toLoader(1), three.toLoader(2)), until: 60,
			want: "loader-did-not-start", says: []string{"3 machines, all EFI x86-64, stop here"}},
		{name: "all machines miss the kernel", shots: film(one.toScript(0), two.toScript(0), three.toScript(0), three.kernel(6, status(404)),
			two.kernel(6.1, status(404)), one.kernel(6.2, status(404))), until: 11, want: "not-found", says: []string{"3 machines", "404"}},

		// What no cause is for.
		{name: "a system alone", shots: again(func(at float64) shot { return one.discover(at, plain) }, 0, 4, 12), until: 30},
		{name: "silence for long", shots: film(one.lease(0, pxe, "ipxe.efi")[:2]), until: 1000, want: "", state: Quiet},
		{name: "stuck, and silent for long", shots: one.asks(0), until: 1000, want: CannotTell, state: StateFailed},
		{name: "nothing of note", shots: film(one.get(0, 1, files, 8080, "/favicon.ico", status(404), with(boot.Agent, "curl"))), until: 30, want: ""},
	}
}

func TestCauses(t *testing.T) {
	for _, c := range causes() {
		t.Run(c.name, func(t *testing.T) {
			o := Options{}
			if c.hardware != nil {
				o.Hardware = hardware(c.hardware)
			}
			j := New(o)
			shots := slices.Clone(c.shots)
			slices.SortStableFunc(shots, func(a, b shot) int {
				if a.at < b.at {
					return -1
				}
				if a.at > b.at {
					return 1
				}
				return 0
			})
			play(j, shots, c.until)
			id := first
			if _, ok := j.Machine(id); !ok {
				id = one.address
			}
			b := newest(t, j, id)
			if got := causeName(b); got != c.want {
				t.Fatalf("got cause %q (%+v) at %s, want %q", got, b.Cause, b.At, c.want)
			}
			want := c.state
			if want == "" {
				if want = Booting; c.want != "" {
					want = Stuck
				}
			}
			if b.State != want {
				t.Errorf("got state %s, want %s", b.State, want)
			}
			if c.step != "" && b.At != c.step {
				t.Errorf("it is at %s, want %s", b.At, c.step)
			}
			if b.Cause == nil {
				return
			}
			for _, part := range c.says {
				if said := b.Cause.Text + " " + b.Cause.Remedy; !strings.Contains(said, part) {
					t.Errorf("%q is not in %q", part, said)
				}
			}
			if b.Cause.Remedy == "" || !strings.HasSuffix(strings.TrimSpace(b.Cause.Text), ".") || b.Cause.Since.IsZero() {
				t.Errorf("not a whole cause: %+v", *b.Cause)
			}
		})
	}
}
