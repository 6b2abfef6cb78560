//go:build linux

// Package first is what the first process of a machine does.
package first

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Guest is a variable that the programs of a guest (package guest) find in their environment.
const Guest = "GUEST"

// Mount mounts what every program expects: /proc, /sys and /dev.
func Mount() error {
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("failed to mount %s: %w", m.at, err)
		}
	}
	return nil
}

// LoadModules loads the kernel's modules that the initramfs has, in its order.
func LoadModules() error {
	const dir = "/modules"
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if err != nil {
		return fmt.Errorf("failed to read list of modules: %w", err)
	}
	for name := range strings.FieldsSeq(string(order)) {
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("failed to open module: %w", err)
		}
		err = unix.FinitModule(int(file.Fd()), "", 0)
		_ = file.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("failed to load module %s: %w", name, err)
		}
	}
	return nil
}

// PowerOff switches the machine off. It returns only if it cannot.
func PowerOff() error {
	time.Sleep(50 * time.Millisecond) // the serial port drains
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		return fmt.Errorf("failed to switch off: %w", err)
	}
	return nil
}
