package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stuckForAMoment are the good boots that are said to be stuck between the times that their films look at, and why that
// cannot be told from a fault at that time. What they expect at those times holds.
var stuckForAMoment = map[string]string{
	"g040-v6-first-then-v4":      "three requests by DHCPv6 are unanswered, and nothing tells that IPv4 comes next",
	"g042-first-discover-lost":   "the server's answers do not come for 20 s",
	"g073-grpc-unavailable-once": "the agent is refused, and tries again after more than the 3 s that others take",
	"g083-firmware-menu":         "a person in the firmware's menu looks like firmware that asks for no loader",
	"g089-bond":                  "the system asks by another MAC after more than 2 m",
	"g111-smee-restarts":         "a request waits for Smee, which is true",
}

// stepsOf are the steps that films name.
var stepsOf = map[string][]Step{
	"discover": {DHCP}, "offer": {DHCP}, "request": {DHCP}, "ack": {DHCP, IPXEDHCP}, "loader": {Loader}, "script": {Script},
	"kernel": {Kernel}, "initramfs": {Initramfs}, "system": {OSDHCP, Syslog, Metadata}, "agent": {Agent, Files},
}

// known is what films know beside events.
type known struct {
	hardware  map[[6]byte][]filmHardware
	workflows map[[6]byte]*Workflow
	since     map[[6]byte]time.Time
	all       bool
	witness   Witness
}

func (k *known) lookup(mac [6]byte) (Hardware, bool) {
	h := k.hardware[mac]
	if len(h) == 0 {
		return Hardware{Closest: k.closest(mac)}, k.all
	}
	name := func(h filmHardware) string { return h.Namespace + "/" + h.Name }
	found := Hardware{Known: true, Name: name(h[0]), Netboot: h[0].AllowPXE, Arch: h[0].Arch, Workflow: k.workflows[mac], Workflows: true}
	if len(h) > 1 {
		found.Also = name(h[1])
	}
	return found, true
}

// closest is the MAC that differs in one byte.
func (k *known) closest(mac [6]byte) string {
	for other, h := range k.hardware {
		differ := 0
		for i := range mac {
			if mac[i] != other[i] {
				differ++
			}
		}
		if differ == 1 {
			return macString(other) + " (" + h[0].Namespace + "/" + h[0].Name + ")"
		}
	}
	return ""
}

func (k *known) expected() (all []Expected) {
	for mac, w := range k.workflows {
		if w.waits() && len(k.hardware[mac]) > 0 {
			all = append(all, Expected{MAC: mac, Since: k.since[mac]})
		}
	}
	return all
}

func (k *known) learn(what *filmKnow, now time.Time) {
	k.all = k.all || what.NoHardware
	if h := what.Hardware; h != nil {
		mac := parse(h.MAC)
		own := k.hardware[mac]
		if i := slices.IndexFunc(own, func(o filmHardware) bool { return o.Name == h.Name }); i >= 0 {
			own[i] = *h
		} else {
			k.hardware[mac] = append(own, *h)
		}
	}
	if w := what.Workflow; w != nil {
		mac := parse(w.MAC)
		if k.workflows[mac] == nil {
			k.since[mac] = now
		}
		k.workflows[mac] = &Workflow{State: strings.TrimPrefix(w.State, "STATE_"), Action: w.Action, Message: w.Message}
	}
	if w := what.Witness; w != nil {
		var of Witness
		of.RelayLost = w.Relay == "lost"
		if have, all, ok := strings.Cut(w.Proxies, "/"); ok && have != all {
			of.Proxies = have + " of " + all
		}
		of.Dropped = max(k.witness.Dropped, w.Dropped)
		k.witness = of
	}
}

