package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

// ensure makes the listeners, once or for ever.
func ensure(c config, logger *slog.Logger) error {
	host, err := hostlink.Open(c.HostPID)
	if err != nil {
		return err
	}
	defer host.Close()
	keeper := &hostlink.Keeper{Host: host, Specs: c.specs(), Logger: logger, Wait: c.Wait, AwaitTraffic: c.Hear}
	if c.Watch {
		return daemon.Run(context.Background(), daemon.Options{Logger: logger, Tasks: []daemon.Task{keeper}})
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return keeper.Make(ctx)
}

// plan prints what ensure would do.
func plan(c config, stdout io.Writer) error {
	host, err := hostlink.Open(c.HostPID)
	if err != nil {
		return err
	}
	defer host.Close()
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
