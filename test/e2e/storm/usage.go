package storm

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Usage is processor time, in seconds: of the candidate, of the services behind it, and of the whole computer.
type Usage struct{ Proxy, Relay, Backends, Computer float64 }

func (u Usage) less(v Usage) Usage {
	return Usage{u.Proxy - v.Proxy, u.Relay - v.Relay, u.Backends - v.Backends, u.Computer - v.Computer}
}

func (s *Site) usage() (Usage, error) {
	u := Usage{Proxy: process.CPU(pids(s.candidate.proxy)), Relay: process.CPU(pids(s.candidate.relay))}
	for _, name := range []string{lab.Smee, lab.Hegel, lab.Tink, lab.Hardware, lab.DNS} {
		u.Backends += process.CPU(pids(s.Lab.Proc(name)))
	}
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, fmt.Errorf("failed to read use of processor: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	u.Computer, err = busy(line)
	return u, err
}

// busy is the time in which processors were not idle, in seconds, of the first line of /proc/stat.
func busy(line string) (float64, error) {
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("failed to parse use of processor: %q", line)
	}
	ticks := 0
	for i, field := range fields[1:9] {
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, fmt.Errorf("failed to parse use of processor: %w", err)
		}
		if i != 3 && i != 4 { // idle, waiting for disks
			ticks += n
		}
	}
	return float64(ticks) / 100, nil
}

// cores is how many processors the storm shares.
func cores() float64 { return float64(runtime.NumCPU()) }

// memory watches how much the candidate's processes have in memory.
type memory struct {
	stop         chan struct{}
	proxy, relay chan float64
}

// watchMemory looks every fifth of a second.
func (s *Site) watchMemory() *memory {
	m := &memory{stop: make(chan struct{}), proxy: make(chan float64, 1), relay: make(chan float64, 1)}
	for _, each := range []struct {
		of   *lab.Proc
		peak chan float64
	}{{s.candidate.proxy, m.proxy}, {s.candidate.relay, m.relay}} {
		go func() {
			peak := 0.0
			for {
				peak = max(peak, process.Memory(pids(each.of)))
				select {
				case <-m.stop:
					each.peak <- peak
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		}()
	}
	return m
}

// end returns the peaks in MiB.
func (m *memory) end() (proxy, relay float64) {
	close(m.stop)
	return <-m.proxy / 1024, <-m.relay / 1024
}
