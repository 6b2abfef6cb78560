package journal

import (
	"fmt"
	"path"
	"strings"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/boot"
)

// family is a kind of machine code, and how firmware starts it.
type family string

const (
	bios  family = "BIOS"
	efi   family = "UEFI" // of any processor
	x86   family = "x86"
	arm64 family = "ARM64"
	arm32 family = "ARM32"
	riscv family = "RISC-V"
)

// families tells what a machine starts, and on which processor.
func families(arch iana.Arch) (firmware, processor family) {
	switch arch {
	case iana.INTEL_X86PC, iana.NEC_PC98, iana.INTEL_X86PC_HTTP, iana.INTEL_LEAN_CLIENT, iana.ARC_X86:
		return bios, x86
	case iana.EFI_IA32, iana.EFI_X86_64, iana.EFI_BC, iana.EFI_X86_HTTP, iana.EFI_X86_64_HTTP, iana.EFI_BC_HTTP:
		return efi, x86
	case iana.EFI_ARM64, iana.EFI_ARM64_HTTP:
		return efi, arm64
	case iana.EFI_ARM32, iana.EFI_ARM32_HTTP:
		return efi, arm32
	case iana.UBOOT_ARM64, iana.UBOOT_ARM64_HTTP, rpiboot:
		return "", arm64
	case iana.UBOOT_ARM32, iana.UBOOT_ARM32_HTTP:
		return "", arm32
	case iana.EFI_RISCV32, iana.EFI_RISCV64, iana.EFI_RISCV128, iana.EFI_RISCV32_HTTP, iana.EFI_RISCV64_HTTP,
		iana.EFI_RISCV128_HTTP:
		return efi, riscv
	default:
		return "", ""
	}
}

// archOf is the architecture that a message names (option 93).
func archOf(e *boot.Event) iana.Arch {
	if !e.HasArch {
		return iana.Arch(0xffff)
	}
	return iana.Arch(e.Arch)
}

// rpiboot is registered with IANA and not in the library.
const rpiboot iana.Arch = 41

// fileFamilies tells for what a file is made, as far as its name says. usual takes the names of Smee's loaders into
// account, which others may use for other things.
func fileFamilies(file string, usual bool) (firmware, processor family) {
	name := strings.ToLower(path.Base(file))
	has := func(parts ...string) bool { return anyOf(strings.Contains, name, parts...) }
	switch ext := path.Ext(name); {
	case ext == ".kpxe", ext == ".kkpxe", ext == ".pxe", ext == ".0", has("undionly"):
		return bios, x86
	case ext == ".efi":
		firmware = efi
	}
	switch {
	case has("arm64", "aarch64", "aa64"):
		processor = arm64
	case has("arm32", "armhf", "bootarm."):
		processor = arm32
	case has("riscv"):
		processor = riscv
	case has("x86_64", "x86-64", "amd64", "x64", "i386", "ia32"):
		processor = x86
	case usual && name == "ipxe.efi":
		processor = x86
	case usual && name == "snp.efi":
		processor = "ARM"
	}
	return firmware, processor
}

// mismatch says that a file is not made for a machine; empty if its name does not say so.
func (m *machine) mismatch(file string, usual bool) string {
	if !m.hasArch || file == "" {
		return ""
	}
	firmware, processor := families(iana.Arch(m.arch))
	wants, code := fileFamilies(file, usual)
	if wants != "" && firmware != "" && wants != firmware {
		return fmt.Sprintf("it is made for %s, and the machine is %s", wants, m.archName())
	}
	if code == "ARM" && (processor == arm64 || processor == arm32) {
		return ""
	}
	if code != "" && processor != "" && code != processor {
		return fmt.Sprintf("it is made for %s, and the machine is %s", code, m.archName())
	}
	return ""
}

// archName is the architecture as its registry names it.
func (m *machine) archName() string {
	switch {
	case !m.hasArch:
		return ""
	case iana.Arch(m.arch) == rpiboot:
		return "ARM rpiboot"
	default:
		return iana.Arch(m.arch).String()
	}
}

// archNote names a machine's architecture behind a sentence.
func (m *machine) archNote() string {
	if !m.hasArch {
		return ""
	}
	return " (architecture " + fmt.Sprintf("%s, %d", m.archName(), m.arch) + ")"
}
