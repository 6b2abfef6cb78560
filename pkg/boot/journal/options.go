package journal

import (
	"net/netip"
	"time"
)

// Options are what a [Journal] needs. The zero value is good.
type Options struct {
	// Limits bound what is kept; zero fields have their defaults.
	Limits Limits
	// Waits are how long a boot may take over its steps; zero fields have their defaults.
	Waits Waits
	// Pod is the name of this replica, for MachineView.Pod.
	Pod string
	// Hardware tells what Kubernetes knows of a MAC; nil or false where that is not known. It is called with the
	// journal locked, often: it looks into memory, does not wait, and does not call the journal.
	Hardware func(mac [6]byte) (Hardware, bool)
	// Self are this service's own addresses, by which machines ask it; none where they are not known.
	Self []netip.Addr
	// Witness tells which programs that tell of machines are not heard; nil: all are. It is called by Tick.
	Witness func() Witness
	// Expected tells which machines Kubernetes waits for; nil where that is not known. It is called by Tick, now and
	// then.
	Expected func() []Expected
	// Changed, which may be nil, is told of changes in their order, by the goroutine that calls Record and Tick and
	// without the journal's lock. What it is given is its own to keep, not to change.
	Changed func(Change)
}

// Limits bound the journal's memory.
type Limits struct {
	Machines int // 10,000 by default
	Boots    int // of each machine: 5
	Answers  int // of each boot, steps included: 200
	Lines    int // of syslog, of each machine: 50
	Bytes    int // of all together: 64 MiB
}

// Waits are how long a step may be quiet before its machine counts as stuck.
type Waits struct {
	Offer     time.Duration // from a DISCOVER or REQUEST to the answer, if the machine asks again: 3s
	Retry     time.Duration // from a failure to another attempt: 3s
	Loader    time.Duration // from the ACK to the request for the loader, and of a transfer: 20s
	Start     time.Duration // from the loader to iPXE's DHCP: 45s
	Script    time.Duration // from iPXE's ACK to the script: 20s
	Menu      time.Duration // from the script to the kernel, where a person may be asked: 12m
	Kernel    time.Duration // from the last of kernel and initramfs to the first sign of the system: 2m
	System    time.Duration // from the system's DHCP to the agent: 5m
	Silent    time.Duration // after which a machine has failed, or is quiet: 15m
	BootAgain time.Duration // silence after which a DISCOVER is that of another boot: 5m
}

// ChangeKind names what has changed in a [Change].
type ChangeKind uint8

// The changes.
const (
	BootBegan    ChangeKind = 1 + iota
	StepEnded               // Step has ended; again if its result changed later
	CauseChanged            // Boot.Cause is another, or none
	StateChanged            // Boot.State is not Before
	BootEnded               // nothing more is expected of it: booted, failed, quiet, or another boot began
)

// Change is one thing that changed.
type Change struct {
	Kind    ChangeKind
	At      time.Time
	Machine MachineView // without boots and lines
	Boot    BootView    // with answers in BootEnded, without in others
	Step    StepView    // of StepEnded, with answers
	Before  State       // of StateChanged; "" if the boot is new
}

// Count is how many machines are in a state at a step.
type Count struct {
	State    State
	Step     Step
	Machines int
}

// withDefaults fills what is zero.
func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Machines, 10_000}, {&l.Boots, 5}, {&l.Answers, 200}, {&l.Lines, 50}, {&l.Bytes, 64 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}

func (w Waits) withDefaults() Waits {
	for _, f := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&w.Offer, 3 * time.Second}, {&w.Retry, 3 * time.Second}, {&w.Loader, 20 * time.Second},
		{&w.Start, 45 * time.Second}, {&w.Script, 20 * time.Second}, {&w.Menu, 12 * time.Minute},
		{&w.Kernel, 2 * time.Minute},
		{&w.System, 5 * time.Minute}, {&w.Silent, 15 * time.Minute}, {&w.BootAgain, 5 * time.Minute},
	} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return w
}
