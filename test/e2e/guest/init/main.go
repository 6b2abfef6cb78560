//go:build linux

// Command init is the first process of a guest: it loads the kernel's modules, runs the commands that the initramfs
// lists, one after the other, and switches the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/first"
	"github.com/tinkerbell/stack/test/e2e/guest"
)

const cgroups = "/sys/fs/cgroup"

// contained is the name under which this program starts itself again, to run a command in its cgroup.
const contained = "contained"

func main() {
	if os.Args[0] == contained {
		fmt.Println("failed to run", os.Args[1], "in its cgroup:", contain(os.Args[1:]))
		os.Exit(127)
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: I play the first process of a machine and switch it off: refusing to run as another")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Println("\ninit:", err)
	}
	fmt.Println("\ninit:", first.PowerOff())
	select {}
}

func run() error {
	if err := first.Mount(); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", cgroups, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("failed to mount cgroups: %w", err)
	}
	if err := os.WriteFile(filepath.Join(cgroups, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		return fmt.Errorf("failed to enable cgroups of memory: %w", err)
	}
	if err := first.LoadModules(); err != nil {
		return err
	}
	report, err := openReport()
	if err != nil {
		return err
	}
	text, err := os.ReadFile("/commands.json")
	if err != nil {
		return err
	}
	var commands []guest.Command
	if err := json.Unmarshal(text, &commands); err != nil {
		return fmt.Errorf("failed to read commands: %w", err)
	}
	for i, command := range commands {
		status, err := execute(i, command, report)
		if err != nil {
			fmt.Fprintln(report, "init:", err)
		}
		fmt.Fprintf(report, "\n%s%d\n", guest.End, status)
	}
	return unix.IoctlSetInt(int(report.Fd()), unix.TCSBRK, 1) // waits until all is sent
}

// openReport opens the port by which commands report, which its driver may still have to make.
func openReport() (file *os.File, err error) {
	const tries, pause = 1000, 10 * time.Millisecond
	for range tries {
		if file, err = os.OpenFile("/dev/hvc0", os.O_RDWR|unix.O_NOCTTY, 0); err == nil {
			return file, nil
		}
		time.Sleep(pause)
	}
	return nil, fmt.Errorf("failed to open the port for reports: %w", err)
}

// execute runs a command to its end.
func execute(number int, c guest.Command, report *os.File) (status int, err error) {
	group := filepath.Join(cgroups, "command"+strconv.Itoa(number))
	if err := os.Mkdir(group, 0o755); err != nil {
		return -1, err
	}
	if c.Memory > 0 {
		limit := []byte(strconv.FormatInt(c.Memory, 10))
		if err := os.WriteFile(filepath.Join(group, "memory.max"), limit, 0); err != nil {
			return -1, fmt.Errorf("failed to limit memory: %w", err)
		}
	}
	dir, err := os.Open(group)
	if err != nil {
		return -1, err
	}
	defer func() { _ = dir.Close() }()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append([]string{contained}, c.Args...)
	cmd.Env = append([]string{"PATH=/bin", "HOME=/", "TMPDIR=/tmp", first.Guest + "=1"}, c.Env...)
	cmd.Stdout, cmd.Stderr = report, report
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWCGROUP,
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// contain becomes the command, which sees its own cgroup as the root of all.
func contain(args []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Unmount(cgroups, 0); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", cgroups, "cgroup2", 0, ""); err != nil {
		return err
	}
	return unix.Exec(args[0], args, os.Environ())
}