// screen plays a film, and returns what the journal said that was not expected.
func screen(path string) (t filmTitle, faults []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return t, nil, err
	}
	defer f.Close()
	t, lines, err := readFilm(f)
	if err != nil {
		return t, nil, err
	}
	k := known{hardware: map[[6]byte][]filmHardware{}, workflows: map[[6]byte]*Workflow{}, since: map[[6]byte]time.Time{}}
	o := Options{Witness: func() Witness { return k.witness }}
	for _, l := range lines {
		if l.Know == nil {
			continue
		}
		o.Self = append(o.Self, l.Know.Self...)
		if l.Know.NoHardware || l.Know.Hardware != nil || l.Know.Workflow != nil {
			o.Hardware, o.Expected = k.lookup, k.expected
		}
	}
	j := New(o)
	clock := start
	for _, l := range lines {
		at := l.Time(start)
		for !clock.After(at) {
			j.Tick(clock)
			if t.Good && stuckForAMoment[t.Film] == "" {
				faults = append(faults, stuck(j, clock)...)
			}
			clock = clock.Add(time.Second)
		}
		switch {
		case l.FilmEvent != nil:
			e, err := l.BootEvent(start)
			if err != nil {
				return t, faults, fmt.Errorf("failed to read event at %v: %w", l.T, err)
			}
			j.Record(&e)
		case l.Know != nil:
			k.learn(l.Know, at)
		case l.Expect != nil:
			for _, fault := range expectation(l.Expect, j, o.Hardware != nil) {
				faults = append(faults, fmt.Sprintf("at %v s: %s", l.T, fault))
			}
		}
	}
	return t, faults, nil
}

// stuck names the machines that are said to be stuck.
func stuck(j *Journal, now time.Time) (faults []string) {
	for _, m := range j.Machines() {
		if b := &m.Boots[0]; b.State == Stuck || b.State == StateFailed {
			faults = append(faults, fmt.Sprintf("at %v %s is %s: %+v", now.Sub(start), m.ID, b.State, *b.Cause))
		}
	}
	return faults
}

func expectation(x *filmExpect, j *Journal, asksKubernetes bool) (faults []string) {
	id := x.MAC + x.Address
	wrong := func(format string, args ...any) { faults = append(faults, id+": "+fmt.Sprintf(format, args...)) }
	m, _ := j.Machine(id)
	var b BootView
	if len(m.Boots) > 0 {
		b = m.Boots[0]
	}
	cause, text, certain := "", "", false
	if c := b.Cause; c != nil {
		cause, text, certain = c.Name, c.Text+" "+c.Remedy, c.Certain
	}
	said := fmt.Sprintf("%s at %s, %q (certain %v): %s", b.State, b.At, cause, certain, text)
	state := string(b.State)
	switch {
	case b.State == Booted && !asksKubernetes:
		wrong("it is green without a proof: %s", said)
	case b.State == Installed: // a film's booted is what really happened
		state = string(Booted)
	}
	if len(x.State) > 0 && !slices.Contains(x.State, state) {
		wrong("want state %v, got %s", x.State, said)
	}
	if x.Cause != nil && len(*x.Cause) == 0 && cause != "" {
		wrong("want no cause, got %s", said)
	}
	if x.Cause != nil && len(*x.Cause) > 0 && !slices.Contains(*x.Cause, cause) {
		wrong("want cause %v, got %s", *x.Cause, said)
	}
	if slices.Contains(x.Not, cause) {
		wrong("want none of %v, got %s", x.Not, said)
	}
	if x.Certain != nil && *x.Certain != certain && (*x.Certain || cause != "") {
		wrong("want certain %v, got %s", *x.Certain, said)
	}
	if x.Boots > 0 && len(m.Boots) != x.Boots {
		wrong("want %d boots, got %d", x.Boots, len(m.Boots))
	}
	for _, word := range x.Says {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(word)) {
			wrong("%q is not in %s", word, said)
		}
	}
	if len(x.Step) > 0 && !slices.ContainsFunc(x.Step, func(name string) bool { return slices.Contains(stepsOf[name], b.At) }) {
		wrong("want step %v, got %s", x.Step, said)
	}
	return faults
}

// TestFilms plays recorded boots, each second of them, and holds what the journal says to what really happened.
func TestFilms(t *testing.T) {
	paths, err := filepath.Glob("testdata/films/*.jsonl")
	if dir := os.Getenv("FILMS"); dir != "" {
		paths, err = filepath.Glob(filepath.Join(dir, "*.jsonl"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		t.Run(name, func(t *testing.T) {
			title, faults, err := screen(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, fault := range faults {
				t.Errorf("%s", fault)
			}
			if t.Failed() {
				t.Log(title.Truth)
			}
		})
	}
}
