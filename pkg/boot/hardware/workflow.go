package hardware

import (
	"cmp"
	"strings"

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

	job *job // what is kept of it
}

// DeepCopyObject implements runtime.Object. Nobody changes what was decoded.
func (w *workflow) DeepCopyObject() runtime.Object {
	c := *w
	return &c
}

// job is what is kept of a Workflow.
type job struct {
	journal.Workflow
	machines []string // see byMachine
}

// read reads a Workflow.
func (w *workflow) read() *job {
	j := &job{}
	if w.Spec.HardwareRef != "" {
		j.machines = append(j.machines, w.Namespace+"/"+w.Spec.HardwareRef)
	}
	for _, text := range w.Spec.HardwareMap {
		if mac, ok := macOf(text); ok {
			j.machines = append(j.machines, string(mac[:]))
		}
	}
	s := &w.Status
	j.State, j.Action = strings.TrimPrefix(s.State, "STATE_"), cmp.Or(s.CurrentState.ActionName, s.CurrentAction)
	for _, t := range s.Tasks {
		for _, a := range t.Actions {
			if state := strings.TrimPrefix(a.Status+a.State, "STATE_"); state == "FAILED" || state == "TIMEOUT" {
				j.Action, j.Message = a.Name, a.Message
			}
		}
	}
	for _, text := range []*string{&j.State, &j.Action, &j.Message} {
		*text = boot.CleanCut(*text, maxMessage)
	}
	return j
}

// newest has the newest of a machine's Workflows first.
func newest(a, b *workflow) int {
	return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
}
