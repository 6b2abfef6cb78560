package hardware

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func machine(mac string) journal.MachineView { return journal.MachineView{ID: mac, MAC: mac} }

func stuck(mac, name, text string) journal.Change {
	return journal.Change{
		Kind: journal.CauseChanged, At: noon, Machine: machine(mac),
		Boot: journal.BootView{State: journal.Stuck, At: journal.Script, Cause: &journal.Cause{
			Name: name, Text: text, Remedy: "Look at Smee.", Since: noon,
		}},
	}
}

func stepped(mac string, step journal.Step, result journal.Result, from, text string) journal.Change {
	return journal.Change{
		Kind: journal.StepEnded, At: noon, Machine: machine(mac), Boot: journal.BootView{State: journal.Booting},
		Step: journal.StepView{Step: step, Result: result, Begin: noon, End: noon.Add(1500 * time.Millisecond), From: from, Text: text},
	}
}

// began starts a watcher that knows two machines.
func began(t *testing.T, a *api) *Watcher {
	a.objects = []string{hardware("m1", "1", "52:54:00:5e:00:01 true", "52:54:00:5e:00:03"), hardware("m2", "2", "52:54:00:5e:00:02 true")}
	w, _ := start(t, Options{Config: a.config(), Pod: "stack-boots-1"})
	testwait.Until(t, "m1", w.is("52:54:00:5e:00:01", journal.Hardware{Known: true, Name: "tink/m1", Netboot: true}))
	return w
}

func (w *Watcher) counted(reason, result string) float64 {
	return testutil.ToFloat64(w.metrics.events.WithLabelValues(reason, result))
}

func TestEventsOfABoot(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	const m1 = "52:54:00:5e:00:01"
	other := stepped("52:54:00:5e:00:99", journal.Loader, journal.Failed, "192.0.2.3:69", "ipxe.efi")
	other.Machine.OtherMACs = []string{"no MAC", "52:54:00:5e:00:02"}
	slow := stuck(m1, "slow", "It goes on.")
	slow.Boot.State = journal.Booting
	for _, c := range []journal.Change{
		slow,
		stepped(m1, journal.DHCP, journal.OK, "192.0.2.3", "192.0.2.101"),
		{Kind: journal.StateChanged, At: noon, Machine: machine(m1), Before: journal.Booting, Boot: stuck(m1, "not-found", "x").Boot},
		stuck(m1, "not-found", "GET /auto.ipxe was answered 404."),
		{Kind: journal.CauseChanged, At: noon, Machine: machine(m1), Boot: journal.BootView{State: journal.Booting}},
		{Kind: journal.StateChanged, At: noon, Machine: machine(m1), Boot: journal.BootView{State: journal.Booted, Begin: noon, End: noon.Add(25 * time.Second)}},
		{Kind: journal.BootEnded, At: noon, Machine: machine(m1), Boot: journal.BootView{State: journal.Booted}},
		stepped("52:54:00:5e:00:77", journal.DHCP, journal.OK, "", ""), // nobody's
		stepped("", journal.DHCP, journal.OK, "", ""),                  // an address alone
		other,
	} {
		w.Changed(c)
	}
	want := map[string][]string{
		"PXEStuck": {
			"Warning tink/m1: 52:54:00:5e:00:01 at script: GET /auto.ipxe was answered 404. Look at Smee. (not-found)",
		},
		"PXEStep": {
			"Normal tink/m1: 52:54:00:5e:00:01: dhcp ok after 1.5 s from 192.0.2.3: 192.0.2.101",
			"Normal tink/m2: 52:54:00:5e:00:99: loader failed after 1.5 s from 192.0.2.3:69: ipxe.efi",
		},
		"PXEBooted": {"Normal tink/m1: 52:54:00:5e:00:01 booted in 25.0 s"},
	}
	got := map[string][]string{}
	testwait.Until(t, "all events", func() bool {
		number := 0
		clear(got)
		for reason, events := range a.recorded() {
			for _, e := range events {
				number++
				got[reason] = append(got[reason], fmt.Sprintf("%s %s/%s: %s", e.Type, e.Namespace, e.InvolvedObject.Name, e.Message))
			}
		}
		return number >= 4
	})
	if diff := cmp.Diff(want, got, cmp.Transformer("sorted", func(in []string) map[string]bool {
		set := map[string]bool{}
		for _, s := range in {
			set[s] = true
		}
		return set
	})); diff != "" {
		t.Error(diff)
	}
	e := a.recorded()["PXEBooted"][0]
	wantRef := core.ObjectReference{Kind: "Hardware", APIVersion: "tinkerbell.org/v1alpha1", Namespace: "tink", Name: "m1", UID: "uid-m1"}
	if e.InvolvedObject != wantRef || e.Source.Component != "stack-boots" || e.Source.Host != "stack-boots-1" || e.Count != 1 {
		t.Errorf("%+v", e)
	}
}

