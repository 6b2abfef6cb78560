package page

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// sameBootWithin is how long after the last sign of a boot in one replica another replica's part of it may begin.
const sameBootWithin = 10 * time.Minute

// join joins what several replicas heard of the same machines: by MAC, and by address where a replica knows no MAC.
func join(replicas [][]journal.MachineView) []journal.MachineView {
	if len(replicas) == 1 {
		return replicas[0]
	}
	all := slices.Concat(replicas...)
	j := joiner{macs: make(map[string]int), addresses: make(map[netip.Addr]int)}
	for i := range all {
		if all[i].MAC != "" {
			j.add(&all[i], j.byMAC)
		}
	}
	for i := range all {
		if all[i].MAC == "" {
			j.add(&all[i], j.byAddress)
		}
	}
	return j.machines
}

// joiner holds the machines joined so far, and where each MAC and address stands among them.
type joiner struct {
	machines  []journal.MachineView
	macs      map[string]int
	addresses map[netip.Addr]int
}

// add joins a view with that of the same machine, which find finds, or appends it.
func (j *joiner) add(m *journal.MachineView, find func(*journal.MachineView) (int, bool)) {
	i, known := find(m)
	if known {
		j.machines[i] = joinMachine(j.machines[i], *m)
	} else {
		i = len(j.machines)
		j.machines = append(j.machines, *m)
	}
	for _, mac := range append(slices.Clone(m.OtherMACs), m.MAC) {
		if mac != "" {
			j.macs[mac] = i
		}
	}
	if m.Address.IsValid() {
		j.addresses[m.Address] = i
	}
}

func (j *joiner) byMAC(m *journal.MachineView) (int, bool) {
	for _, mac := range append([]string{m.MAC}, m.OtherMACs...) {
		if i, known := j.macs[mac]; known {
			return i, true
		}
	}
	return 0, false
}

func (j *joiner) byAddress(m *journal.MachineView) (int, bool) {
	i, known := j.addresses[m.Address]
	return i, known && m.Address.IsValid()
}

// joinMachine joins two replicas' views of a machine.
func joinMachine(a, b journal.MachineView) journal.MachineView {
	if newest(&b).End.After(newest(&a).End) && (b.MAC != "" || a.MAC == "") {
		a, b = b, a // what was heard last is right
	}
	a.MAC, a.UUID, a.Name = cmp.Or(a.MAC, b.MAC), cmp.Or(a.UUID, b.UUID), cmp.Or(a.Name, b.Name)
	a.Hardware, a.Arch = cmp.Or(a.Hardware, b.Hardware), cmp.Or(a.Arch, b.Arch)
	a.VendorClass, a.UserClass = cmp.Or(a.VendorClass, b.VendorClass), cmp.Or(a.UserClass, b.UserClass)
	if !a.Address.IsValid() {
		a.Address = b.Address
	}
	macs := append(slices.Clone(a.OtherMACs), b.OtherMACs...)
	if b.MAC != "" {
		macs = append(macs, b.MAC)
	}
	slices.Sort(macs)
	a.OtherMACs = slices.DeleteFunc(slices.Compact(macs), func(mac string) bool { return mac == a.MAC })
	a.Boots = joinBoots(a.Boots, b.Boots)
	a.Lines = append(slices.Clone(a.Lines), b.Lines...)
	slices.SortStableFunc(a.Lines, func(x, y journal.LineView) int { return x.At.Compare(y.At) })
	pods := append(strings.Split(a.Pod, ", "), strings.Split(b.Pod, ", ")...)
	slices.Sort(pods)
	a.Pod = strings.TrimPrefix(strings.Join(slices.Compact(pods), ", "), ", ")
	return a
}

// joinBoots joins boots of two sources, newest first: those of one source are never one boot.
func joinBoots(a, b []journal.BootView) []journal.BootView {
	type part struct {
		boot journal.BootView
		of   int // bits of the sources
	}
	var parts []part
	for i, boots := range [][]journal.BootView{a, b} {
		for _, each := range boots {
			parts = append(parts, part{each, 1 << i})
		}
	}
	slices.SortStableFunc(parts, func(x, y part) int { return x.boot.Begin.Compare(y.boot.Begin) })
	var joined []part
	for _, next := range parts {
		if n := len(joined) - 1; n >= 0 && joined[n].of&next.of == 0 &&
			next.boot.Begin.Before(joined[n].boot.End.Add(sameBootWithin)) {
			joined[n] = part{joinBoot(joined[n].boot, next.boot), joined[n].of | next.of}
		} else {
			joined = append(joined, next)
		}
	}
	boots := make([]journal.BootView, 0, len(joined))
	for _, each := range slices.Backward(joined) {
		boots = append(boots, each.boot)
	}
	return boots
}

// joinBoot joins two parts of a boot: how the machine fares is told by the part with the last sign of it.
func joinBoot(a, b journal.BootView) journal.BootView {
	last := a
	if b.End.After(a.End) {
		last = b
	}
	last.ID, last.Begin = a.ID, a.Begin
	if b.Begin.Before(a.Begin) {
		last.ID, last.Begin = b.ID, b.Begin
	}
	joined := slices.Clone(a.Steps)
	for _, s := range b.Steps {
		if i := slices.IndexFunc(joined, func(x journal.StepView) bool { return x.Step == s.Step }); i >= 0 {
			joined[i] = joinStep(joined[i], s)
		} else {
			joined = append(joined, s)
		}
	}
	slices.SortStableFunc(joined, func(x, y journal.StepView) int { return x.Begin.Compare(y.Begin) })
	last.Steps = joined
	return last
}

func joinStep(a, b journal.StepView) journal.StepView {
	last := a
	if b.End.After(a.End) {
		last = b
	}
	if last.Begin = a.Begin; b.Begin.Before(a.Begin) {
		last.Begin = b.Begin
	}
	last.Bytes = a.Bytes + b.Bytes
	last.Answers = append(slices.Clone(a.Answers), b.Answers...)
	slices.SortStableFunc(last.Answers, func(x, y journal.Answer) int { return x.Begin.Compare(y.Begin) })
	return last
}
