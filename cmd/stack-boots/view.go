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
	queues   map[string]*boot.Queue
	tasks    []daemon.Task
	server   *page.Server
}

// Room of the queues, in events: eventRoom is what a busy site has in a tenth of a second. Syslog, which may be a
// flood, gets less.
const (
	eventRoom = 8192
	lineRoom  = 1024
)

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
	v.queues = map[string]*boot.Queue{
		"dhcp": boot.NewQueue(eventRoom), "requests": boot.NewQueue(eventRoom), "syslog": boot.NewQueue(lineRoom),
	}
	v.record = func(e *boot.Event) { v.queues[queueOf(e.Kind)].Put(e) }
	v.receiver, err = feed.Listen(feed.ReceiverConfig{
		Address: s.ListenAddress, KeyFile: s.KeyFile, Logger: logger, Record: v.record,
	})
	if err != nil {
		return nil, err
	}
	v.server = page.New(page.Options{
		Journal: j, Sources: v.receiver.Sources, Record: v.record, Lines: s.Lines, Logger: logger,
	})
	count(registry, v.receiver, v.queues)
	k := newKeeper(j, logger, v.queues["dhcp"], v.queues["requests"], v.queues["syslog"])
	k.remember(s.HistoryFile)
	v.tasks = append(signals.tasks(k, logger, registry), v.receiver, v.server)
	if s.KeySecret != "" {
		v.tasks = append(v.tasks, &keyMaker{secret: s.KeySecret, file: s.KeyFile, log: logger})
	}
	return v, nil
}

// witness tells which programs that should tell of machines are not heard. One that ended in order is not missed.
func (v *view) witness() journal.Witness {
	dropped := v.receiver.Lost()
	for _, queue := range v.queues {
		dropped += queue.Dropped()
	}
	return witnessOf(v.receiver.Sources(), dropped)
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

// queueOf names the queue of a kind of event.
func queueOf(k boot.Kind) string {
	switch k {
	case boot.DHCPRequest, boot.DHCPReply:
		return "dhcp"
	case boot.Syslog:
		return "syslog"
	default:
		return "requests"
	}
}

// count registers metrics of the events that came, and of those that were lost.
func count(registry prometheus.Registerer, r *feed.Receiver, queues map[string]*boot.Queue) {
	counter := func(name, help string, labels prometheus.Labels, value func() uint64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: labels,
		}, func() float64 { return float64(value()) }))
	}
	counter("stack_boot_events_received_total", "Events of boots that programs have told.", nil, r.Received)
	counter("stack_boot_events_lost_total", "Events that programs had no room for.", nil, r.Lost)
	counter("stack_boot_events_twins_total", "Events that another relay had told of the same packet.", nil, r.Twins)
	counter("stack_boot_streams_refused_total", "Streams without the key, or of another release.", nil, r.Refused)
	for source, queue := range queues {
		counter("stack_boot_events_dropped_total", "Events that came faster than they are kept, by what they tell of.",
			prometheus.Labels{"source": source}, queue.Dropped)
	}
}
