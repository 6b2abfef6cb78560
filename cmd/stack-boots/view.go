package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/hardware"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
	"github.com/tinkerbell/stack/pkg/boot/report"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// view keeps the events of machines that boot, shows them, and tells other systems of boots: by metrics and log lines,
// and Events on Hardware objects.
type view struct {
	event    func(*boot.Event)
	receiver *feed.Receiver
	tasks    []daemon.Task
	server   *page.Server
	tell     []func(journal.Change) // other systems
	begun    bool                   // the history has been read, whose changes were told when they happened
}

// newView makes the view, which hears from now on and records while its tasks run.
func newView(s *settings, logger *slog.Logger, registry prometheus.Registerer) (*view, error) {
	if s.KeySecret == "" && s.KeyFile != "" {
		if err := feed.CheckKey(s.KeyFile); err != nil {
			return nil, err
		}
	}
	v := &view{}
	pod, _ := os.Hostname()
	options := journal.Options{
		Limits: journal.Limits{Machines: s.Memory * machinesEach, Bytes: s.Memory << 20},
		Pod:    pod, Changed: v.changed, Self: s.PublicAddresses, Witness: v.witness,
	}
	if s.Kubernetes {
		watcher := hardware.New(hardware.Options{
			Namespaces: s.Namespaces, Pod: pod, Logger: logger, Metrics: hardware.NewMetrics(registry),
		})
		options.Hardware, options.Expected = watcher.Lookup, watcher.Expected
		v.tell, v.tasks = append(v.tell, watcher.Changed), append(v.tasks, watcher)
	}
	j := journal.New(options)
	k := newKeeper(j, logger)
	v.event = k.Merger.Event
	var err error
	v.receiver, err = feed.Listen(feed.ReceiverConfig{
		Address: s.ListenAddress, KeyFile: s.KeyFile, Logger: logger, Event: v.event,
	})
	if err != nil {
		return nil, err
	}
	v.server = page.New(page.Options{
		Journal: j, Sources: v.receiver.Sources, Lines: s.Lines, Logger: logger,
	})
	k.remember(s.HistoryFile)
	reporter := report.New(report.Options{Counts: j.Counts, Logger: logger, Registry: registry})
	v.tell, v.begun = append(v.tell, reporter.Changed), true
	count(registry, v.receiver, j)
	v.tasks = append(v.tasks, k, v.receiver, v.server)
	if s.KeySecret != "" {
		v.tasks = append(v.tasks, &keyMaker{secret: s.KeySecret, file: s.KeyFile, log: logger})
	}
	return v, nil
}

// changed is the journal's Options.Changed.
func (v *view) changed(c journal.Change) {
	if v.begun {
		for _, tell := range v.tell {
			tell(c)
		}
	}
}

// witness tells which programs that should tell of machines are not heard. One that ended in order is not missed.
func (v *view) witness() journal.Witness {
	return witnessOf(v.receiver.Sources(), v.receiver.Lost())
}

func witnessOf(sources []feed.Source, dropped uint64) journal.Witness {
	w := journal.Witness{Dropped: dropped}
	relays, proxies, heard := 0, 0, 0
	for _, each := range sources {
		switch {
		case each.Program == "stack-proxy":
			proxies++
			if each.Heard {
				heard++
			}
		case each.Heard:
			relays++
		default:
			w.RelayLost = true
		}
	}
	w.RelayLost = w.RelayLost && relays == 0
	if heard < proxies {
		w.Proxies = fmt.Sprintf("%d of %d", heard, proxies)
	}
	return w
}

// count registers metrics of the events that came, of those that were lost, and of machines that were forgotten.
func count(registry prometheus.Registerer, r *feed.Receiver, j *journal.Journal) {
	s := metric.New(registry, "stack_boot")
	s.CounterFunc("events_received_total", "Events of boots that programs have told.", r.Received)
	s.CounterFunc("events_lost_total", "Events that programs had no room for.", r.Lost)
	s.CounterFunc("events_twins_total", "Events that another relay had told of the same packet.", r.Twins)
	s.CounterFunc("streams_refused_total", "Connections without the key, or of another release.", r.Refused)
	s.CounterFunc("machines_forgotten_total", "Machines that made room for others.", j.Forgotten)
}
