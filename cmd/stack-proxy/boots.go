package main

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/record"
)

// lineRoom is how many syslog lines may wait to be told to stack-boots: they may be a flood.
const lineRoom = 1024

// boots makes what tells stack-boots of machines, where it is asked for.
func (c *config) boots(logger *slog.Logger, registry prometheus.Registerer) (record.Sink, []daemon.Task) {
	if c.BootsAddress == "" {
		return nil, nil
	}
	host, _ := os.Hostname()
	sender := feed.NewSender(feed.SenderConfig{
		Destination: c.Destination, Program: name, Pod: host, Metrics: "stack_proxy", Lines: lineRoom, Logger: logger,
		Registerer: registry,
	})
	boots := record.NewBoots(sender.Event, sender.Line)
	metric.New(registry, "stack_proxy").CounterFunc("boot_events_spared_total",
		"Ordinary requests of one client beyond those that tell anything of its boot.", boots.Spared)
	return boots.Record, []daemon.Task{sender}
}
