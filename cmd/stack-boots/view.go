package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// view keeps the events of machines that boot, and shows them.
type view struct {
	record   func(*boot.Event)
	receiver *feed.Receiver
	tasks    []daemon.Task
	server   *page.Server
}

// newView makes the view, which hears from now on and records while its tasks run.
func newView(
	s *settings, getenv func(string) string, logger *slog.Logger, registry prometheus.Registerer,
) (*view, error) {
	pod, _ := os.Hostname()
	signals, err := newSignals(s, pod, getenv, logger, registry)
	if err != nil {
		return nil, err
	}
	if s.KeySecret == "" && s.KeyFile != "" {
		if err := feed.CheckKey(s.KeyFile); err != nil {
			return nil, err
		}
	}
	v := &view{}
	j := journal.New(journal.Options{
		Limits: s.limits(), Pod: pod, Hardware: signals.lookup(), Expected: signals.expected(),
		Changed: signals.changed,
		Self:    s.PublicAddresses, Witness: v.witness,
	})
	k := newKeeper(j, logger)
	v.record = k.Event
	v.receiver, err = feed.Listen(feed.ReceiverConfig{
		Address: s.ListenAddress, KeyFile: s.KeyFile, Logger: logger, Record: v.record,
	})
	if err != nil {
		return nil, err
	}
	v.server = page.New(page.Options{
		Journal: j, Sources: v.receiver.Sources, Record: v.record, Lines: s.Lines, Logger: logger,
	})
	count(registry, v.receiver)
	k.remember(s.HistoryFile)
	signals.begin(k, logger, registry)
	v.tasks = append([]daemon.Task{k}, signals.tasks()...)
	v.tasks = append(v.tasks, v.receiver, v.server)
	if s.KeySecret != "" {
		v.tasks = append(v.tasks, &keyMaker{secret: s.KeySecret, file: s.KeyFile, log: logger})
	}
	return v, nil
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

// count registers metrics of the events that came, and of those that were lost.
func count(registry prometheus.Registerer, r *feed.Receiver) {
	counter := func(name, help string, value func() uint64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value()) }))
	}
	counter("stack_boot_events_received_total", "Events of boots that programs have told.", r.Received)
	counter("stack_boot_events_lost_total", "Events that programs had no room for.", r.Lost)
	counter("stack_boot_events_twins_total", "Events that another relay had told of the same packet.", r.Twins)
	counter("stack_boot_streams_refused_total", "Streams without the key, or of another release.", r.Refused)
}
