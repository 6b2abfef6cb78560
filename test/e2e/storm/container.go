package storm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// containers are cgroups with the chart's limits of memory. Nil is none.
type containers struct{ proxy, relay *attack.Container }

// makeContainers has the lab start dhcp-relay and stack-proxy with the memory that the chart gives them.
func makeContainers(o *lab.Options) (*containers, error) {
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
		limit, err := attack.ChartLimit(each.section)
		if err != nil {
			return nil, errors.Join(err, c.remove())
		}
		if *each.to, err = attack.NewContainer("storm-"+each.section, limit); err != nil {
			return nil, errors.Join(err, c.remove())
		}
		each.security.Cgroup = (*each.to).Dir()
		o.Security[each.program] = &each.security
		o.Env[each.program] = append(o.Env[each.program], attack.GoMemory(limit))
		(*each.to).Watch()
	}
	return c, nil
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
