package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// account is a cgroup that counts the processor time of a program and of all that it starts, ended or not.
type account struct{ dir, file string }

// Account counts the processor time of the program's children, too, which end before anybody looks, from now on. It
// needs root and a cgroup (v1 or v2) in which others can be made.
func (p *Process) Account() error {
	a := account{dir: "/sys/fs/cgroup/cpuacct", file: "cpuacct.usage"}
	if _, err := os.Stat(a.dir); err != nil {
		a = account{dir: "/sys/fs/cgroup", file: "cpu.stat"}
	}
	var err error
	if a.dir, err = os.MkdirTemp(a.dir, "account-"); err == nil {
		err = os.WriteFile(filepath.Join(a.dir, "cgroup.procs"), []byte(strconv.Itoa(p.PID())), 0)
	}
	if err != nil {
		return fmt.Errorf("failed to count the processor time of %s: %w", p.name, err)
	}
	p.account = a
	return nil
}

// seconds is what has been counted.
func (a account) seconds() float64 {
	text, _ := os.ReadFile(filepath.Join(a.dir, a.file))
	fields := strings.Fields(string(text)) // nanoseconds; or "usage_usec" and microseconds, and more
	switch {
	case len(fields) == 1:
		n, _ := strconv.ParseInt(fields[0], 10, 64)
		return float64(n) / 1e9
	case len(fields) > 1:
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		return float64(n) / 1e6
	}
	return 0
}

// close removes the cgroup, once all in it has ended.
func (a account) close() {
	if a.dir != "" {
		_ = os.Remove(a.dir)
	}
}
