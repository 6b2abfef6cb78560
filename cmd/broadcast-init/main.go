// Command broadcast-init gives its pod an interface that hears the broadcasts of the node's provisioning network.
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

const prefix = "BROADCAST_INIT"

// config is what the environment sets.
type config struct {
	daemon.Settings
	Parent   []string      `desc:"the node's interface, one per listener; empty: that of the default route"`
	Listener []string      `default:"macvlan0" desc:"name of the listener in the pod; several are separated by commas"`
	Kind     hostlink.Kind `default:"macvlan" desc:"macvlan, or ipvlan where the network drops unknown MAC addresses"`
	HostPID  int           `envconfig:"HOST_PID" default:"1" desc:"a process in the node's network namespace"`
	HostProc string        `split_words:"true" default:"/proc" desc:"where procfs is mounted"`
}

// Validate implements the check of pkg/daemon.
func (c *config) Validate() error {
	var faults []error
	if len(c.Parent) > len(c.Listener) {
		faults = append(faults, fmt.Errorf("%s_PARENT: %d parents for %d listeners", prefix, len(c.Parent), len(c.Listener)))
	}
	if c.HostPID < 1 {
		faults = append(faults, fmt.Errorf("%s_HOST_PID: %d is no process id", prefix, c.HostPID))
	}
	return errors.Join(faults...)
}

// specs are the listeners that were asked for.
func (c *config) specs() []hostlink.Spec {
	specs := make([]hostlink.Spec, len(c.Listener))
	for i, name := range c.Listener {
		specs[i] = hostlink.Spec{Name: name, Kind: c.Kind}
		if i < len(c.Parent) {
			specs[i].Parent = c.Parent[i]
		}
	}
	return specs
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c config
	program := daemon.Program{
		Name: "broadcast-init", Prefix: prefix, Config: &c,
		Summary: "make an interface in this pod that hears the broadcasts of the node's network",
		Notes: "It needs the capability NET_ADMIN and hostPID: true, and nothing else. " +
			"Run it again at will: what is right stays.",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	logger := c.Logger(stderr)
	if err := ensure(c, logger); err != nil {
		logger.Error("failed to make listener", "cause", cause(err), "error", err.Error())
		return 1
	}
	return 0
}

func ensure(c config, logger *slog.Logger) error {
	host, err := hostlink.Open(hostlink.Options{PID: c.HostPID, Proc: c.HostProc})
	if err != nil {
		return err
	}
	defer host.Close()
	for _, spec := range c.specs() {
		plan, err := host.Plan(spec)
		if err != nil {
			return err
		}
		for _, warning := range plan.Warnings {
			logger.Warn("listener may not hear", "listener", spec.Name, "cause", warning.Cause.String(),
				"error", warning.Error())
		}
		listener, err := host.Apply(plan)
		if err != nil {
			return err
		}
		logger.Info("listener ready", "listener", listener.Name, "kind", listener.Kind.String(),
			"parent", listener.Parent.Name, "chosen_by", listener.Parent.Chosen, "mac", listener.MAC.String(),
			"mtu", listener.MTU, "action", listener.Action.String())
	}
	return nil
}

// cause is the known cause of an error, for logs.
func cause(err error) string {
	if fault, ok := errors.AsType[*hostlink.Fault](err); ok {
		return fault.Cause.String()
	}
	return "unknown"
}
