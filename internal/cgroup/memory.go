// Package cgroup reads how much memory the process' container may use, and how much it does: cgroup v2 or v1, as a
// container sees its own below /sys/fs/cgroup.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is where a container's cgroup is.
const Root = "/sys/fs/cgroup"

// ErrNone is returned where the memory has no limit, or there is no cgroup to be read.
var ErrNone = errors.New("no limit of memory")

// noLimit is what v1 calls none, or as good as.
const noLimit = 1 << 50

// Memory is that of a container with a limit. It keeps its files open, and is for one goroutine at a time.
type Memory struct {
	limit  int64
	cache  [2][]byte  // the names in memory.stat of files in memory
	held   [2][]byte  // and of the part of them that the kernel can take back only when a disk has written it
	stat   *os.File   // memory.stat
	usage  []*os.File // what is used in all
	buffer []byte
}

// Open finds the container's memory; [ErrNone] where it has no limit.
func Open(root string) (*Memory, error) {
	m := &Memory{buffer: make([]byte, 8<<10)}
	m.cache, m.held = names("inactive_file", "active_file"), names("file_dirty", "file_writeback")
	dir, usage := root, []string{"memory.current"}
	text, err := os.ReadFile(filepath.Join(dir, "memory.max"))
	if errors.Is(err, os.ErrNotExist) {
		dir, usage = filepath.Join(root, "memory"), []string{"memory.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes"}
		m.cache, m.held = names("total_inactive_file", "total_active_file"), names("total_dirty", "total_writeback")
		text, err = os.ReadFile(filepath.Join(dir, "memory.limit_in_bytes"))
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read limit of memory: %w", err)
	}
	m.limit, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || m.limit <= 0 || m.limit >= noLimit { // "max", or as good as
		return nil, ErrNone
	}
	// In v2 a process above memory.high is slowed down instead of killed, which is as bad for machines that boot.
	if text, err := os.ReadFile(filepath.Join(dir, "memory.high")); err == nil {
		if high, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && high > 0 {
			m.limit = min(m.limit, high)
		}
	}
	if m.stat, err = os.Open(filepath.Join(dir, "memory.stat")); err != nil {
		return nil, fmt.Errorf("failed to open use of memory: %w", err)
	}
	for i, name := range usage {
		f, err := os.Open(filepath.Join(dir, name))
		if err == nil {
			m.usage = append(m.usage, f)
		} else if i == 0 { // not every kernel counts sockets' buffers
			return nil, errors.Join(fmt.Errorf("failed to open use of memory: %w", err), m.Close())
		}
	}
	return m, nil
}

// Limit is in bytes.
func (m *Memory) Limit() int64 { return m.limit }

// Used is what the kernel cannot take back, in bytes: processes' memory, its own, sockets' buffers, files in tmpfs.
// Its copies of other files are left out, unless they have to be written first.
func (m *Memory) Used() (int64, error) {
	used := int64(0)
	for _, f := range m.usage {
		text, err := m.read(f)
		if err != nil {
			return 0, fmt.Errorf("failed to read use of memory: %w", err)
		}
		value, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("failed to read use of memory: %w", err)
		}
		used += value
	}
	stat, err := m.read(m.stat)
	if err != nil {
		return 0, fmt.Errorf("failed to read use of memory: %w", err)
	}
	return max(used-max(sum(stat, m.cache)-sum(stat, m.held), 0), 0), nil
}

func names(a, b string) [2][]byte { return [2][]byte{[]byte(a), []byte(b)} }

// sum adds up the values of two names in memory.stat.
func sum(stat []byte, names [2][]byte) (all int64) {
	for line := range bytes.Lines(stat) {
		for _, name := range names {
			if rest, ok := bytes.CutPrefix(line, name); ok && len(rest) > 0 && rest[0] == ' ' {
				if value, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64); err == nil {
					all += value
				}
			}
		}
	}
	return all
}

// Close closes the files.
func (m *Memory) Close() error {
	all := []error{m.stat.Close()}
	for _, f := range m.usage {
		all = append(all, f.Close())
	}
	return errors.Join(all...)
}

func (m *Memory) read(f *os.File) ([]byte, error) {
	n, err := f.ReadAt(m.buffer, 0)
	if n > 0 {
		err = nil // an end behind it
	}
	return m.buffer[:n], err
}
