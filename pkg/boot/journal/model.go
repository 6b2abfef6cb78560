// Package journal keeps what is known of each machine's boots, and says what a machine waits for and why. It has no
// sockets and no clock of its own.
package journal

import (
	"net/netip"
	"slices"
	"time"
)

// Step is a part of a boot.
type Step string

// The steps, in the order that a boot through iPXE takes them. Others are normal.
const (
	DHCP      Step = "dhcp"
	Loader    Step = "loader"
	IPXEDHCP  Step = "ipxe-dhcp"
	Script    Step = "script"
	Kernel    Step = "kernel"
	Initramfs Step = "initramfs"
	OSDHCP    Step = "os-dhcp"
	Syslog    Step = "syslog"
	Metadata  Step = "metadata"
	Agent     Step = "agent"
	Files     Step = "files"
	Other     Step = "other" // a request that none of the above explains
)

// State is how a machine fares.
type State string

// The states.
const (
	Booting State = "booting"
	Stuck   State = "stuck"  // a cause is known
	Booted  State = "booted" // its Workflow succeeded, or its disk boots and no Workflow waits or runs
	// Installed is as far as can be seen without a Workflow to ask: its agent had work and hung up, or its disk boots.
	Installed   State = "installed"
	StateFailed State = "failed" // it was stuck, and nothing was heard for long, or its Workflow failed
	Quiet       State = "quiet"  // nothing was heard for long, and nothing is known to be wrong, or a person knows it
)

// done tells whether the boot's work is done, proven or as far as seen.
func (s State) done() bool { return s == Booted || s == Installed }

// Result is how a step ended.
type Result string

// The results.
const (
	Going  Result = "going"
	OK     Result = "ok"
	Failed Result = "failed"
)

// Cause is what holds a machine up.
type Cause struct {
	Name    string    `json:"name"`    // stable, for alerts and tests: see the table in docs/boots.md
	Text    string    `json:"text"`    // one sentence that names what was seen
	Remedy  string    `json:"remedy"`  // one sentence that names what to do
	Certain bool      `json:"certain"` // what was heard proves it; false: likely
	Since   time.Time `json:"since"`
	Others  []Suspect `json:"others,omitempty"` // what else fits, best first
}

// Suspect is a cause that fits as well, and is not the one that is shown.
type Suspect struct {
	Name    string `json:"name"`
	Text    string `json:"text"`
	Against string `json:"against"` // what speaks against it
}

// Answer is one message, transfer or request within a step.
type Answer struct {
	Begin    time.Time      `json:"begin"`
	End      time.Time      `json:"end"`
	Kind     string         `json:"kind"`   // "DISCOVER", "OFFER", "TFTP", "GET", "gRPC", ...
	Text     string         `json:"text"`   // path, file, method, or the addresses of a DHCP message
	Result   string         `json:"result"` // "200", "error 1: file not found", "dropped: ...", ...
	OK       bool           `json:"ok"`
	Bytes    uint64         `json:"bytes,omitempty"`
	Expected uint64         `json:"expected,omitempty"`
	From     netip.AddrPort `json:"from,omitzero"` // endpoint or server that answered
	Count    int            `json:"count"`         // how often this came in a row
}

// StepView is a step of a boot.
type StepView struct {
	Step    Step      `json:"step"`
	Result  Result    `json:"result"`
	Begin   time.Time `json:"begin"`
	End     time.Time `json:"end"` // last sign of it
	Bytes   uint64    `json:"bytes,omitempty"`
	From    string    `json:"from,omitempty"` // endpoint or server that answered last
	Text    string    `json:"text,omitempty"` // file or path, or the address given
	Answers []Answer  `json:"answers,omitempty"`
}

// BootView is one boot of a machine.
type BootView struct {
	ID    string     `json:"id"` // unique in this process: begin and MAC
	Begin time.Time  `json:"begin"`
	End   time.Time  `json:"end"` // last sign of it
	State State      `json:"state"`
	At    Step       `json:"at"`             // the step that it is at
	Next  Step       `json:"next,omitempty"` // the likely next one
	Cause *Cause     `json:"cause,omitempty"`
	Steps []StepView `json:"steps"`
}

// IsStuck reports whether the machine is stuck by the boot's cause. With some causes, such as [Slow], it is on its way.
func (b *BootView) IsStuck() bool {
	return b.Cause != nil && (b.State == Stuck || b.State == StateFailed)
}

// LineView is a line of syslog.
type LineView struct {
	At       time.Time `json:"at"`
	Facility string    `json:"facility"`
	Severity string    `json:"severity"`
	Tag      string    `json:"tag,omitempty"`
	Text     string    `json:"text"`
}

// MachineView is all that is known of a machine.
type MachineView struct {
	ID          string     `json:"id"` // its MAC in small letters with colons, or its address where no MAC is known
	MAC         string     `json:"mac,omitempty"`
	OtherMACs   []string   `json:"otherMACs,omitempty"` // joined by UUID
	UUID        string     `json:"uuid,omitempty"`
	Address     netip.Addr `json:"address,omitzero"`
	Name        string     `json:"name,omitempty"`     // of its Hardware object, else its host name
	Hardware    string     `json:"hardware,omitempty"` // namespace/name of its Hardware object
	Arch        string     `json:"arch,omitempty"`
	VendorClass string     `json:"vendorClass,omitempty"`
	UserClass   string     `json:"userClass,omitempty"`
	Pod         string     `json:"pod,omitempty"`   // replica that heard it
	Boots       []BootView `json:"boots"`           // newest first
	Lines       []LineView `json:"lines,omitempty"` // oldest first
}

// Hardware is what Kubernetes knows of a machine, for names and causes.
type Hardware struct {
	Known    bool      // whether there is an object with this MAC
	Name     string    // namespace/name
	Netboot  bool      // allowPXE of the interface with this MAC
	Arch     string    // of the interface, as the object names it
	Also     string    // another object that has this MAC
	Closest  string    // of an unknown MAC: the most similar MAC that an object has, with the object's name
	Workflow *Workflow // that names the machine; nil if none does, or it is not known

	Workflows bool // whether Workflows are known
}

// Workflow is what Kubernetes knows of a machine's Workflow.
type Workflow struct {
	State   string // PENDING, RUNNING, POST, SUCCESS, FAILED, TIMEOUT
	Action  string // the current one, or the one that failed
	Message string // of the action that failed
}

func (w *Workflow) is(states ...string) bool { return w != nil && slices.Contains(states, w.State) }

func (w *Workflow) waits() bool { return w.is("PENDING", "PREPARING", "") }

func (w *Workflow) runs() bool { return w.is("RUNNING", "POST") }

func (w *Workflow) failed() bool { return w.is("FAILED", "TIMEOUT") }

func (w *Workflow) ended() bool { return w.failed() || w.is("SUCCESS") }

// Expected is a machine that Kubernetes waits for.
type Expected struct {
	MAC   [6]byte
	Since time.Time // that a Workflow waits for it
}

// Witness tells which of the programs that tell of machines are not heard.
type Witness struct {
	RelayLost bool   // dhcp-relay is not connected
	Proxies   string // how many of the stack-proxy pods tell, as "2 of 3", where not all do
	Dropped   uint64 // events that were lost so far
}
