package lab

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Sweep removes what dead owners left behind and returns the labs' names. Labs that are alive are left alone.
func Sweep() (removed []string, err error) {
	unlock, err := lockState()
	if err != nil {
		return nil, err
	}
	defer unlock()
	ids := map[string]bool{}
	labs, err := os.ReadDir(stateDir)
	if err != nil {
		return nil, fmt.Errorf("failed to list labs: %w", err)
	}
	for _, lab := range labs {
		if lab.IsDir() && isID(lab.Name()) {
			ids[lab.Name()] = true
		}
	}
	named, err := filepath.Glob(filepath.Join(netnsDir, netnsPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, path := range named {
		id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), netnsPrefix), "-")
		if isID(id) {
			ids[id] = true
		}
	}
	var faults []error
	for id := range ids {
		lock, err := lockLab(filepath.Join(stateDir, id))
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = remove(id)
			_ = lock.Close()
		} else if errors.Is(err, fs.ErrNotExist) {
			err = remove(id) // its directory is gone, its namespaces are not
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("failed to remove lab %s: %w", id, err))
			continue
		}
		removed = append(removed, id)
	}
	return removed, errors.Join(faults...)
}

// isID tells a lab's name from other names that begin as ours do.
func isID(name string) bool {
	_, err := hex.DecodeString(name)
	return err == nil && len(name) == 2*idBytes
}

// State says whether a process still owns a lab.
type State uint8

// The states of a lab.
const (
	Used State = iota // by the process that made it
	Kept              // detached, until "lab down"
	Dead              // owner and janitor were killed: the next Sweep removes it
)

func (s State) String() string { return [...]string{"used", "kept", "dead"}[s] }

// Info tells about a lab of this machine.
type Info struct {
	ID     string
	RunDir string
	Node   int // pid of the node's pid 1, or 0
	State  State
}

// List tells which labs there are.
func List() ([]Info, error) {
	if _, err := os.Stat(stateDir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	unlock, err := lockState() // nobody is between making a lab's directory and locking it
	if err != nil {
		return nil, err
	}
	defer unlock()
	labs, err := os.ReadDir(stateDir)
	if err != nil {
		return nil, fmt.Errorf("failed to list labs: %w", err)
	}
	var infos []Info
	for _, lab := range labs {
		if !lab.IsDir() {
			continue
		}
		dir := filepath.Join(stateDir, lab.Name())
		info := Info{ID: lab.Name()}
		if runDir, err := os.ReadFile(filepath.Join(dir, runDirFile)); err == nil {
			info.RunDir = string(runDir)
		}
		info.Node, _ = readPid(filepath.Join(dir, nodeFile))
		if _, err := os.Stat(filepath.Join(dir, keptFile)); err == nil {
			info.State = Kept
		}
		if lock, err := lockLab(dir); err == nil {
			_ = lock.Close()
			info.State = Dead
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// End takes a lab of another process down, detached or not, and waits for it.
func End(id string) error {
	dir := filepath.Join(stateDir, id)
	pid, err := readPid(filepath.Join(dir, janitorFile))
	if err != nil {
		return fmt.Errorf("failed to end lab %s: %w", id, err)
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("failed to end lab %s: %w", id, err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("failed to end lab %s: its janitor (pid %d) did not finish within 30s", id, pid)
}

// remove ends the lab's processes and removes its namespaces and its directory.
func remove(id string) error {
	dir := filepath.Join(stateDir, id)
	var faults []error
	if pid, err := readPid(filepath.Join(dir, nodeFile)); err == nil {
		if err := killAndWait(pid, 10*time.Second); err != nil {
			faults = append(faults, err)
		}
	}
	links, err := filepath.Glob(filepath.Join(netnsDir, netnsPrefix+id+"-*"))
	faults = append(faults, err)
	for _, link := range links {
		if err := os.Remove(link); !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	mounts, err := filepath.Glob(filepath.Join(dir, mountsDir, "*"))
	faults = append(faults, err)
	for _, mount := range mounts {
		err := unix.Unmount(mount, unix.MNT_DETACH)
		// EINVAL: made, but not yet bound. A lab that was killed in its end is swept by more than one.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, fmt.Errorf("failed to unmount %s: %w", mount, err))
		}
	}
	return errors.Join(append(faults, os.RemoveAll(dir))...)
}

// killAndWait ends a process and waits until it is gone; for the first of a pid namespace that means until all
// others are.
func killAndWait(pid int, timeout time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("failed to open node's pid 1: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("failed to kill node's pid 1: %w", err)
	}
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("failed to end node: pid %d is still there after %s", pid, timeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("failed to wait for node: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// lockState keeps other processes from making or sweeping labs meanwhile.
func lockState() (unlock func(), err error) {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return nil, fmt.Errorf("failed to make state directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(stateDir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("failed to lock %s: %w", file.Name(), err)
	}
	return func() { _ = file.Close() }, nil
}

// lockLab takes a lab's lock, or fails with EWOULDBLOCK where the lab is alive.
func lockLab(dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func writePid(path string, pid int) error {
	start, err := startTime(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "%d %s", pid, start), 0o644)
}

// readPid returns a pid that writePid noted, if it is still the same process.
func readPid(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	number, noted, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return 0, err
	}
	start, err := startTime(pid)
	if err != nil {
		return 0, err
	}
	if start != noted {
		return 0, fmt.Errorf("process %d is another one by now", pid)
	}
	return pid, nil
}

// startTime is field 22 of /proc/<pid>/stat, which tells apart two processes that had the same pid.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return "", fmt.Errorf("failed to parse /proc/%d/stat", pid)
	}
	return fields[19], nil
}
