package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrNoThrottle is returned where no disk can be made to hang.
var ErrNoThrottle = errors.New("needs root, a cgroup (v1 or v2) that bounds what is read of a disk, " +
	"and a temporary directory on a disk")

// Disk is a disk that hangs for the processes of a cgroup.
type Disk struct {
	dir    string // of the cgroup
	file   string
	device string
	v2     bool
}

// NewDisk makes a cgroup for which the disk of a directory can hang: the container's own in v2.
func NewDisk(c *Container, directory string) (*Disk, error) {
	var s unix.Stat_t
	if err := unix.Stat(directory, &s); err != nil {
		return nil, err
	}
	d := &Disk{
		v2: c.v2, dir: c.dir, file: "io.max", device: fmt.Sprintf("%d:%d", unix.Major(s.Dev), unix.Minor(s.Dev)),
	}
	if unix.Major(s.Dev) == 0 { // tmpfs, overlay
		return nil, ErrNoThrottle
	}
	if !c.v2 {
		d.dir = filepath.Join(cgroups, "blkio", filepath.Base(c.dir))
		d.file = "blkio.throttle.read_bps_device"
		if err := os.Mkdir(d.dir, 0o755); err != nil {
			return nil, errors.Join(ErrNoThrottle, err)
		}
	}
	if err := d.Heal(); err != nil {
		return nil, errors.Join(ErrNoThrottle, err, d.Remove())
	}
	return d, nil
}

// Add has the disk hang for a process, and its threads, too.
func (d *Disk) Add(pid int) error {
	return os.WriteFile(filepath.Join(d.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
}

// Hang lets nothing be read of the disk.
func (d *Disk) Hang() error { return d.set("rbps=1", "1") }

// Heal ends that.
func (d *Disk) Heal() error { return d.set("rbps=max", "0") }

func (d *Disk) set(v2, v1 string) error {
	value := v1
	if d.v2 {
		value = v2
	}
	return os.WriteFile(filepath.Join(d.dir, d.file), []byte(d.device+" "+value), 0o644)
}

// Remove removes the cgroup, whose processes must have ended.
func (d *Disk) Remove() error {
	if d.v2 {
		return nil
	}
	return remove(d.dir)
}

// Forget has the kernel forget the content of files, so that it is read from the disk again.
func Forget(paths []string) error {
	unix.Sync()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
