package storm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// containers are cgroups with the chart's limits of memory. Nil is none.
type containers struct{ proxy, relay *attack.Container }

// makeContainers has the lab start dhcp-relay and stack-proxy with the memory that the chart gives them.
func makeContainers(o *lab.Options) (*containers, error) {
	repo, err := program.Repo()
	if err != nil {
		return nil, err
	}
	values, err := os.ReadFile(filepath.Join(repo, "charts", "stack", "values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("failed to read the chart's limits: %w", err)
	}
	c := &containers{}
	o.Security = map[string]*lab.Security{}
	for _, each := range []struct {
		to       **attack.Container
		section  string
		program  string
		security lab.Security
	}{
		{&c.relay, "relay", lab.DHCPRelay, lab.Security{Capabilities: []int{unix.CAP_NET_RAW}}},
		{&c.proxy, "proxy", lab.StackProxy, lab.Security{UID: 65532, Mounts: map[string]string{"/artifacts": o.Artifacts}}},
	} {
		limit, err := chartLimit(string(values), each.section)
		if err != nil {
			return nil, errors.Join(err, c.remove())
		}
		if *each.to, err = attack.NewContainer("storm-"+each.section, limit); err != nil {
			return nil, errors.Join(err, c.remove())
		}
		each.security.Cgroup = (*each.to).Dir()
		o.Security[each.program] = &each.security
		o.Env[each.program] = append(o.Env[each.program], goMemory(limit))
		(*each.to).Watch()
	}
	return c, nil
}

// chartLimit finds the limit of memory in a section of the chart's values, in bytes.
func chartLimit(values, section string) (int64, error) {
	_, text, _ := strings.Cut("\n"+values, "\n"+section+":\n")
	found := regexp.MustCompile(`(?m)^    limits: \{memory: (\d+)Mi\}$`).FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("failed to find the chart's limit of memory for %s", section)
	}
	mebibytes, err := strconv.ParseInt(found[1], 10, 64)
	return mebibytes << 20, err
}

// remove removes the cgroups, which are free a moment after their processes have ended.
func (c *containers) remove() error {
	if c == nil {
		return nil
	}
	var faults []error
	for _, each := range []*attack.Container{c.proxy, c.relay} {
		if each == nil {
			continue
		}
		_, _, err := each.Peak()
		for range 50 {
			if err = each.Remove(); err == nil || errors.Is(err, os.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
