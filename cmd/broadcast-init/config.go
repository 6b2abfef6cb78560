package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

const prefix = "BROADCAST_INIT"

// config is what the environment sets.
type config struct {
	daemon.Settings
	Parent   []string      `desc:"the node's interface by name, altname, MAC address, IP address or prefix; empty: that of the default route"`
	Listener []string      `default:"macvlan0" desc:"the listener's name in the pod; several, separated by commas, have a parent each"`
	Kind     hostlink.Kind `default:"macvlan" desc:"macvlan, or ipvlan where the network drops unknown MAC addresses"`
	MAC      macMode       `default:"random" desc:"a macvlan's address: random, or stable: from node, pod and listener"`
	Address  netip.Prefix  `desc:"an IPv4 address for the listener, such as 127.1.1.1/32, if a server in the pod hears by a plain socket, as Smee does: DHCP requests then reach the pod's IP layer; empty: packet sockets only"`
	NodeName string        `split_words:"true" desc:"the node's name, for MAC=stable"`
	PodName  string        `split_words:"true" desc:"the pod's name, for MAC=stable"`
	Wait     time.Duration `default:"30s" desc:"how long to wait for a parent that is missing, down, or still in use"`
	Hear     time.Duration `default:"3s" desc:"how long a new listener may go without a DHCP request before a warning; 0s: any time"`
	Watch    bool          `default:"false" desc:"stay, and make the listeners again after their parents went and came back"`
	HostPID  int           `split_words:"true" default:"1" desc:"a process in the node's network namespace"`
}

// macMode is where a macvlan's MAC address comes from.
type macMode string

const (
	macRandom macMode = "random" // from the kernel
	macStable macMode = "stable"
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *macMode) UnmarshalText(text []byte) error {
	switch got := macMode(text); got {
	case macRandom, macStable:
		*m = got
		return nil
	default:
		return fmt.Errorf("%q is neither random nor stable", text)
	}
}

// Removed implements the check of pkg/daemon.
func (c *config) Removed() map[string]string {
	return map[string]string{
		"REMOVE_LEFTOVERS": "ip link del on the node removes what a former relay left there, where an error names it",
		"HOST_PROC":        "procfs is at /proc",
	}
}

// Validate finds what the single values' types cannot.
func (c *config) Validate() error {
	var faults []error
	fault := func(variable, format string, args ...any) {
		faults = append(faults, fmt.Errorf(prefix+"_"+variable+": "+format, args...))
	}
	for i, name := range c.Listener {
		if err := hostlink.CheckName(name); err != nil {
			fault("LISTENER", "%w", err)
		}
		if slices.Contains(c.Listener[:i], name) {
			fault("LISTENER", "%q twice", name)
		}
	}
	if len(c.Listener) == 0 {
		fault("LISTENER", "no name")
	}
	if len(c.Parent) > len(c.Listener) || len(c.Listener) > 1 && len(c.Parent) != len(c.Listener) {
		fault("PARENT", "%d for %d listeners", len(c.Parent), len(c.Listener))
	}
	if c.MAC == macStable && (c.NodeName == "" || c.PodName == "") {
		fault("MAC", "stable needs %s_NODE_NAME and %s_POD_NAME", prefix, prefix)
	}
	if c.MAC == macStable && c.Kind == hostlink.IPvlan {
		fault("MAC", "an ipvlan has its parent's address")
	}
	if c.Address.IsValid() && !c.Address.Addr().Is4() {
		fault("ADDRESS", "%s is no IPv4 address", c.Address)
	}
	if c.Address.IsValid() && len(c.Listener) > 1 {
		fault("ADDRESS", "one for %d listeners", len(c.Listener))
	}
	if c.Wait < 0 {
		fault("WAIT", "%s is negative", c.Wait)
	}
	if c.Hear < 0 {
		fault("HEAR", "%s is negative", c.Hear)
	}
	if c.HostPID < 1 {
		fault("HOST_PID", "%d is no process id", c.HostPID)
	}
	return errors.Join(faults...)
}

// specs are the listeners that were asked for.
func (c *config) specs() []hostlink.Spec {
	specs := make([]hostlink.Spec, len(c.Listener))
	for i, name := range c.Listener {
		specs[i] = hostlink.Spec{Name: name, Kind: c.Kind, Address: c.Address}
		if i < len(c.Parent) {
			specs[i].Parent = c.Parent[i]
		}
		if c.MAC == macStable {
			specs[i].MAC = hostlink.StableMAC(c.NodeName, c.PodName, name)
		}
	}
	return specs
}
