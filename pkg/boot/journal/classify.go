package journal

import (
	"bytes"
	"path"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Ports by which the presets' routes are known where a path does not tell (see pkg/route).
const (
	portAgent  = 42113
	portHegel  = 50061
	portTootle = 7172
)

// autoexec is a script that iPXE for UEFI asks for where it was loaded from, whether there is one or not.
const autoexec = "autoexec.ipxe"

// stepOf tells what step a transfer, request or connection belongs to. b is the machine's boot, nil if there is none.
func stepOf(e *boot.Event, b *bootRecord) Step {
	if e.Kind == boot.Syslog {
		return Syslog
	}
	file := bytes.ToLower(e.Text(boot.File))
	if bytes.Contains(file, []byte("workflowservice")) || e.Kind == boot.Stream && e.AskedPort == portAgent {
		return Agent
	}
	if e.Kind == boot.Stream {
		return stepOfStream(e, b)
	}
	if e.Kind == boot.TFTP && len(e.Text(boot.Method)) > 0 {
		return Other // The machine writes.
	}
	if i := bytes.IndexByte(file, '?'); i >= 0 {
		file = file[:i]
	}
	name := strings.ReplaceAll(string(file), "\\", "/") // as Windows' boot manager asks
	if e.Kind == boot.HTTP && isMetadata(name, e.AskedPort) {
		return Metadata
	}
	at := Step("")
	if b != nil {
		at = b.furthest
	}
	if at.order() >= Agent.order() && !fromLoader(e) || at.order() >= OSDHCP.order() && fromSystem(e, name) {
		return Files // Whatever its name is: a system asks for it, and not what starts one.
	}
	if e.Kind == boot.TFTP && path.Base(name) == autoexec {
		return Loader
	}
	if s := byName(path.Base(name), name); s != "" {
		if s == Loader && at.order() >= Script.order() && strings.HasSuffix(name, ".efi") && !isLoaderEFI(path.Base(name)) {
			return Kernel // a kernel with a stub, or a unified image
		}
		return s
	}
	return byProgress(e, b, at)
}

// stepOfStream tells the step of a connection whose content is not known.
func stepOfStream(e *boot.Event, b *bootRecord) Step {
	if place := string(e.Text(boot.Where)); place == "tink" || place == "grpc" {
		return Agent
	}
	if b == nil || !isHandshake(e) {
		return Other
	}
	if f := &b.facts.failed; f.tls() {
		return f.step // it tries again
	}
	switch b.furthest { // what comes next would have been
	case DHCP:
		return Loader // of HTTPS boot
	case IPXEDHCP:
		return Script
	case Script:
		return Kernel
	default:
		return Other
	}
}

func isMetadata(name string, route uint16) bool {
	return anyOf(strings.HasPrefix, name, "/2009-04-04", "/latest/", "/metadata", "/tootles", "/openstack/") ||
		anyOf(is, path.Base(name), "meta-data", "user-data", "vendor-data", "network-config") ||
		route == portHegel || route == portTootle
}

// byName tells the step of a file by its name, in small letters; empty if the name says nothing.
func byName(base, name string) Step {
	ext := path.Ext(base)
	switch {
	case isChecksum(base):
		return Files
	case anyOf(is, ext, ".ipxe", ".gpxe"), anyOf(strings.HasPrefix, base, "grub.cfg", "boot.scr"),
		strings.HasPrefix(name, "/ipxe/script/"), base == "extlinux.conf", strings.Contains(name, "pxelinux.cfg/"):
		return Script
	case anyOf(strings.Contains, base, "initrd", "initramfs", ".cpio", "ramdisk"):
		return Initramfs
	case anyOf(strings.Contains, base, "vmlinuz", "vmlinux"), anyOf(is, base, "image", "image.gz", "linux"),
		anyOf(strings.HasPrefix, base, "bzimage", "zimage", "uimage", "kernel", "image-"), anyOf(is, ext, ".uki", ".iso"):
		return Kernel
	case anyOf(is, ext, ".kpxe", ".kkpxe", ".pxe", ".0", ".c32", ".efi", ".dtb", ".dtbo", ".wim", ".sdi", ".bcd",
		".lkrn"), anyOf(strings.HasPrefix, base, "undionly", "pxelinux", "u-boot"),
		strings.HasPrefix(name, "/ipxe/binary/"), isRaspberryPi(base, ext):
		return Loader
	default:
		return ""
	}
}

// anyOf reports whether something holds of a text and one of several others.
func anyOf(holds func(text, other string) bool, text string, others ...string) bool {
	return slices.ContainsFunc(others, func(other string) bool { return holds(text, other) })
}

func is(text, other string) bool { return text == other }

// isRaspberryPi knows the files that the boot ROM and the second stage of a Raspberry Pi ask for, kernels apart.
func isRaspberryPi(base, ext string) bool {
	return ext == ".elf" && strings.HasPrefix(base, "start") || ext == ".dat" && strings.HasPrefix(base, "fixup") ||
		strings.HasPrefix(base, "armstub") || anyOf(is, base, "bootcode.bin", "config.txt", "cmdline.txt", "autoboot.txt",
		"pieeprom.sig", "pieeprom.upd", "recovery.elf", "bootcfg.txt", "boot.img", "boot.sig", "dt-blob.bin")
}

func isLoaderEFI(base string) bool {
	return anyOf(strings.HasPrefix, base, "ipxe", "snp", "shim", "grub", "boot", "mm", "netboot")
}

func isChecksum(base string) bool {
	names := []string{".sha512", ".sha256", ".sha1", ".md5", ".asc", "checksum.txt", "sha512sum", "sha256sum"}
	return anyOf(strings.HasSuffix, base, names...) || anyOf(strings.HasPrefix, base, names...)
}

// fromLoader tells whether firmware or iPXE sends an HTTP request.
func fromLoader(e *boot.Event) bool {
	return e.Kind == boot.HTTP && anyOf(strings.HasPrefix, string(e.Text(boot.Agent)), "iPXE", "UefiHttpBoot")
}

// fromSystem tells whether an operating system sends an HTTP request. BMCs that read an image call themselves all
// kinds of names, too.
func fromSystem(e *boot.Event, name string) bool {
	return e.Kind == boot.HTTP && len(e.Text(boot.Agent)) > 0 && !fromLoader(e) && path.Ext(name) != ".iso"
}

// byProgress tells the step of a file whose name says nothing by how far the boot is, and by who asks.
func byProgress(e *boot.Event, b *bootRecord, at Step) Step {
	ipxe := bytes.HasPrefix(e.Text(boot.Agent), []byte("iPXE")) // its User-Agent
	loader := e.Kind == boot.TFTP || fromLoader(e)
	switch {
	case at.order() >= OSDHCP.order():
		return Files
	case !loader:
		if at.order() >= Kernel.order() {
			return Files
		}
		return Other
	case at.order() < IPXEDHCP.order():
		if ipxe {
			return Script
		}
		return Loader
	case at == IPXEDHCP:
		return Script
	default:
		// What a script has loaded: first a kernel, then what belongs to it. The same file again is the same step.
		file := text(e, boot.File, maxFile)
		of := func(a *message) Step { return b.steps[a.step].step }
		same := b.first(func(a *message) bool { return a.text == file && of(a).order() >= Kernel.order() })
		if same != nil {
			return of(same)
		}
		if at == Script {
			return Kernel
		}
		return Initramfs
	}
}

// speaker tells which program of a machine sends a DHCP message.
func speaker(e *boot.Event) (ipxe, firmware bool) {
	user, vendor := string(e.Text(boot.UserClass)), string(e.Text(boot.VendorClass))
	ipxe = anyOf(strings.Contains, user, "iPXE", "gPXE", "Tinkerbell")
	firmware = e.HasArch || anyOf(strings.HasPrefix, vendor, "PXEClient", "HTTPClient", "U-Boot")
	return ipxe, firmware && !ipxe
}

// isTinkerbell tells whether iPXE was loaded from Smee, whose build says so.
func isTinkerbell(e *boot.Event) bool {
	return bytes.Contains(e.Text(boot.UserClass), []byte("Tinkerbell"))
}

// role is what a DHCP message does, the same for both versions.
type role uint8

const (
	otherRole role = iota
	discover
	offer
	request
	ack
	nak
	decline
	release
	inform
)

var (
	roles4 = [...]role{1: discover, 2: offer, 3: request, 4: decline, 5: ack, 6: nak, 7: release, 8: inform}
	roles6 = [...]role{
		1: discover, 2: offer, 3: request, 4: request, 5: request, 6: request, 7: ack, 8: release, 9: decline, 11: inform,
	}
)

// roleOf tells what a DHCP message does.
func roleOf(e *boot.Event) role {
	t := int(e.DHCP)
	switch {
	case e.V6 && t < len(roles6):
		return roles6[t]
	case !e.V6 && t > 0 && t < len(roles4):
		return roles4[t]
	case !e.V6 && t == 0 && e.Kind == boot.DHCPRequest: // BOOTP has no types
		return discover
	case !e.V6 && t == 0:
		return ack
	default:
		return otherRole
	}
}
