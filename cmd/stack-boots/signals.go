package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot/hardware"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/report"
	"github.com/tinkerbell/stack/pkg/boot/spans"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// signals tell other systems of boots, by metrics and log lines, spans, and Events on Hardware objects.
type signals struct {
	listeners []func(journal.Change)
	watcher   *hardware.Watcher
	boots     *spans.Boots
	begun     bool
}

// newSignals makes those that are asked for. Getenv reads OpenTelemetry's variables, which are not of our prefix.
func newSignals(
	c *settings, pod string, getenv func(string) string, log *slog.Logger, registry prometheus.Registerer,
) (signals, error) {
	var s signals
	version, _ := daemon.BuildInfo()
	boots, err := spans.New(context.Background(), spans.Options{
		Getenv: getenv, Pod: pod, Version: version, Logger: log, Registry: registry,
	})
	if err != nil {
		return s, err
	}
	if boots != nil {
		s.boots, s.listeners = boots, append(s.listeners, boots.Changed)
	}
	if c.Kubernetes {
		s.watcher = hardware.New(hardware.Options{
			Namespaces: c.Namespaces, Pod: pod, Logger: log, Metrics: hardware.NewMetrics(registry),
		})
		s.listeners = append(s.listeners, s.watcher.Changed)
	}
	return s, nil
}

// changed is the journal's Options.Changed.
func (s *signals) changed(c journal.Change) {
	if !s.begun {
		return // what the history holds was told when it happened
	}
	for _, tell := range s.listeners {
		tell(c)
	}
}

// lookup is the journal's Options.Hardware; nil where the API is not asked.
func (s *signals) lookup() func([6]byte) (journal.Hardware, bool) {
	if s.watcher == nil {
		return nil
	}
	return s.watcher.Lookup
}

// expected is the journal's Options.Expected; nil where the API is not asked.
func (s *signals) expected() func() []journal.Expected {
	if s.watcher == nil {
		return nil
	}
	return s.watcher.Expected
}

// begin tells of each change that keeper k records from now on, by log and metrics, too. Spans that wait are sent when
// nothing more is recorded.
func (s *signals) begin(k *keeper, log *slog.Logger, registry prometheus.Registerer) {
	j := k.journal
	reporter := report.New(report.Options{Counts: j.Counts, Logger: log, Registry: registry})
	s.listeners, s.begun = append(s.listeners, reporter.Changed), true
	if s.boots != nil {
		k.ends = append(k.ends, s.boots.Close)
	}
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "stack_boot_machines_forgotten_total", Help: "Machines that made room for others.",
	}, func() float64 { return float64(j.Forgotten()) }))
}

// tasks are what has to run for the signals.
func (s *signals) tasks() []daemon.Task {
	if s.watcher == nil {
		return nil
	}
	return []daemon.Task{s.watcher}
}
