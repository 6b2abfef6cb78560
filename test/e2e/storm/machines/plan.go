// Package machines plays machines that boot at once through the pod, by the hundred in one process: each has an address
// of its own, and all share one interface and one network namespace. What they get they compare with what they should
// have got, and keep nothing of it.
package machines

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// Plan is what the machines are told.
type Plan struct {
	Interface string     `json:"interface"`
	Service   netip.Addr `json:"service"`
	Members   []Member   `json:"members"`
	// Loader, Kernel and Initramfs are files with what the machines have to get.
	Loader    string `json:"loader"`
	Kernel    string `json:"kernel"`
	Initramfs string `json:"initramfs"`
	// Spread is the time in which the machines are switched on, evenly, in the order of Members.
	Spread time.Duration `json:"spread"`
	// Patience is how long a step may go without anything new before its machine gives up.
	Patience time.Duration `json:"patience"`
}

// Member is one of the machines.
type Member struct {
	Name     string     `json:"name"`
	MAC      string     `json:"mac"`
	IP       netip.Addr `json:"ip"`
	Workflow string     `json:"workflow"`
}

// The steps of a boot, in order.
const (
	StepDiscover  = "discover"  // address, server and loader for the firmware
	StepTFTP      = "tftp"      // the loader
	StepIPXE      = "ipxe"      // address and script's URL for the loader
	StepScript    = "script"    // of this machine
	StepKernel    = "kernel"    //
	StepInitramfs = "initramfs" //
	StepLease     = "lease"     // address for the operating system
	StepSyslog    = "syslog"    // a line is sent, which nobody acknowledges
	StepMetadata  = "metadata"  // of this machine
	StepWorkflow  = "workflow"  // by a stream that stays open
	StepArtifact  = "artifact"  // with the SHA-512 that the workflow names
	StepReport    = "report"    // the workflow's success, while the stream is still open
)

// Steps lists them.
func Steps() []string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = s.name
	}
	return names
}

// Line is one line of what the machines say: one of its fields is set.
type Line struct {
	Passed  *Passed  `json:"passed,omitempty"`
	Outcome *Outcome `json:"outcome,omitempty"`
	End     *End     `json:"end,omitempty"`
}

// Passed is a step that a machine has behind it.
type Passed struct {
	Machine int     `json:"machine"` // its place in the plan
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"` // since the first machine was switched on
}

// Outcome is how far a machine came.
type Outcome struct {
	Machine  int            `json:"machine"`
	Finished bool           `json:"finished"`
	Seconds  float64        `json:"seconds"`           // since the first machine was switched on
	Failure  string         `json:"failure,omitempty"` // the step, and why
	Retries  map[string]int `json:"retries,omitempty"` // by step: datagrams sent again, and attempts after the first
	Wrong    []string       `json:"wrong,omitempty"`   // answers that were another machine's, or torn
}

// End comes last.
type End struct {
	CPU float64 `json:"cpu"` // seconds that the machines took of the processor
}

// ReadPlan reads a plan.
func ReadPlan(path string) (*Plan, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read plan: %w", err)
	}
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("failed to parse plan %s: %w", path, err)
	}
	return &p, nil
}
