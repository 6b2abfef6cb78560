package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sandbox is what the exec helper is told: it has been started in a mount namespace of its own and becomes the
// program.
type sandbox struct {
	Path     string
	Args     []string // with argv[0]
	Env      []string
	Dir      string
	Tmpfs    []string
	Resolv   string // bound to /etc/resolv.conf
	Root     string // an empty directory, mount point of an image from scratch
	Security *Security

	cgroup *os.File // its directory, which the process's own mounts hide
}

// sandboxExec confines the process and executes the program.
func sandboxExec(args []string) error {
	var s sandbox
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	runtime.LockOSThread() // capabilities and no_new_privs are the thread's
	if err := s.enterCgroup(); err != nil {
		return err
	}
	if err := ownMounts(); err != nil {
		return err
	}
	if s.Security == nil {
		if err := bind(s.Resolv, "/etc/resolv.conf"); err != nil {
			return err
		}
		for _, dir := range s.Tmpfs {
			if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
				return fmt.Errorf("failed to hide %s: %w", dir, err)
			}
		}
	} else {
		if err := s.enterImage(); err != nil {
			return err
		}
		if err := s.Security.confine(); err != nil {
			return err
		}
	}
	if s.Dir != "" {
		if err := os.Chdir(s.Dir); err != nil {
			return err
		}
	}
	if err := syscall.Exec(s.Path, s.Args, s.Env); err != nil {
		return fmt.Errorf("failed to execute %s: %w", s.Path, err)
	}
	return nil
}

// enterImage makes the root what a container image from scratch is: the program, the files that a runtime adds,
// what the chart mounts, all read-only.
func (s *sandbox) enterImage() error {
	const tmpfsFlags = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("tmpfs", s.Root, "tmpfs", tmpfsFlags, "mode=755"); err != nil {
		return fmt.Errorf("failed to mount image: %w", err)
	}
	for _, dir := range []string{"proc", "sys", "dev", "etc"} {
		if err := os.Mkdir(filepath.Join(s.Root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := mountKernel(s.Root); err != nil {
		return err
	}
	if s.cgroup != nil {
		if err := s.showCgroup(); err != nil {
			return err
		}
	}
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
	if err := os.WriteFile(filepath.Join(s.Root, "etc/hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	program := "/" + filepath.Base(s.Path)
	binds := map[string]string{program: s.Path, "/etc/resolv.conf": s.Resolv}
	for _, device := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} {
		binds[device] = device
	}
	for inside, outside := range s.Security.Mounts {
		binds[inside] = outside
	}
	for inside, outside := range binds {
		if err := s.bindInside(inside, outside); err != nil {
			return err
		}
	}
	for inside, outside := range s.Security.Shared {
		if err := s.share(inside, outside); err != nil {
			return err
		}
	}
	s.Path, s.Args[0] = program, program
	if err := unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|tmpfsFlags, ""); err != nil {
		return fmt.Errorf("failed to make image read-only: %w", err)
	}
	if err := os.Chdir(s.Root); err != nil {
		return err
	}
	// pivot_root(".", ".") stacks the old root on the new one; detaching the top leaves the new one alone.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("failed to enter image: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("failed to leave host's root: %w", err)
	}
	return os.Chdir("/")
}

// bindInside binds a file or directory of the host into the image.
func (s *sandbox) bindInside(inside, outside string) error {
	info, err := os.Stat(outside)
	if err != nil {
		return fmt.Errorf("failed to mount %s: %w", inside, err)
	}
	target := filepath.Join(s.Root, inside)
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		err = os.WriteFile(target, nil, 0o644)
	}
	if err != nil {
		return fmt.Errorf("failed to mount %s: %w", inside, err)
	}
	if info.Mode()&fs.ModeDevice != 0 {
		return unix.Mount(outside, target, "", unix.MS_BIND, "")
	}
	return bind(outside, target)
}

// share binds a directory of the host into the image, to be written to.
func (s *sandbox) share(inside, outside string) error {
	target := filepath.Join(s.Root, inside)
	err := os.MkdirAll(target, 0o755)
	if err == nil {
		err = unix.Mount(outside, target, "", unix.MS_BIND, "")
	}
	if err == nil { // not the flags of the host's file system
		const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_NOSUID | unix.MS_NODEV
		err = unix.Mount("", target, "", flags, "")
	}
	if err != nil {
		return fmt.Errorf("failed to share %s: %w", inside, err)
	}
	return nil
}

// bind shows one file or directory at another's place, read-only.
func bind(from, at string) error {
	if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
		return nil // the host has no such file, so nobody reads it
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to bind %s to %s: %w", from, at, err)
	}
	if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("failed to make %s read-only: %w", at, err)
	}
	return nil
}

// confine gives the calling thread the user and the capabilities, for the program that it will execute.
func (s *Security) confine() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("failed to set no_new_privs: %w", err)
	}
	var wanted uint64
	for _, capability := range s.Capabilities {
		wanted |= 1 << capability
	}
	for capability := range 64 {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(capability), 0, 0, 0)
		if err != nil {
			break // the kernel knows no more
		}
		if has == 0 || wanted&(1<<capability) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil {
			return fmt.Errorf("failed to drop capability %d: %w", capability, err)
		}
	}
	if s.Ambient {
		// Without it, leaving uid 0 clears the permitted set.
		if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("failed to keep capabilities: %w", err)
		}
	}
	if err := setUser(s.UID); err != nil {
		return err
	}
	inheritable := uint64(0)
	if s.Ambient {
		inheritable = wanted
	}
	kept := wanted
	if s.UID != 0 && !s.Ambient {
		kept = 0
	}
	if err := setCapabilities(kept, inheritable); err != nil {
		return err
	}
	if !s.Ambient {
		return nil
	}
	for _, capability := range s.Capabilities {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(capability), 0, 0); err != nil {
			return fmt.Errorf("failed to raise ambient capability %d: %w", capability, err)
		}
	}
	return nil
}

// setUser changes the calling thread's user alone: the raw calls, not the ones for all threads.
func setUser(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("failed to drop groups: %w", errno)
	}
	id := uintptr(uid)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); errno != 0 {
		return fmt.Errorf("failed to set gid %d: %w", uid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
		return fmt.Errorf("failed to set uid %d: %w", uid, errno)
	}
	return nil
}

func setCapabilities(permitted, inheritable uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		shift := 32 * i
		data[i].Permitted = uint32(permitted >> shift)
		data[i].Effective = uint32(permitted >> shift)
		data[i].Inheritable = uint32(inheritable >> shift)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("failed to set capabilities: %w", errno)
	}
	return nil
}
