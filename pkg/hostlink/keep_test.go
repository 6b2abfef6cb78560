package hostlink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
)

// patience bounds what takes milliseconds unless something is broken.
const patience = 20 * time.Second

// diary is a log to read while it is written.
type diary struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

// events lists the lines as "level: message cause".
func (d *diary) events(t *testing.T) []string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	var events []string
	for line := range strings.Lines(d.text.String()) {
		var fields struct{ Level, Msg, Cause string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("failed to read log line %q: %v", line, err)
		}
		events = append(events, strings.TrimSpace(fmt.Sprintf("%s: %s %s", fields.Level, fields.Msg, fields.Cause)))
	}
	return events
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(d, nil)) }

func TestMakeWaitsForParent(t *testing.T) {
	n := newNode(t)
	var log diary
	k := &Keeper{
		Host: n.open(t), Specs: []Spec{{Name: "macvlan0", Parent: "late0"}}, Logger: log.logger(), Wait: patience,
	}
	made := make(chan error)
	go func() { made <- k.Make(t.Context()) }()
	testwait.Until(t, "it waits", func() bool { return len(log.events(t)) > 0 })
	nstest.Veth(t, n.host, "late0", n.lan, "lan1")
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	want := []string{"WARN: waiting to make listener no_parent", "INFO: listener ready"}
	events := log.events(t)
	// Between its making and its coming up, the parent may be seen as down.
	if len(events) == 3 && events[1] == "WARN: waiting to make listener parent_down" {
		events = append(events[:1], events[2])
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("log differs (-want +got):\n%s", diff)
	}
}

func TestMakeGivesUp(t *testing.T) {
	n := newNode(t)
	tests := map[string]struct {
		parent string
		wait   time.Duration
		cancel bool
		cause  Cause
		events int
	}{
		"at once, without a wait":           {parent: "eth9", cause: NoParent},
		"after the wait":                    {parent: "eth9", wait: 100 * time.Millisecond, cause: NoParent, events: 1},
		"at once, where waiting is no help": {parent: "lo", wait: time.Hour, cause: NotEthernet},
		"when it is told to":                {parent: "eth9", wait: time.Hour, cancel: true, cause: NoParent, events: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var log diary
			k := &Keeper{
				Host: n.open(t), Specs: []Spec{{Name: "macvlan0", Parent: test.parent}}, Logger: log.logger(), Wait: test.wait,
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.cancel {
				cancel()
			}
			wantCause(t, k.Make(ctx), test.cause)
			if got := log.events(t); len(got) != test.events {
				t.Errorf("got %q, want %d lines", got, test.events)
			}
		})
	}
}

func TestMakeAwaitsTraffic(t *testing.T) {
	n := newNode(t)
	var log diary
	k := &Keeper{
		Host: n.open(t), Specs: []Spec{{Name: "macvlan0", Parent: "prov0"}}, Logger: log.logger(),
		AwaitTraffic: 50 * time.Millisecond,
	}
	if err := k.Make(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"INFO: listener ready", "WARN: listener impaired no_traffic"}
	if diff := cmp.Diff(want, log.events(t)); diff != "" {
		t.Errorf("log differs (-want +got):\n%s", diff)
	}
}

// TestRunKeepsListener has the parent go and come back, and somebody delete the listener.
func TestRunKeepsListener(t *testing.T) {
	n := newNode(t)
	var log diary
	k := &Keeper{Host: n.open(t), Specs: []Spec{{Name: "macvlan0", Parent: "prov0"}}, Logger: log.logger()}
	if err := k.Ready(); err == nil {
		t.Error("got ready before it ran")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	ready := func() bool { return k.Ready() == nil }
	testwait.Until(t, "the listener is there", ready)

	if err := n.host.Links().LinkDel(n.host.Link(t, "prov0")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the loss is noticed", func() bool { return !ready() })
	wantCause(t, k.Ready(), NoParent)
	nstest.Veth(t, n.host, "prov0", n.lan, "lan0")
	testwait.Until(t, "the listener is back", ready)

	before := n.pod.Link(t, "macvlan0")
	if err := n.pod.Links().LinkDel(before); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the listener is made again", func() bool {
		link, err := n.pod.Links().LinkByName("macvlan0")
		return err == nil && link.Attrs().Index != before.Attrs().Index
	})
	testwait.Until(t, "that is said", func() bool { return len(log.events(t)) == 4 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v, want an orderly end", err)
	}
	n.pod.Link(t, "macvlan0") // it stays
	want := []string{
		"INFO: listener ready", "ERROR: listener not ready no_parent", "INFO: listener ready", "INFO: listener ready",
	}
	if diff := cmp.Diff(want, log.events(t)); diff != "" {
		t.Errorf("log differs (-want +got):\n%s", diff)
	}
}

func TestRunEndsWhereWaitingIsNoHelp(t *testing.T) {
	n := newNode(t)
	k := &Keeper{Host: n.open(t), Specs: []Spec{{Name: "macvlan0", Parent: "lo"}}, Logger: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	wantCause(t, k.Run(ctx), NotEthernet)
}
