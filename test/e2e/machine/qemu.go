// Package machine makes machines that boot from a lab's LAN: QEMU with real firmware, and one in Go that does what
// firmware does on the wire. It also prepares what they boot and install.
package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// What QEMU and its firmware are called, and the packages that hold them.
const (
	QEMU     = "qemu-system-x86_64"
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
	// ovmfSecure is the firmware that can enforce Secure Boot, and needs a machine with system management mode.
	ovmfSecure = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	ipxeROM    = "/usr/lib/ipxe/qemu/pxe-virtio.rom"
)

// KernelArgs are what Smee adds to the kernel's command line for our machines: errors only on the console, and a
// machine that dies ends instead of waiting.
const KernelArgs = "loglevel=4 panic=-1 oops=panic"

// Missing lists the Debian packages that firmware needs and that are not there.
func Missing() []string {
	var missing []string
	if _, err := exec.LookPath(QEMU); err != nil {
		missing = append(missing, "qemu-system-x86")
	}
	if _, err := os.Stat(ipxeROM); err != nil {
		missing = append(missing, "ipxe-qemu")
	}
	_, codeErr := os.Stat(ovmfCode)
	_, varsErr := os.Stat(ovmfVars)
	if codeErr != nil || varsErr != nil {
		missing = append(missing, "ovmf")
	}
	return missing
}

// Boot switches a virtual machine on. Reports of the installer arrive at report, from another goroutine. The
// process ends when the machine switches itself off, or dies, and with the lab.
func Boot(l *lab.Lab, m lab.Machine, report func(installer.Report)) (*lab.Proc, error) {
	return boot(l, m, report)
}

// BootDisk switches a UEFI machine on that boots a program from a disk, EFI/BOOT/BOOTX64.EFI of a directory, and has
// the network as that program uses it.
func BootDisk(l *lab.Lab, m lab.Machine, dir string) (*lab.Proc, error) {
	return boot(l, m, func(installer.Report) {}, "-drive", "if=none,id=disk,format=raw,readonly=on,file=fat:"+dir,
		"-device", "virtio-blk-pci,drive=disk,bootindex=0")
}

// BootInstaller switches a machine on with an empty disk, a file, from which it boots before it asks the network, and
// with memory for Docker. It restarts when its system says so.
func BootInstaller(l *lab.Lab, m lab.Machine, disk string, report func(installer.Report)) (*lab.Proc, error) {
	return boot(l, m, report, "-m", "1536", "-action", "reboot=reset", "-drive", "if=none,id=disk,format=raw,file="+disk,
		"-device", "virtio-blk-pci,drive=disk,bootindex=0")
}

func boot(l *lab.Lab, m lab.Machine, report func(installer.Report), more ...string) (*lab.Proc, error) {
	tap, err := l.AddTap(m.Name)
	if err != nil {
		return nil, err
	}
	args, err := Arguments(m, tap, l.RunDir())
	if err != nil {
		return nil, err
	}
	return l.Start(lab.Process{
		Name: m.Name, Role: lab.RoleLAN, Path: QEMU, Args: append(args, more...), Stdout: Console(report),
	})
}

// Arguments are QEMU's, for a machine whose card is a tap of the network namespace that it runs in. In dir are its
// variables and what its firmware prints. Its standard output is the kernel's console, see [Console].
//
// The emulator is TCG: it is there wherever Linux is, and firmware runs on it where nested KVM breaks it.
func Arguments(m lab.Machine, tap, dir string) ([]string, error) {
	nic := "virtio-net-pci,netdev=n0,mac=" + m.MAC.String()
	args := []string{
		"-accel", "tcg", "-smp", "1", "-no-reboot", "-display", "none", "-nographic", "-monitor", "none",
		"-cpu", "qemu64,+rdrand", // without it the kernel has no random numbers for the first minutes
	}
	switch m.Firmware {
	case lab.BIOS: // the ROM of QEMU's card is iPXE
		args = append(args, "-M", "pc", "-m", "256", "-boot", "n")
	case lab.UEFI: // without a ROM, so that OVMF's own PXE runs
		nic += ",romfile=,addr=" + strconv.Itoa(nicSlot)
		if !m.HTTPBoot {
			nic += ",bootindex=1"
		}
		code, keys, board := ovmfCode, ovmfVars, "q35"
		if m.SecureBoot != "" {
			code, board = ovmfSecure, "q35,smm=on"
			keys = strings.TrimSuffix(ovmfVars, ".fd") + "." + m.SecureBoot + ".fd"
			args = append(args, "-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")
		}
		vars := filepath.Join(dir, m.Name+"-vars.fd")
		if err := copyFile(vars, keys); err != nil {
			return nil, fmt.Errorf("failed to copy UEFI variables: %w", err)
		}
		switch {
		case m.HTTPBoot && m.NoIPv4: // after what firmware tries by IPv4 and PXE it comes to it only in minutes
			// The driver fails at once while its link has no address yet: it is told to try again and again.
			const tries = 500
			names, values := []string{"Boot0000", "BootOrder"}, [][]byte{httpBoot6(m.MAC), make([]byte, 2*tries)}
			if err := setVariables(vars, names, values); err != nil {
				return nil, err
			}
			args = append(args, "-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n")
		case m.HTTPBoot:
			args = append(args, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n",
				"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=n")
		}
		if m.Authority != "" {
			list := filepath.Join(dir, m.Name+"-authorities.esl")
			if err := writeAuthorities(list, m.Authority); err != nil {
				return nil, fmt.Errorf("failed to write the authorities that UEFI trusts: %w", err)
			}
			args = append(args, "-fw_cfg", "name=etc/edk2/https/cacerts,file="+list)
		}
		args = append(args, "-M", board, "-m", "512",
			"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+code,
			"-drive", "if=pflash,format=raw,unit=1,file="+vars)
		if m.NoIPv4 { // or it asks for an address by DHCPv4 first, for a minute
			args = append(args, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=n")
		}
	}
	return append(args,
		"-device", nic,
		"-netdev", "tap,id=n0,script=no,downscript=no,ifname="+tap,
		"-serial", "file:"+FirmwareLogIn(dir, m.Name), // ttyS0: the firmware's console
		"-serial", "stdio", // ttyS1: Smee's script makes it the kernel's console
	), nil
}

// FirmwareLog is the file with what the firmware of a machine printed on its serial port. The log of the process
// named as the machine has what the kernel and the installer printed.
func FirmwareLog(l *lab.Lab, name string) string { return FirmwareLogIn(l.RunDir(), name) }

// FirmwareLogIn is the file with what the firmware of a machine printed whose [Arguments] have that directory.
func FirmwareLogIn(dir, name string) string { return filepath.Join(dir, name+"-firmware.log") }

// Console is a writer for what a machine prints; it reports what its installer says there.
func Console(report func(installer.Report)) io.Writer { return &console{report: report} }

// console finds reports among what a machine prints.
type console struct {
	report  func(installer.Report)
	pending []byte
}

func (c *console) Write(b []byte) (int, error) {
	const most = 64 << 10
	c.pending = append(c.pending, b...)
	for {
		line, rest, ok := bytes.Cut(c.pending, []byte("\n"))
		if !ok {
			break
		}
		if report, ok := installer.ParseLine(bytes.TrimSuffix(line, []byte("\r"))); ok {
			c.report(report)
		}
		c.pending = rest
	}
	if len(c.pending) > most {
		c.pending = nil
	}
	return len(b), nil
}

func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}

// ErrDied is what a machine that ended without switching itself off failed with.
var ErrDied = errors.New("the machine ended without switching itself off")