// A machine that is stuck again and again for one cause has one Event, which counts.
func TestEventsAreAggregated(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	for range 5 {
		w.Changed(stuck("52:54:00:5e:00:01", "no-server", "Nobody answers."))
	}
	testwait.Until(t, "five", func() bool { return w.counted(reasonStuck, sent) == 5 })
	events := a.recorded()["PXEStuck"]
	if len(events) != 1 || events[0].Count != 5 {
		t.Errorf("%+v", events)
	}
}

// Steps are limited, and no number of them keeps warnings back, of this machine or of another.
func TestEventsAreLimited(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	const flood = 3000
	for i := range flood {
		w.Changed(stepped("52:54:00:5e:00:01", journal.DHCP, journal.OK, "", fmt.Sprint(i)))
	}
	w.Changed(stuck("52:54:00:5e:00:01", "no-server", "Nobody answers."))
	w.Changed(stuck("52:54:00:5e:00:02", "no-server", "Nobody answers."))
	testwait.Until(t, "the warnings", func() bool { return w.counted(reasonStuck, sent) == 2 })
	if n := w.counted(reasonStep, sent); n > objectAtOnce+2 || n < objectAtOnce {
		t.Errorf("%v steps were sent", n)
	}
	if n := w.counted(reasonStep, limited); n < flood-2*stepsAtOnce {
		t.Errorf("%v steps are counted as limited", n)
	}
}

// Texts of machines in Events: no control characters, valid, and below the API's limit.
func TestHostileTextsInEvents(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	for i, text := range []string{
		"<script>alert(1)</script>", "\x1b[2J\x1b]0;owned\a", "a\nb\r\nc\x00", "\xff\xfe\xfd", strings.Repeat("ä", 32<<10), "\u202etxt.exe", strings.Repeat("\xf0\x9f\x92", 3000),
	} {
		w.Changed(stepped("52:54:00:5e:00:01", journal.Script, journal.Failed, text, text))
		w.Changed(stuck("52:54:00:5e:00:01", fmt.Sprint("cause-", i), text))
	}
	testwait.Until(t, "all", func() bool { return w.counted(reasonStep, sent) == 7 && w.counted(reasonStuck, sent) == 7 })
	for reason, events := range a.recorded() {
		for _, e := range events {
			if len(e.Message) > 1024 || !utf8.ValidString(e.Message) || strings.ContainsAny(e.Message, "\x1b\n\r\x00\a\u202e") {
				t.Errorf("%s: %d bytes: %q", reason, len(e.Message), e.Message)
			}
		}
	}
}

// While the API refuses Events, they are counted as failed; later ones come through.
func TestRefusedEvents(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	a.set(func(a *api) { a.refuse = http.StatusForbidden })
	for i := range 10 {
		w.Changed(stuck("52:54:00:5e:00:01", "no-server", fmt.Sprint(i)))
	}
	testwait.Until(t, "the failures", func() bool { return w.counted(reasonStuck, failed) == 10 })
	a.set(func(a *api) { a.refuse = 0 })
	w.Changed(stuck("52:54:00:5e:00:01", "no-server", "Nobody answers."))
	testwait.Until(t, "the next one", func() bool { return w.counted(reasonStuck, sent) == 1 })
}

// An API that is slow or away for a moment gets the Event later.
func TestEventIsTriedAgain(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	a.set(func(a *api) { a.breaks = 2 })
	w.Changed(stuck("52:54:00:5e:00:01", "no-server", "Nobody answers."))
	testwait.Until(t, "the event", func() bool { return len(a.recorded()["PXEStuck"]) == 1 })
}

// With the API gone for good, changes cost nothing.
func TestChangedNeverWaits(t *testing.T) {
	a := newAPI(t)
	w := began(t, a)
	hang := make(chan struct{})
	a.set(func(a *api) { a.hang = hang })
	defer close(hang)
	for range 5000 {
		w.Changed(stuck("52:54:00:5e:00:01", "no-server", "x"))
		w.Changed(stepped("52:54:00:5e:00:01", journal.DHCP, journal.OK, "", ""))
	}
}
