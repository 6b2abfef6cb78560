package journey

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/observe"
)

// Boot is a machine's boot as two saw it that share nothing: the sniffer on the machines' switch, and the pod.
type Boot struct {
	Machine string
	Wire    []Span // what the sniffer saw
	Pod     []Span // what the pod's API says
}

// Span is a step of a boot, in seconds since the first step began.
type Span struct {
	Step       string
	Begin, End float64
}

// What the two may differ by: their clocks are one, their places are not. An answer ends for the pod when the
// kernel has taken the last of it, and on the wire when the machine has acknowledged it.
const (
	toleranceSeconds = 0.2
	tolerancePart    = 0.05
)

// Boots asks the pod for the machines' boots and lays them beside what the sniffer saw. The pod hears of the last steps
// as late as the sniffer, and shows them some hundred milliseconds later: it is asked again until both agree, for some
// seconds.
func (j *Journey) Boots(ctx context.Context) (boots []Boot, err error) {
	for deadline := time.Now().Add(5 * time.Second); ; {
		boots, err = j.bootsNow(ctx)
		agree := err == nil && !slices.ContainsFunc(boots, func(b Boot) bool { return len(b.Differences()) > 0 })
		if agree || time.Now().After(deadline) {
			return boots, err
		}
		select {
		case <-ctx.Done():
			return boots, context.Cause(ctx)
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func (j *Journey) bootsNow(ctx context.Context) ([]Boot, error) {
	var boots []Boot
	for _, t := range j.travellers {
		mac := t.machine.MAC.String()
		pod, err := podSteps(ctx, j.Lab, mac)
		if err != nil {
			return nil, fmt.Errorf("failed to ask the pod for the boot of %s: %w", t.machine.Name, err)
		}
		j.mu.Lock()
		wire := wireSpans(j.boots.Steps(mac))
		j.mu.Unlock()
		boots = append(boots, Boot{Machine: t.machine.Name, Wire: wire, Pod: pod})
	}
	return boots, nil
}

func wireSpans(steps []observe.Step) []Span {
	var spans []Span
	for _, s := range steps {
		since := func(at time.Time) float64 { return at.Sub(steps[0].Begin).Seconds() }
		spans = append(spans, Span{Step: s.Name, Begin: since(s.Begin), End: since(s.End)})
	}
	return spans
}

// podSteps asks the admin port for the last boot of a machine.
func podSteps(ctx context.Context, l *lab.Lab, mac string) ([]Span, error) {
	var machine struct {
		Boots []struct {
			Steps []struct {
				Step  string    `json:"step"`
				Begin time.Time `json:"begin"`
				End   time.Time `json:"end"`
			} `json:"steps"`
		} `json:"boots"`
	}
	if err := ask(ctx, l, "/api/v1/boots/"+mac, &machine); err != nil {
		return nil, err
	}
	var spans []Span
	if len(machine.Boots) > 0 {
		steps := machine.Boots[0].Steps
		for _, s := range steps {
			since := func(at time.Time) float64 { return at.Sub(steps[0].Begin).Seconds() }
			spans = append(spans, Span{Step: s.Step, Begin: since(s.Begin), End: since(s.End)})
		}
	}
	return spans, nil
}

// Differences says where the two do not agree: on the steps, their order, or their times.
func (b Boot) Differences() []string { return b.DifferencesOver(toleranceSeconds) }

// DifferencesOver is Differences with another tolerance for times, in seconds: on a busy machine the sniffer, the pod
// and the machine wait for the processor in turns.
func (b Boot) DifferencesOver(seconds float64) (all []string) {
	names := func(spans []Span) string {
		var steps []string
		for _, s := range spans {
			steps = append(steps, s.Step)
		}
		return strings.Join(steps, " ")
	}
	b.Pod = b.inOrder()
	if wire, pod := names(b.Wire), names(b.Pod); wire != pod || wire == "" {
		return []string{fmt.Sprintf("%s: the wire shows the steps %q, the pod %q", b.Machine, wire, pod)}
	}
	for i, wire := range b.Wire {
		pod := b.Pod[i]
		for _, each := range []struct {
			what      string
			wire, pod float64
		}{{"begins", wire.Begin, pod.Begin}, {"ends", wire.End, pod.End}} {
			if math.Abs(each.wire-each.pod) > max(seconds, tolerancePart*each.wire) {
				all = append(all, fmt.Sprintf("%s: %s %s after %.2f s on the wire, %.2f s in the pod",
					b.Machine, wire.Step, each.what, each.wire, each.pod))
			}
		}
	}
	return all
}

// inOrder gives the pod's steps, and those that begin at one time, within the tolerance, in the wire's order.
func (b Boot) inOrder() []Span {
	place := func(s Span) int {
		return slices.IndexFunc(b.Wire, func(w Span) bool { return w.Step == s.Step })
	}
	pod := slices.Clone(b.Pod)
	for range pod {
		for i := 1; i < len(pod); i++ {
			if math.Abs(pod[i].Begin-pod[i-1].Begin) <= toleranceSeconds && place(pod[i]) < place(pod[i-1]) {
				pod[i-1], pod[i] = pod[i], pod[i-1]
			}
		}
	}
	return pod
}

// WriteBoots writes the steps of each boot as both saw them.
func WriteBoots(w io.Writer, boots []Boot) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range boots {
		fmt.Fprintf(table, "%s\tsniffer\tpod\n", b.Machine)
		for i := range max(len(b.Wire), len(b.Pod)) {
			cell := func(spans []Span) string {
				if i >= len(spans) {
					return "-"
				}
				return fmt.Sprintf("%s %.2f - %.2f s", spans[i].Step, spans[i].Begin, spans[i].End)
			}
			fmt.Fprintf(table, "\t%s\t%s\n", cell(b.Wire), cell(b.Pod))
		}
	}
	return table.Flush()
}
