package hardware

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/time/rate"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	recordutil "k8s.io/client-go/tools/record/util"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// The reasons of Events.
const (
	reasonStuck  = "PXEStuck"  // a warning: the machine does not get on, and why
	reasonStep   = "PXEStep"   // a step has ended
	reasonBooted = "PXEBooted" // the boot has
)

// Bounds of Events. Warnings have their own, so that no number of steps keeps them back.
const (
	eventsPerSecond, eventsAtOnce = 20, 50 // requests to the API
	stepsPerSecond, stepsAtOnce   = 5, 200
	stuckPerSecond, stuckAtOnce   = 10, 500
	// objectPerSecond and objectAtOnce are of one object and reason: a boot has some twelve steps.
	objectPerSecond, objectAtOnce = 1. / 60, 25
	// alikeAtMost is how many Events with one reason an object has within ten minutes before they become one.
	alikeAtMost = 30
	// messageRoom is the API's limit of 1,024 bytes without what the aggregator puts in front, in bytes.
	messageRoom = 1024 - 64
	maxTries    = 5
	// warnEvery bounds the log.
	warnEvery = 10 * time.Minute
)

// coreScheme knows Events and Secrets alone.
var coreScheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	meta.AddToGroupVersion(s, meta.SchemeGroupVersion)
	meta.AddToGroupVersion(s, core.SchemeGroupVersion)
	s.AddKnownTypes(core.SchemeGroupVersion, &core.Event{}, &core.EventList{}, &core.Secret{})
	return s
}()

// events writes Events: client-go's correlator aggregates and limits them by object; a queue, a rate and one goroutine
// bound them in all.
type events struct {
	log     *loglimit.Limiter
	metrics *Metrics
	pod     string

	steps, stuck        chan *core.Event
	stepRate, stuckRate *rate.Limiter
	correlator          *record.EventCorrelator
}

func newEvents(log *slog.Logger, metrics *Metrics, pod string) *events {
	return &events{
		log: loglimit.New(log, 1, warnEvery), metrics: metrics, pod: pod,
		steps: make(chan *core.Event, stepsAtOnce), stuck: make(chan *core.Event, stuckAtOnce),
		stepRate:  rate.NewLimiter(stepsPerSecond, stepsAtOnce),
		stuckRate: rate.NewLimiter(stuckPerSecond, stuckAtOnce),
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
			BurstSize: objectAtOnce, QPS: objectPerSecond, MaxEvents: alikeAtMost,
			SpamKeyFunc: func(e *core.Event) string {
				return strings.Join([]string{e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Reason}, "/")
			},
		}),
	}
}

// Changed queues an Event where one is due, and never waits. It may be the journal's Options.Changed.
func (w *Watcher) Changed(c journal.Change) {
	var text, eventType, reason string
	switch {
	case c.Kind == journal.StepEnded:
		text, eventType, reason = stepMessage(c), core.EventTypeNormal, reasonStep
	case c.Kind == journal.CauseChanged && c.Boot.IsStuck():
		text, eventType, reason = stuckMessage(c), core.EventTypeWarning, reasonStuck
	case c.Kind == journal.StateChanged && c.Boot.State == journal.Booted:
		text, eventType, reason = bootedMessage(c), core.EventTypeNormal, reasonBooted
	default:
		return
	}
	if on := w.objectOf(&c.Machine); on != nil {
		w.events.add(on, c.At, eventType, reason, text)
	}
}

// objectOf finds a machine's object, by any of its MACs; nil if there is none.
func (w *Watcher) objectOf(m *journal.MachineView) *entry {
	for _, text := range append([]string{m.MAC}, m.OtherMACs...) {
		if mac, ok := macOf(text); ok {
			if on, _ := w.index.of(mac); on != nil {
				return on
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

// message makes a text fit for an Event: no control characters, valid, and not too long.
func message(text string) string {
	return boot.Cut(boot.Clean([]byte(text)), messageRoom, "…")
}

// add queues an Event, or counts it as limited.
func (e *events) add(on *entry, at time.Time, eventType, reason, text string) {
	queue, limit := e.steps, e.stepRate
	if eventType == core.EventTypeWarning {
		queue, limit = e.stuck, e.stuckRate
	}
	if !limit.Allow() {
		e.metrics.events.WithLabelValues(reason, limited).Inc()
		return
	}
	stamp := meta.NewTime(at)
	event := &core.Event{
		ObjectMeta: meta.ObjectMeta{
			Namespace: on.namespace, Name: recordutil.GenerateEventName(on.name, time.Now().UnixNano()),
		},
		InvolvedObject: core.ObjectReference{
			APIVersion: groupVersion.String(), Kind: kind, Namespace: on.namespace, Name: on.name, UID: on.uid,
		},
		Reason: reason, Message: message(text), Type: eventType, Count: 1, FirstTimestamp: stamp, LastTimestamp: stamp,
		Source:              core.EventSource{Component: "stack-boots", Host: e.pod},
		ReportingController: "tinkerbell.org/stack-boots", ReportingInstance: e.pod,
	}
	select {
	case queue <- event:
	default:
		e.metrics.events.WithLabelValues(reason, limited).Inc()
	}
}

// run writes what is queued, warnings first, until ctx is done.
func (e *events) run(ctx context.Context, c rest.Interface) {
	for ctx.Err() == nil {
		select {
		case event := <-e.stuck:
			e.write(ctx, c, event)
			continue
		default:
		}
		select {
		case <-ctx.Done():
		case event := <-e.stuck:
			e.write(ctx, c, event)
		case event := <-e.steps:
			e.write(ctx, c, event)
		}
	}
}

// write sends one Event, or adds to one that is there. Where the API does not answer, it is tried again.
func (e *events) write(ctx context.Context, c rest.Interface, event *core.Event) {
	result := limited
	defer func() { e.metrics.events.WithLabelValues(event.Reason, result).Inc() }()
	due, err := e.correlator.EventCorrelate(event)
	if err != nil || due.Skip {
		return
	}
	result = failed
	pause := backoff.Backoff{First: firstWait, Most: mostWait}
	for try := 1; ; try++ {
		stored, err := send(ctx, c, due)
		switch {
		case err == nil:
			e.correlator.UpdateState(stored)
			result = sent
			return
		case ctx.Err() != nil:
			return
		case apierrors.ReasonForError(err) != meta.StatusReasonUnknown || try == maxTries:
			e.log.Warn("failed to write events", func() []any { return []any{"error", err} })
			return
		}
		pause.Wait(ctx)
	}
}

func send(ctx context.Context, c rest.Interface, due *record.EventCorrelateResult) (*core.Event, error) {
	stored, event := &core.Event{}, due.Event
	if event.Count > 1 {
		err := c.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).
			Body(due.Patch).Do(ctx).Into(stored)
		if err == nil || !apierrors.IsNotFound(err) {
			return stored, err
		}
	}
	event.ResourceVersion = ""
	return stored, c.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Into(stored)
}
