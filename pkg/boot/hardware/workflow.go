package hardware

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

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
	name     string // namespace/name
	hardware string // namespace/name
	macs     [][6]byte
	made     time.Time
}

// jobOf reads a Workflow.
func jobOf(w *workflow) *job {
	j := &job{name: w.Namespace + "/" + w.Name, made: w.CreationTimestamp.Time}
	if w.Spec.HardwareRef != "" {
		j.hardware = w.Namespace + "/" + w.Spec.HardwareRef
	}
	for _, text := range w.Spec.HardwareMap {
		if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 && !bytes.Equal(mac, make([]byte, 6)) {
			j.macs = append(j.macs, [6]byte(mac))
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

// jobs are the Workflows of all namespaces, the newest of each machine.
type jobs struct {
	mu         sync.RWMutex
	all        map[string]*job // by name
	byHardware map[string]*job
	byMAC      map[[6]byte]*job
	synced     map[string]bool // namespaces that were read
}

func newJobs() *jobs {
	return &jobs{all: map[string]*job{}, synced: map[string]bool{}}
}

// arrange finds the newest Workflow of each machine again.
func (j *jobs) arrange() {
	j.byHardware, j.byMAC = map[string]*job{}, map[[6]byte]*job{}
	for _, w := range j.all {
		if old := j.byHardware[w.hardware]; w.hardware != "" && (old == nil || old.made.Before(w.made)) {
			j.byHardware[w.hardware] = w
		}
		for _, mac := range w.macs {
			if old := j.byMAC[mac]; old == nil || old.made.Before(w.made) {
				j.byMAC[mac] = w
			}
		}
	}
}

// find is the Workflow of a machine; nil if there is none.
func (j *jobs) find(mac [6]byte, hardware string) *job {
	if w := j.byMAC[mac]; w != nil {
		return w
	}
	return j.byHardware[hardware]
}

// waiting is the Workflow that waits for a machine; nil if there is none.
func (j *jobs) waiting(mac [6]byte, hardware string) *job {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if w := j.find(mac, hardware); w != nil && (w.State == "" || w.State == "PENDING") {
		return w
	}
	return nil
}

// of is the Workflow of a machine, and whether Workflows are known.
func (j *jobs) of(mac [6]byte, hardware string, namespaces int) (*journal.Workflow, bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	w := j.find(mac, hardware)
	if w == nil {
		return nil, len(j.synced) >= namespaces
	}
	return &w.Workflow, true
}

// jobsPart is the store of one namespace, for its reflector.
type jobsPart struct {
	*jobs
	namespace string
	replaced  func()
}

var _ cache.ReflectorStore = (*jobsPart)(nil)

// Add implements cache.ReflectorStore.
func (p *jobsPart) Add(given any) error { return p.Update(given) }

// Update implements cache.ReflectorStore.
func (p *jobsPart) Update(given any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w, ok := given.(*workflow); ok && (len(p.all) < maxObjects || p.all[w.Namespace+"/"+w.Name] != nil) {
		p.all[w.Namespace+"/"+w.Name] = jobOf(w)
		p.arrange()
	}
	return nil
}

// Delete implements cache.ReflectorStore.
func (p *jobsPart) Delete(given any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w, ok := given.(*workflow); ok {
		delete(p.all, w.Namespace+"/"+w.Name)
		p.arrange()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (p *jobsPart) Replace(all []any, _ string) error {
	p.mu.Lock()
	for name := range p.all {
		if strings.HasPrefix(name, p.namespace+"/") {
			delete(p.all, name)
		}
	}
	for _, given := range all {
		if w, ok := given.(*workflow); ok && len(p.all) < maxObjects {
			p.all[w.Namespace+"/"+w.Name] = jobOf(w)
		}
	}
	p.arrange()
	p.synced[p.namespace] = true
	p.mu.Unlock()
	p.replaced()
	return nil
}

// Resync implements cache.ReflectorStore.
func (*jobsPart) Resync() error { return nil }
