// Package process starts the candidates of a bench and reads what they cost from /proc.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is a candidate that runs: a process group. Nil is none: a path without a candidate costs nothing.
type Process struct {
	Name  string
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan struct{}
}

// Start runs a command and waits until addr takes connections.
func Start(ctx context.Context, name, addr string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // it is killed
	}()
	if err := p.wait(ctx, addr); err != nil {
		p.Stop()
		return nil, fmt.Errorf("failed to start %s: %w\n%s", name, err, p.log.Bytes())
	}
	return p, nil
}

func (p *Process) wait(ctx context.Context, addr string) error {
	var dialer net.Dialer
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		select {
		case <-p.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Stop ends the process group.
func (p *Process) Stop() {
	if p == nil {
		return
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// PIDs are the process and its children.
func (p *Process) PIDs() []int {
	if p == nil {
		return nil
	}
	return Family(p.cmd.Process.Pid)
}

// CPU is the processor time used so far, user and system, in seconds, of the process and its children.
func (p *Process) CPU() float64 { return CPU(p.PIDs()) }

// Memory is what is resident, in KiB, of the process and its children, with their share of what they share.
func (p *Process) Memory() float64 { return Memory(p.PIDs()) }

// CPU is the processor time that processes have used so far, user and system, in seconds.
func CPU(pids []int) float64 {
	ticks := 0
	for _, pid := range pids {
		if fields := stat(pid); len(fields) > 13 {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			ticks += user + system
		}
	}
	return float64(ticks) / 100
}

// Memory is what is resident of processes, in KiB, with their share of what they share.
func Memory(pids []int) float64 {
	total := 0.0
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
				kib, _ := strconv.ParseFloat(fields[1], 64)
				total += kib
			}
		}
	}
	return total
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
		if fields := stat(pid); len(fields) > 2 && fields[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stat is /proc/pid/stat from the state on.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return strings.Fields(after)
}

// Find is the path of a program that Debian puts where users' PATH does not lead.
func Find(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/bin"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
	}
	return exec.LookPath(name)
}
