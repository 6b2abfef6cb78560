package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// PIDs are the process and its children.
func (p *Process) PIDs() []int {
	if p == nil {
		return nil
	}
	return Family(p.cmd.Process.Pid)
}

// CPU is the processor time used so far, user and system, in seconds, of the process and its children.
func (p *Process) CPU() float64 {
	if p != nil && p.account.dir != "" {
		return p.account.seconds()
	}
	return CPU(p.PIDs())
}

// Memory is what is resident, in KiB, of the process and its children, with their share of what they share.
func (p *Process) Memory() float64 { return Memory(p.PIDs()) }

// Starved is how long the process's threads have waited for a processor; see [Starved].
func (p *Process) Starved() time.Duration { return Starved(p.PID()) }

// CPU is the processor time that the threads of processes have used so far, user and system, in seconds. What an ended
// thread has used is no part of it.
func CPU(pids []int) float64 {
	total := time.Duration(0)
	for _, pid := range pids {
		ran, _ := schedule(pid)
		total += ran
	}
	return total.Seconds()
}

// Starved is how long a process's threads have waited for a processor since they began, in all. A program on a busy
// machine cannot help it; see [progress.Patience].
func Starved(pid int) time.Duration {
	_, waited := schedule(pid)
	return waited
}

// schedule is how long the threads of a process have run, and how long they have waited for a processor.
func schedule(pid int) (ran, waited time.Duration) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat") // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		fields := strings.Fields(string(text)) // proc(5): run time, run delay, timeslices; in ns
		if err != nil || len(fields) < 2 {
			continue // the thread has ended
		}
		run, _ := strconv.ParseInt(fields[0], 10, 64)
		delay, _ := strconv.ParseInt(fields[1], 10, 64)
		ran, waited = ran+time.Duration(run), waited+time.Duration(delay)
	}
	return ran, waited
}

// Memory is what is resident of processes, in KiB, with their share of what they share.
func Memory(pids []int) float64 {
	total := 0.0
	for _, pid := range pids {
		kib, _ := field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss:")
		total += kib
	}
	return total
}

// Peak is the most memory, in KiB, that the process has had resident.
func (p *Process) Peak() (kib float64, err error) {
	return field(fmt.Sprintf("/proc/%d/status", p.PID()), "VmHWM:")
}

// field is a number of a file of /proc.
func field(path, name string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			return strconv.ParseFloat(fields[1], 64)
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, path)
}

// Family is a process and its children.
func Family(parent int) []int {
	pids := []int{parent}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(state); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
