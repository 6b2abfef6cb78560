package offer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/iana"
)

// Arch is a kind of firmware: what it says of itself, and which programs it starts.
type Arch struct {
	Name string
	Code iana.Arch // option 93 (RFC 4578)
	HTTP bool      // it boots by HTTP: option 60 says so
	// Machine is what its EFI programs are made for (the field of a PE header); 0 where it starts no such programs.
	Machine uint16
}

// Machines of PE headers.
const (
	machineX86   = 0x014c
	machineX64   = 0x8664
	machineARM   = 0x01c2
	machineARM64 = 0xaa64
	machineRISCV = 0x5064
)

// Archs are the architectures by their names.
var Archs = []Arch{
	{Name: "bios", Code: iana.INTEL_X86PC},
	{Name: "uefi", Code: iana.EFI_X86_64, Machine: machineX64},
	{Name: "http", Code: iana.EFI_X86_64_HTTP, HTTP: true, Machine: machineX64},
	{Name: "arm64", Code: iana.EFI_ARM64, Machine: machineARM64},
	{Name: "arm64-http", Code: iana.EFI_ARM64_HTTP, HTTP: true, Machine: machineARM64},
	{Name: "ia32", Code: iana.EFI_IA32, Machine: machineX86},
	{Name: "riscv64", Code: iana.EFI_RISCV64, Machine: machineRISCV},
}

// ArchNamed finds an architecture by its name.
func ArchNamed(name string) (Arch, error) {
	at := slices.IndexFunc(Archs, func(a Arch) bool { return a.Name == name })
	if at < 0 {
		names := make([]string, len(Archs))
		for i, a := range Archs {
			names[i] = a.Name
		}
		return Arch{}, fmt.Errorf("%q is none of %s", name, strings.Join(names, ", "))
	}
	return Archs[at], nil
}

// Other is the same processor's firmware that boots the other way, by HTTP or TFTP; ok is false where there is none.
func (a Arch) Other() (other Arch, ok bool) {
	at := slices.IndexFunc(Archs, func(o Arch) bool {
		return o.Machine == a.Machine && o.HTTP != a.HTTP &&
			a.Machine != 0
	})
	if at < 0 {
		return Arch{}, false
	}
	return Archs[at], true
}

// class is option 60 as this firmware says it.
func (a Arch) class() string {
	if a.HTTP {
		return fmt.Sprintf("HTTPClient:Arch:%05d:UNDI:003001", a.Code)
	}
	return fmt.Sprintf("PXEClient:Arch:%05d:UNDI:003001", a.Code)
}

// Starts says why firmware of this architecture does not start a program; empty if its begin does not say so.
func (a Arch) Starts(program []byte) string {
	isEFI := len(program) > 0x40 && string(program[:2]) == "MZ"
	switch {
	case len(program) == 0:
		return "it is empty"
	case strings.HasPrefix(strings.ToLower(strings.TrimSpace(string(program[:min(len(program), 64)]))), "<!doctype"),
		strings.HasPrefix(strings.ToLower(strings.TrimSpace(string(program[:min(len(program), 64)]))), "<html"):
		return "it is HTML"
	case a.Machine == 0 && isEFI && peMachine(program) != 0:
		return fmt.Sprintf("it is an EFI program for %s", machineName(peMachine(program)))
	case a.Machine == 0:
		return ""
	case !isEFI:
		return fmt.Sprintf("it is no EFI program: it begins with %q", program[:min(len(program), 16)])
	}
	if m := peMachine(program); m != 0 && m != a.Machine {
		return fmt.Sprintf("it is made for %s", machineName(m))
	}
	return ""
}

// peMachine is the machine of a PE header; 0 where there is none in what is there.
func peMachine(program []byte) uint16 {
	const at = 0x3c
	if len(program) < at+4 {
		return 0
	}
	head := int(program[at]) | int(program[at+1])<<8 | int(program[at+2])<<16
	if head+6 > len(program) || string(program[head:head+4]) != "PE\x00\x00" {
		return 0
	}
	return uint16(program[head+4]) | uint16(program[head+5])<<8
}

func machineName(m uint16) string {
	for code, name := range map[uint16]string{
		machineX86: "x86", machineX64: "x86-64", machineARM: "ARM", machineARM64: "ARM64", machineRISCV: "RISC-V",
	} {
		if m == code {
			return name
		}
	}
	return fmt.Sprintf("machine %#x", m)
}

// RunsKernel says why a machine of this architecture does not run a kernel; empty if its begin does not say so.
func (a Arch) RunsKernel(kernel []byte) string {
	const linuxAt, armAt = 0x202, 0x38
	isX86 := len(kernel) > linuxAt+4 && string(kernel[linuxAt:linuxAt+4]) == "HdrS"
	isARM64 := len(kernel) > armAt+4 && string(kernel[armAt:armAt+4]) == "ARM\x64"
	x86 := a.Machine == machineX86 || a.Machine == machineX64 || a.Machine == 0
	switch {
	case len(kernel) == 0:
		return "it is empty"
	case isX86 && !x86:
		return "it is made for x86"
	case isARM64 && a.Machine != machineARM64:
		return "it is made for ARM64"
	}
	if m := peMachine(kernel); m != 0 && a.Machine != 0 && m != a.Machine && (m != machineX86 || !x86) {
		return "it is made for " + machineName(m)
	}
	return ""
}
