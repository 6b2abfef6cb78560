// Command broadcast-init gives its pod an interface that hears the broadcasts of the node's provisioning network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

const notes = `It needs the capability NET_ADMIN and hostPID: true in the pod, and nothing else.
Run it again at will: what is right stays, and what it did not make is never touched.
Exit status: 0 done, 1 failed, 2 wrong usage.`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	dryRun := flags.Bool("dry-run", false, "print what would be done, and do nothing")
	clean := flags.Bool("clean", false, "remove every listener from the pod (and leftovers, if those are to be removed)")
	program := daemon.Program{
		Name: "broadcast-init", Prefix: prefix, Config: &c, Flags: flags, Notes: notes,
		Summary: "make an interface in this pod that hears the broadcasts of the node's network",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	logger := c.Logger(stderr)
	var err error
	switch {
	case *clean:
		err = remove(c, logger, *dryRun, stdout)
	case *dryRun:
		err = plan(c, stdout)
	default:
		err = ensure(c, logger)
	}
	switch {
	case err == nil:
		return 0
	case *clean:
		logger.Error("failed to remove listener", "cause", cause(err), "error", err.Error())
	default:
		logger.Error("failed to make listener", "cause", cause(err), "error", err.Error())
	}
	return 1
}

// ensure makes the listeners, once or for ever.
func ensure(c config, logger *slog.Logger) error {
	host, err := hostlink.Open(hostlink.Options{PID: c.HostPID, Proc: c.HostProc})
	if err != nil {
		return err
	}
	defer host.Close()
	if c.RemoveLeftovers {
		if err := removeLeftovers(host, logger); err != nil {
			return err
		}
	}
	keeper := &hostlink.Keeper{Host: host, Specs: c.specs(), Logger: logger, Wait: c.Wait, Hear: c.Hear}
	if c.Watch {
		return daemon.Run(context.Background(), daemon.Options{Logger: logger, Tasks: []daemon.Task{keeper}})
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return keeper.Make(ctx)
}

// plan prints what ensure would do.
func plan(c config, stdout io.Writer) error {
	host, err := hostlink.Open(hostlink.Options{PID: c.HostPID, Proc: c.HostProc})
	if err != nil {
		return err
	}
	defer host.Close()
	if c.RemoveLeftovers {
		if err := planLeftovers(host, stdout); err != nil {
			return err
		}
	}
	var faults []error
	for _, spec := range c.specs() {
		plan, err := host.Plan(spec)
		if err != nil {
			faults = append(faults, fmt.Errorf("listener %s: %w", spec.Name, err))
			continue
		}
		fmt.Fprintln(stdout, plan)
		for _, warning := range plan.Warnings {
			fmt.Fprintf(stdout, "  warning: %v\n", warning)
		}
	}
	return errors.Join(faults...)
}

// remove undoes ensure.
func remove(c config, logger *slog.Logger, dryRun bool, stdout io.Writer) error {
	names, err := hostlink.Clean(dryRun, c.Listener...)
	for _, name := range names {
		if dryRun {
			fmt.Fprintf(stdout, "remove listener %s\n", name)
		} else {
			logger.Info("listener removed", "listener", name)
		}
	}
	if err != nil || !c.RemoveLeftovers {
		return err
	}
	host, err := hostlink.Open(hostlink.Options{PID: c.HostPID, Proc: c.HostProc})
	if err != nil {
		return err
	}
	defer host.Close()
	if dryRun {
		return planLeftovers(host, stdout)
	}
	return removeLeftovers(host, logger)
}

func planLeftovers(host *hostlink.Host, stdout io.Writer) error {
	found, err := host.Leftovers()
	for _, link := range found {
		fmt.Fprintf(stdout, "remove leftover %s (%s) from the node\n", link.Name, link.Kind)
	}
	return err
}

func removeLeftovers(host *hostlink.Host, logger *slog.Logger) error {
	found, err := host.Leftovers()
	for _, link := range found {
		if err := host.RemoveLeftover(link); err != nil {
			return err
		}
		logger.Info("leftover removed from node", "interface", link.Name, "kind", link.Kind)
	}
	return err
}

// cause is the known cause of an error, for logs.
func cause(err error) string {
	if fault, ok := errors.AsType[*hostlink.Fault](err); ok {
		return fault.Cause.String()
	}
	return "unknown"
}
