package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// ErrNoMemory is returned where no cgroup with a limit of memory can be made.
var ErrNoMemory = errors.New("needs root and a cgroup (v1 or v2) in which a limit of memory can be set")

// Container is a cgroup with a limit, as a container runtime makes one.
type Container struct {
	dir string // of the cgroup
	on  string // where a process in the container sees it
	v2  bool

	stop chan struct{}
	peak chan int64
}

const cgroups = "/sys/fs/cgroup"

// ChartLimit is the chart's limit of memory for the container of a section of its values, in bytes.
func ChartLimit(section string) (int64, error) {
	repo, err := program.Repo()
	if err != nil {
		return 0, err
	}
	values, err := os.ReadFile(filepath.Join(repo, "charts", "stack", "values.yaml"))
	if err != nil {
		return 0, fmt.Errorf("failed to read the chart's limits: %w", err)
	}
	_, text, _ := strings.Cut("\n"+string(values), "\n"+section+":\n")
	found := regexp.MustCompile(`(?m)^    limits: \{memory: (\d+)Mi\}$`).FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("failed to find the chart's limit of memory for %s", section)
	}
	mebibytes, err := strconv.ParseInt(found[1], 10, 64)
	return mebibytes << 20, err
}

// GoMemory is the setting of Go's memory limit that the chart makes for a limit of memory.
func GoMemory(limit int64) string { return fmt.Sprintf("GOMEMLIMIT=%dB", limit/10*9) }

// NewContainer makes a container. Its name is told from those of other processes.
func NewContainer(name string, limit int64) (*Container, error) {
	c := &Container{on: filepath.Join(cgroups, "memory")}
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		c.on, c.v2 = cgroups, true
	}
	c.dir = filepath.Join(c.on, "stack-"+name+"-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, errors.Join(ErrNoMemory, err)
	}
	file := "memory.limit_in_bytes"
	if c.v2 {
		file = "memory.max"
	} else if err := c.write("memory.kmem.tcp.limit_in_bytes", 1<<40); err != nil {
		// Only with a limit are sockets' buffers counted, which in v2 are always.
		return nil, errors.Join(ErrNoMemory, err, c.Remove())
	}
	if err := c.write(file, limit); err != nil {
		return nil, errors.Join(ErrNoMemory, err, c.Remove())
	}
	return c, nil
}

func (c *Container) write(name string, value int64) error {
	return os.WriteFile(filepath.Join(c.dir, name), []byte(strconv.FormatInt(value, 10)), 0o644)
}

// Dir is the cgroup's directory.
func (c *Container) Dir() string { return c.dir }

// Watch measures the peak in v1, where sockets' buffers are counted apart; v2 has it.
func (c *Container) Watch() {
	c.stop, c.peak = make(chan struct{}), make(chan int64, 1)
	if c.v2 {
		return
	}
	go func() {
		peak := int64(0)
		for {
			own, _ := c.number("memory.usage_in_bytes")
			sockets, _ := c.number("memory.kmem.tcp.usage_in_bytes")
			peak = max(peak, own+sockets)
			select {
			case <-c.stop:
				c.peak <- peak
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
}

// Remove removes it; its processes must have been killed, and may take a moment to end.
func (c *Container) Remove() error { return remove(c.dir) }

func remove(cgroup string) (err error) {
	for range 100 {
		if err = os.Remove(cgroup); !errors.Is(err, syscall.EBUSY) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// Command starts a program in it; nil is no container.
func (c *Container) Command(program string) []string {
	if c == nil {
		return []string{"sh", "-c", "exec " + program}
	}
	script := fmt.Sprintf("echo $$ > %[1]s/cgroup.procs && mount --bind %[1]s %[2]s && exec %[3]s", c.dir, c.on, program)
	return []string{"unshare", "--mount", "sh", "-c", script}
}

// Peak ends Watch and is the most memory that it has used, in bytes, and how often the kernel has killed for more.
func (c *Container) Peak() (peak int64, kills int, err error) {
	if c.v2 {
		peak, err = c.number("memory.peak")
		events, failure := c.fields("memory.events")
		return peak, int(events["oom_kill"]), errors.Join(err, failure)
	}
	close(c.stop)
	control, err := c.fields("memory.oom_control")
	return <-c.peak, int(control["oom_kill"]), err
}

// Parts is what it uses now, for the log.
func (c *Container) Parts() string {
	if c.v2 {
		f, _ := c.fields("memory.stat")
		return fmt.Sprintf("anon %d, kernel %d, sock %d, file %d MiB",
			f["anon"]>>20, f["kernel"]>>20, f["sock"]>>20, f["file"]>>20)
	}
	f, _ := c.fields("memory.stat")
	kernel, _ := c.number("memory.kmem.usage_in_bytes")
	sockets, _ := c.number("memory.kmem.tcp.usage_in_bytes")
	return fmt.Sprintf("anon %d, kernel %d, sock %d, file %d MiB",
		f["total_rss"]>>20, kernel>>20, sockets>>20, f["total_cache"]>>20)
}

func (c *Container) number(name string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

func (c *Container) fields(name string) (map[string]int64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	found := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[key], _ = strconv.ParseInt(value, 10, 64)
	}
	return found, err
}
