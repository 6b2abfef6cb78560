package hardware

import (
	"context"
	"fmt"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/tinkerbell/stack/internal/kube"
	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

const program = "stack-boots"

// The reasons of Events.
const (
	reasonStuck  = "PXEStuck"  // a warning: the machine does not get on, and why
	reasonStep   = "PXEStep"   // a step has ended
	reasonBooted = "PXEBooted" // the boot has
)

// Bounds of Events. The library keeps a thousand that wait, and drops further ones.
const (
	requestsPerSecond, requestsAtOnce = 20, 50
	// Steps have a bound of their own, so that no number of them keeps warnings back.
	stepsPerSecond, stepsAtOnce = 5, 200
	// objectPerSecond and objectAtOnce are of one object and reason: a boot has some twelve steps.
	objectPerSecond, objectAtOnce = 1. / 60, 25
	// alikeAtMost is how many Events with one reason an object has within ten minutes before they become one.
	alikeAtMost = 30
	// messageRoom is the API's limit of 1,024 bytes without what the aggregator puts in front, in bytes.
	messageRoom = 1024 - 64
	// tryEvery is how long the library waits before it tries again, a dozen times, to send an Event.
	tryEvery = time.Second
	// warnEvery bounds the log.
	warnEvery = 10 * time.Minute
)

// coreScheme knows Events and Secrets alone.
var coreScheme = kube.Scheme(core.SchemeGroupVersion, map[string]runtime.Object{
	"Event": &core.Event{}, "EventList": &core.EventList{}, "Secret": &core.Secret{},
})

// CoreClient speaks Kubernetes' own group of the API, as far as Events and Secrets.
func CoreClient(config *rest.Config) (rest.Interface, error) {
	return kube.Client(config, program, core.SchemeGroupVersion, coreScheme)
}

// startEvents makes the broadcaster and the recorder of Events.
func (w *Watcher) startEvents() {
	w.events = record.NewBroadcaster(record.WithSleepDuration(tryEvery), record.WithContext(quiet(context.Background())),
		record.WithCorrelatorOptions(record.CorrelatorOptions{
			BurstSize: objectAtOnce, QPS: objectPerSecond, MaxEvents: alikeAtMost,
			SpamKeyFunc: func(e *core.Event) string {
				return strings.Join([]string{e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason}, "/")
			},
		}))
	w.recorder = w.events.NewRecorder(coreScheme, core.EventSource{Component: program, Host: w.options.Pod})
}

// Changed writes an Event where one is due, and never waits. It may be the journal's Options.Changed.
func (w *Watcher) Changed(c journal.Change) {
	var text, reason string
	eventType := core.EventTypeNormal
	switch {
	case c.Kind == journal.StepEnded:
		text, reason = stepMessage(c), reasonStep
	case c.Kind == journal.CauseChanged && c.Boot.IsStuck():
		text, eventType, reason = stuckMessage(c), core.EventTypeWarning, reasonStuck
	case c.Kind == journal.StateChanged && c.Boot.State == journal.Booted:
		text, reason = bootedMessage(c), reasonBooted
	default:
		return
	}
	on := w.objectOf(&c.Machine)
	switch {
	case on == nil:
	case reason == reasonStep && !w.steps.Allow():
		w.metrics.events.WithLabelValues(reason, limited).Inc()
	default:
		w.recorder.Event(on, eventType, reason, boot.Cut(boot.Clean([]byte(text)), messageRoom, "…"))
	}
}

// objectOf finds a machine's object, by any of its MACs; nil if there is none.
func (w *Watcher) objectOf(m *journal.MachineView) *core.ObjectReference {
	for _, text := range append([]string{m.MAC}, m.OtherMACs...) {
		if mac, ok := macOf(text); ok {
			for _, o := range find[*object](w.hardware, string(mac[:])) {
				return &core.ObjectReference{
					APIVersion: groupVersion.String(), Kind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID,
				}
			}
		}
	}
	return nil
}

func bootedMessage(c journal.Change) string {
	return fmt.Sprintf("%s booted in %.1f s", c.Machine.MAC, c.Boot.End.Sub(c.Boot.Begin).Seconds())
}

func stepMessage(c journal.Change) string {
	seconds := c.Step.End.Sub(c.Step.Begin).Seconds()
	text := fmt.Sprintf("%s: %s %s after %.1f s", c.Machine.MAC, c.Step.Step, c.Step.Result, seconds)
	if c.Step.From != "" {
		text += " from " + c.Step.From
	}
	if c.Step.Text != "" {
		text += ": " + c.Step.Text
	}
	return text
}

func stuckMessage(c journal.Change) string {
	cause := c.Boot.Cause
	return fmt.Sprintf("%s at %s: %s %s (%s)", c.Machine.MAC, c.Boot.At, cause.Text, cause.Remedy, cause.Name)
}

// sink sends Events to the API, and counts them.
type sink struct {
	ctx     context.Context //nolint:containedctx // the library hands none on
	client  rest.Interface
	metrics *Metrics
	log     *loglimit.Limiter
}

// Create implements record.EventSink.
func (s *sink) Create(e *core.Event) (*core.Event, error) {
	return s.send(e, s.client.Post().Namespace(e.Namespace).Resource("events").Body(e))
}

// Update implements record.EventSink.
func (s *sink) Update(e *core.Event) (*core.Event, error) {
	return s.send(e, s.client.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).Body(e))
}

// Patch implements record.EventSink.
func (s *sink) Patch(e *core.Event, change []byte) (*core.Event, error) {
	return s.send(e, s.client.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").
		Name(e.Name).Body(change))
}

func (s *sink) send(e *core.Event, request *rest.Request) (*core.Event, error) {
	stored, result := &core.Event{}, sent
	err := request.Do(s.ctx).Into(stored)
	if err != nil {
		result = failed
		s.log.Warn("failed to write events", func() []any { return []any{"error", err} })
	}
	s.metrics.events.WithLabelValues(e.Reason, result).Inc()
	return stored, err
}
