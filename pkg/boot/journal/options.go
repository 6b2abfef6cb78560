package journal

import (
	"cmp"
	"net/netip"
	"time"
)

// Options are what a [Journal] needs. The zero value is good.
type Options struct {
	// Limits bound what is kept; zero fields have their defaults.
	Limits Limits
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
	Messages int // of each boot, steps included: 200
	Lines    int // of syslog, of each machine: 50
	Bytes    int // of all together: 64 MiB
}

const (
	aSecond = int64(time.Second)
	aMinute = int64(time.Minute)
)

// How long a step may be quiet before its machine counts as stuck, in nanoseconds.
const (
	waitOffer     = 3 * aSecond  // from a DISCOVER or REQUEST to the answer, if the machine asks again
	waitRetry     = 3 * aSecond  // from a failure to another attempt
	waitLoader    = 20 * aSecond // from the ACK to the request for the loader, and of a transfer
	waitStart     = 45 * aSecond // from the loader to iPXE's DHCP
	waitScript    = 20 * aSecond // from iPXE's ACK to the script
	waitMenu      = 12 * aMinute // from the script to the kernel, where a person may be asked
	waitKernel    = 2 * aMinute  // from the last of kernel and initramfs to the first sign of the system
	waitSystem    = 5 * aMinute  // from the system's DHCP to the agent
	waitSilent    = 15 * aMinute // after which a machine has failed, or is quiet
	waitBootAgain = 5 * aMinute  // silence after which a DISCOVER is that of another boot
)

// ChangeKind names what has changed in a [Change].
type ChangeKind uint8

// The changes.
const (
	StepEnded    ChangeKind = 1 + iota // Step has ended; again if its result changed later
	CauseChanged                       // Boot.Cause is another, or none
	StateChanged                       // Boot.State is not Before
	BootEnded                          // nothing more is expected of it: booted, failed, quiet, or another boot began
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
	return Limits{
		Machines: cmp.Or(l.Machines, 10_000), Boots: cmp.Or(l.Boots, 5), Messages: cmp.Or(l.Messages, 200),
		Lines: cmp.Or(l.Lines, 50), Bytes: cmp.Or(l.Bytes, 64<<20),
	}
}
