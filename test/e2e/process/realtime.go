package process

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

var (
	realtime = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 10}
	ordinary = unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
)

// Realtime gives every thread of some processes real-time priority, so that a paced measurement times the candidates
// and not what else the machine does. Threads and processes that they make inherit it.
func Realtime(pids ...int) error { return prioritize(&realtime, pids) }

// Ordinary takes it back.
func Ordinary(pids ...int) error { return prioritize(&ordinary, pids) }

func prioritize(attr *unix.SchedAttr, pids []int) error {
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return fmt.Errorf("failed to list threads: %w", err)
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
				return fmt.Errorf("failed to set priority of thread %d: %w", tid, err)
			}
		}
	}
	return nil
}
