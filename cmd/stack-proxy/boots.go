package main

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

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
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "stack_proxy_boot_events_spared_total",
		Help: "Ordinary requests of one client beyond those that tell anything of its boot.",
	}, func() float64 { return float64(boots.Spared()) }))
	return boots.Record, []daemon.Task{sender}
}
