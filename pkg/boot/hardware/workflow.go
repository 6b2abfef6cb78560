package hardware

import (
	"cmp"
	"strings"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// maxMessage is what is kept of an action's message, in bytes.
const maxMessage = 256

// workflow is what this package reads of a Workflow object, of both layouts that Tinkerbell has had.
type workflow struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		HardwareRef string            `json:"hardwareRef"`
		HardwareMap map[string]string `json:"hardwareMap"`
	} `json:"spec"`
	Status struct {
		State         string `json:"state"`
		CurrentAction string `json:"currentAction"`
		CurrentState  struct {
			ActionName string `json:"actionName"`
		} `json:"currentState"`
		Tasks []struct {
			Actions []struct {
				Name    string `json:"name"`
				Status  string `json:"status"`
				State   string `json:"state"`
				Message string `json:"message"`
			} `json:"actions"`
		} `json:"tasks"`
	} `json:"status"`
}

// DeepCopyObject implements runtime.Object. Nobody changes what was decoded.
func (w *workflow) DeepCopyObject() runtime.Object {
	c := *w
	return &c
}

// job is what is kept of a Workflow.
type job struct {
	journal.Workflow
	name     string
	machines []jobKey
	made     time.Time
}

// jobKey is one of a machine's names: a MAC, or namespace/name of its Hardware object.
type jobKey struct {
	mac      [6]byte
	hardware string
}

// Keys are the names of its machines.
func (j *job) Keys() []jobKey { return j.machines }

// Compare has the newest first.
func (j *job) Compare(other *job) int {
	return cmp.Or(other.made.Compare(j.made), strings.Compare(j.name, other.name))
}

// jobOf reads a Workflow.
func jobOf(given any) *job {
	w, ok := given.(*workflow)
	if !ok {
		return nil
	}
	j := &job{name: w.Namespace + "/" + w.Name, made: w.CreationTimestamp.Time}
	if w.Spec.HardwareRef != "" {
		j.machines = append(j.machines, jobKey{hardware: w.Namespace + "/" + w.Spec.HardwareRef})
	}
	for _, text := range w.Spec.HardwareMap {
		if mac, ok := macOf(text); ok {
			j.machines = append(j.machines, jobKey{mac: mac})
		}
	}
	s := &w.Status
	j.State, j.Action = strings.TrimPrefix(s.State, "STATE_"), s.CurrentAction
	if s.CurrentState.ActionName != "" {
		j.Action = s.CurrentState.ActionName
	}
	for _, t := range s.Tasks {
		for _, a := range t.Actions {
			if state := strings.TrimPrefix(a.Status+a.State, "STATE_"); state == "FAILED" || state == "TIMEOUT" {
				j.Action, j.Message = a.Name, a.Message
			}
		}
	}
	j.State, j.Action = boot.CleanCut(j.State, maxMessage), boot.CleanCut(j.Action, maxMessage)
	j.Message = boot.CleanCut(j.Message, maxMessage)
	return j
}

// jobs are the Workflows by machine.
type jobs struct{ table[jobKey, *job] }

// newest is the Workflow of a machine; nil if there is none.
func (j *jobs) newest(mac [6]byte, hardware string) *job {
	byMAC, _ := j.of(jobKey{mac: mac})
	byHardware, _ := j.of(jobKey{hardware: hardware})
	return cmp.Or(byMAC, byHardware)
}
