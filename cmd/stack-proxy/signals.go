package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tinkerbell/stack/pkg/boot/hardware"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/report"
	"github.com/tinkerbell/stack/pkg/boot/spans"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// SignalsConfig is what STACK_PROXY_BOOTS_* variables set of what is told of boots elsewhere.
type SignalsConfig struct {
	BootsKubernetes bool     `split_words:"true" default:"false" desc:"watch Hardware objects of Tinkerbell, for names and causes, and write Events on them (docs/boots-signals.md)"`
	BootsNamespaces []string `split_words:"true" desc:"namespaces of the Hardware objects; default the pod's own"`
}

// faults finds settings that cannot be.
func (c *SignalsConfig) faults(boots bool, fault func(variable, format string, args ...any)) {
	if c.BootsKubernetes && !boots {
		fault("BOOTS_KUBERNETES", "true: goes with "+prefix+"_BOOTS")
	}
	if len(c.BootsNamespaces) > 0 && !c.BootsKubernetes {
		fault("BOOTS_NAMESPACES", "%q: goes with "+prefix+"_BOOTS_KUBERNETES", c.BootsNamespaces)
	}
	for _, namespace := range c.BootsNamespaces {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			fault("BOOTS_NAMESPACES", "%q: no name of a namespace", namespace)
		}
	}
}

// signals are what tells of boots elsewhere: metrics and log lines, spans, Events on Hardware objects.
type signals struct {
	told    []func(journal.Change)
	watcher *hardware.Watcher
	boots   *spans.Boots
}

// newSignals makes those that are asked for. Getenv reads OpenTelemetry's variables, which are not of our prefix.
func newSignals(
	c *config, getenv func(string) string, log *slog.Logger, registry prometheus.Registerer,
) (signals, error) {
	var s signals
	version, _ := daemon.BuildInfo()
	boots, err := spans.New(context.Background(), spans.Options{
		Getenv: getenv, Pod: c.BootsPod, Version: version, Logger: log, Registry: registry,
	})
	if err != nil {
		return s, err
	}
	if boots != nil {
		s.boots, s.told = boots, append(s.told, boots.Changed)
	}
	if c.BootsKubernetes {
		s.watcher = hardware.New(hardware.Options{
			Namespaces: c.BootsNamespaces, Pod: c.BootsPod, Logger: log, Metrics: hardware.NewMetrics(registry),
		})
		s.told = append(s.told, s.watcher.Changed)
	}
	return s, nil
}

// changed is the journal's Options.Changed.
func (s *signals) changed(c journal.Change) {
	for _, tell := range s.told {
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

// of begins to tell of a journal, and returns the tasks: the recorder's, which sends what is left of spans when nothing
// more is recorded, and others.
func (s *signals) of(
	j *journal.Journal, recorder daemon.Task, log *slog.Logger, registry prometheus.Registerer,
) []daemon.Task {
	reporter := report.New(report.Options{Counts: j.Counts, Logger: log, Registry: registry})
	s.told = append(s.told, reporter.Changed)
	tasks := []daemon.Task{recorder}
	if s.boots != nil {
		tasks[0] = flushing{recorder, s.boots}
	}
	if s.watcher != nil {
		tasks = append(tasks, s.watcher)
	}
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "stack_boot_machines_forgotten_total", Help: "Machines that made room for others.",
	}, func() float64 { return float64(j.Forgotten()) }))
	return tasks
}

// flushing is a recorder of boots whose spans are sent when it has ended.
type flushing struct {
	daemon.Task
	boots *spans.Boots
}

// Run implements daemon.Task.
func (f flushing) Run(ctx context.Context) error {
	defer f.boots.Close()
	return f.Task.Run(ctx)
}
