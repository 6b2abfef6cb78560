package journal

import (
	"bytes"
	"path"
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
	if bytes.Contains(file, []byte("workflowservice")) || e.Kind == boot.Stream && e.Route == portAgent {
		return Agent
	}
	if e.Kind == boot.Stream {
		if place := string(e.Text(boot.Place)); place == "tink" || place == "grpc" {
			return Agent
		}
		if b != nil && isHandshake(e) { // what comes next would have
			switch b.furthest {
			case IPXEDHCP:
				return Script
			case Script:
				return Kernel
			}
		}
		return Other
	}
	if e.Kind == boot.TFTP && len(e.Text(boot.Method)) > 0 {
		return Other // The machine writes.
	}
	if i := bytes.IndexByte(file, '?'); i >= 0 {
		file = file[:i]
	}
	name := strings.ReplaceAll(string(file), "\\", "/") // as Windows' boot manager asks
	if e.Kind == boot.HTTP && isMetadata(name, e.Route) {
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
	return byPlace(e, b, at)
}

func isMetadata(name string, route uint16) bool {
	for _, prefix := range []string{"/2009-04-04", "/latest/", "/metadata", "/tootles", "/openstack/"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch path.Base(name) {
	case "meta-data", "user-data", "vendor-data", "network-config":
		return true
	}
	return route == portHegel || route == portTootle
}

// byName tells the step of a file by its name, in small letters; empty if the name says nothing.
func byName(base, name string) Step {
	ext := path.Ext(base)
	has := func(s string) bool { return strings.Contains(base, s) }
	starts := func(s string) bool { return strings.HasPrefix(base, s) }
	switch {
	case isChecksum(base):
		return Files
	case ext == ".ipxe", ext == ".gpxe", strings.HasPrefix(name, "/ipxe/script/"), starts("grub.cfg"), starts("boot.scr"),
		base == "extlinux.conf", strings.Contains(name, "pxelinux.cfg/"):
		return Script
	case has("initrd"), has("initramfs"), has(".cpio"), has("ramdisk"):
		return Initramfs
	case has("vmlinuz"), has("vmlinux"), starts("bzimage"), starts("zimage"), starts("uimage"), starts("kernel"),
		base == "image", starts("image-"), base == "image.gz", base == "linux", ext == ".uki", ext == ".iso":
		return Kernel
	case ext == ".kpxe", ext == ".kkpxe", ext == ".pxe", ext == ".0", ext == ".c32", ext == ".efi", ext == ".dtb",
		ext == ".dtbo", ext == ".wim", ext == ".sdi", ext == ".bcd", ext == ".lkrn",
		strings.HasPrefix(name, "/ipxe/binary/"), starts("undionly"), starts("pxelinux"), starts("u-boot"),
		isRaspberryPi(base, ext):
		return Loader
	default:
		return ""
	}
}

// isRaspberryPi knows the files that the boot ROM and the second stage of a Raspberry Pi ask for, kernels apart.
func isRaspberryPi(base, ext string) bool {
	switch base {
	case "bootcode.bin", "config.txt", "cmdline.txt", "autoboot.txt", "pieeprom.sig", "pieeprom.upd", "recovery.elf",
		"bootcfg.txt", "boot.img", "boot.sig", "dt-blob.bin":
		return true
	}
	return ext == ".elf" && strings.HasPrefix(base, "start") || ext == ".dat" && strings.HasPrefix(base, "fixup") ||
		strings.HasPrefix(base, "armstub")
}

func isLoaderEFI(base string) bool {
	for _, s := range []string{"ipxe", "snp", "shim", "grub", "boot", "mm", "netboot"} {
		if strings.HasPrefix(base, s) {
			return true
		}
	}
	return false
}

func isChecksum(base string) bool {
	for _, s := range []string{".sha512", ".sha256", ".sha1", ".md5", ".asc", "checksum.txt", "sha512sum", "sha256sum"} {
		if strings.HasSuffix(base, s) || strings.HasPrefix(base, s) {
			return true
		}
	}
	return false
}

// fromLoader tells whether firmware or iPXE sends an HTTP request.
func fromLoader(e *boot.Event) bool {
	userAgent := string(e.Text(boot.Agent))
	return e.Kind == boot.HTTP && (strings.HasPrefix(userAgent, "iPXE") || strings.HasPrefix(userAgent, "UefiHttpBoot"))
}

// fromSystem tells whether an operating system sends an HTTP request. BMCs that read an image call themselves all
// kinds of names, too.
func fromSystem(e *boot.Event, name string) bool {
	return e.Kind == boot.HTTP && len(e.Text(boot.Agent)) > 0 && !fromLoader(e) && path.Ext(name) != ".iso"
}

// byPlace tells the step of a file whose name says nothing by how far the boot is, and by who asks.
func byPlace(e *boot.Event, b *bootRecord, at Step) Step {
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
	user, vendor := e.Text(boot.UserClass), e.Text(boot.VendorClass)
	ipxe = bytes.Contains(user, []byte("iPXE")) || bytes.Contains(user, []byte("gPXE")) || isTinkerbell(e)
	firmware = e.HasArch
	for _, prefix := range []string{"PXEClient", "HTTPClient", "U-Boot"} {
		firmware = firmware || bytes.HasPrefix(vendor, []byte(prefix))
	}
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
