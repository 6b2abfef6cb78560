package main

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// view is what keeps and shows what is heard of machines that boot.
type view struct {
	record func(*boot.Event)
	tasks  []daemon.Task
	server *page.Server
}

// Room of the queues, in events: a tenth of a second of a busy site's, and of its syslog, which may be a flood.
const (
	eventRoom = 8192
	lineRoom  = 1024
)

// newView makes the view, which hears from now on and records while its tasks run.
func newView(
	s *settings, getenv func(string) string, logger *slog.Logger, registry prometheus.Registerer,
) (*view, error) {
	pod, _ := os.Hostname()
	elsewhere, err := newSignals(s, pod, getenv, logger, registry)
	if err != nil {
		return nil, err
	}
	j := journal.New(journal.Options{
		Limits: s.limits(), Pod: pod, Hardware: elsewhere.lookup(), Expected: elsewhere.expected(),
		Changed: elsewhere.changed,
	})
	queues := map[string]*boot.Queue{
		"dhcp": boot.NewQueue(eventRoom), "requests": boot.NewQueue(eventRoom), "syslog": boot.NewQueue(lineRoom),
	}
	v := &view{record: func(e *boot.Event) { queues[sourceOf(e.Kind)].Put(e) }}
	receiver, err := feed.Listen(feed.ReceiverConfig{
		Address: s.ListenAddress, KeyFile: s.KeyFile, Logger: logger, Record: v.record,
	})
	if err != nil {
		return nil, err
	}
	v.server = page.New(page.Options{Journal: j, Sources: receiver.Sources, Lines: s.Lines, Logger: logger})
	count(registry, receiver, queues)
	k := newKeeper(j, logger, queues["dhcp"], queues["requests"], queues["syslog"])
	k.remember(s.HistoryFile)
	v.tasks = append(elsewhere.of(k, logger, registry), receiver, v.server)
	return v, nil
}

// sourceOf is the queue of a kind of event.
func sourceOf(k boot.Kind) string {
	switch k {
	case boot.DHCPRequest, boot.DHCPReply:
		return "dhcp"
	case boot.Syslog:
		return "syslog"
	default:
		return "requests"
	}
}

// count shows what came and what was lost.
func count(registry prometheus.Registerer, r *feed.Receiver, queues map[string]*boot.Queue) {
	counter := func(name, help string, labels prometheus.Labels, value func() uint64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: labels,
		}, func() float64 { return float64(value()) }))
	}
	counter("stack_boot_events_received_total", "Events of boots that programs have told.", nil, r.Received)
	counter("stack_boot_events_lost_total", "Events that programs had no room for while they were heard.", nil, r.Lost)
	counter("stack_boot_events_twins_total", "Events that another relay had told of the same packet.", nil, r.Twins)
	counter("stack_boot_streams_refused_total", "Streams without the key, or of another release.", nil, r.Refused)
	for source, queue := range queues {
		counter("stack_boot_events_dropped_total", "Events that came faster than they are kept, by what they tell of.",
			prometheus.Labels{"source": source}, queue.Dropped)
	}
}
