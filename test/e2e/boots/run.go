package boots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Options say which faults are staged, and with what machines.
type Options struct {
	Faults []Fault
	// Virtual tells which of the faults meet a virtual machine with real firmware; the others meet the Go machine. Nil:
	// none.
	Virtual func(Fault) bool
	// Media is what the machines boot.
	Media machine.Media
	// Dir receives the capture and, in "logs", the logs of everything.
	Dir string
	// Parallel is how many machines run at once. Default: all of a phase.
	Parallel int
	// Patience is how long nothing may move until a machine has met its fault, and how long the pod may then take to name
	// it. Default 90 s.
	Patience time.Duration
	// WireOnly asks the pod nothing: a fault is ok when the machine has met it.
	WireOnly bool
	// Done is called with each result. It may be nil.
	Done func(Result)
	// Logf tells progress. Default: silence.
	Logf func(format string, args ...any)
}

// Run stages the faults in one site and asks the pod about each machine. The error is about the site; a fault that is
// named wrongly is in the results, which have the order of the faults.
func Run(ctx context.Context, o Options) (results []Result, err error) {
	if o.Patience == 0 {
		o.Patience = 90 * time.Second
	}
	if o.Parallel == 0 {
		o.Parallel = len(o.Faults)
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.Done == nil {
		o.Done = func(Result) {}
	}
	if o.Virtual == nil {
		o.Virtual = func(Fault) bool { return false }
	}
	r := &stage{Options: o, watched: map[string]*watched{}, results: make([]Result, len(o.Faults))}
	for i, f := range o.Faults {
		m := machineOf(f, i)
		r.watched[m.MAC.String()] = &watched{machine: m}
	}
	if r.site, err = open(ctx, o, o.Faults, r.event); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	background, stop := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { r.followTink(background) })
	defer follower.Wait()
	defer stop()
	for phase := range phases {
		if !slices.ContainsFunc(o.Faults, func(f Fault) bool { return f.phase == phase }) {
			continue
		}
		if err := r.enter(phase); err != nil {
			return nil, err
		}
		if phase == withoutSmee {
			// Only machines without an answer show that a server is away: one boots meanwhile.
			off, _, err := r.power(ctx, Fault{}, &watched{machine: neighbour}, false)
			if err != nil {
				return nil, err
			}
			defer off()
		}
		r.play(ctx, phase)
	}
	select {
	case err := <-r.Failed():
		return r.results, err
	default:
		return r.results, ctx.Err()
	}
}

// stage is a run.
type stage struct {
	Options
	*site
	results []Result
	watched map[string]*watched // by Ethernet address
}

// watched is a machine and what is known of it so far.
type watched struct {
	machine lab.Machine
	mu      sync.Mutex
	seen    seen
}

// event takes what the wire shows.
func (r *stage) event(e observe.Event) {
	w := r.watched[e.Machine]
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.events = append(w.seen.events, e)
	w.seen.stream = w.seen.stream || e.Kind == observe.Stream
}

// followTink takes what the stand-in of Tink logs of workers that it refuses.
func (r *stage) followTink(ctx context.Context) {
	_ = lab.Tail(ctx, r.LogPath(lab.Tink), func(line string) bool { // it ends with ctx
		if !strings.Contains(line, `"worker refused"`) {
			return true
		}
		for mac, w := range r.watched {
			if strings.Contains(line, mac) {
				w.mu.Lock()
				w.seen.refused = true
				w.mu.Unlock()
			}
		}
		return true
	})
}

func (w *watched) shows(f Fault) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return f.shown(&w.seen)
}

// summary lists the events on the wire, for an error.
func (w *watched) summary() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	for _, e := range w.seen.events {
		if e.Kind != observe.Syslog {
			text += fmt.Sprintf("%s %s %s; ", e.Kind, e.Name, e.Detail)
		}
	}
	const most = 1500
	return text[max(0, len(text)-most):]
}

// play has the machines of a phase meet their faults, some at once.
func (r *stage) play(ctx context.Context, phase int) {
	places := make(chan struct{}, r.Parallel)
	var all sync.WaitGroup
	for i, f := range r.Faults {
		if f.phase != phase {
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			r.results[i] = r.meet(ctx, f, r.watched[machineOf(f, i).MAC.String()])
			r.Done(r.results[i])
		})
	}
	all.Wait()
}

// meet switches a machine on and asks about it until its fault is named, or patience ends.
func (r *stage) meet(ctx context.Context, f Fault, w *watched) (result Result) {
	result = Result{Fault: f.Name, Machine: "go", Expected: f.Cause}
	virtual := r.Virtual(f)
	if virtual {
		result.Machine = f.Firmware.String()
	}
	began := time.Now()
	defer func() { result.Seconds = time.Since(began).Seconds() }()
	off, waited, err := r.power(ctx, f, w, virtual)
	if err != nil {
		result.Trouble = err.Error()
		return result
	}
	defer off()
	const pause = 250 * time.Millisecond
	patience := progress.Patience{
		Quiet: r.Patience, Waited: waited,
		Signs: []func() string{func() string { return r.sniffer.Reached(w.machine.MAC.String()) }},
	}
	err = progress.Until(ctx, patience, pause, func(context.Context) error {
		if !w.shows(f) {
			return errors.New("the machine has not met its fault")
		}
		return nil
	})
	if err == nil && r.WireOnly {
		result.Said, result.OK = "-", true
		return result
	}
	if err == nil { // what the pod says has its own times, which this one allows for: nothing is a sign
		err = progress.Until(ctx, progress.Patience{Quiet: r.Patience}, pause, func(ctx context.Context) error {
			return r.named(ctx, f, w, began, &result)
		})
	}
	if err != nil {
		result.Trouble = err.Error() + "; the wire has shown: " + w.summary()
	}
	result.OK = err == nil
	return result
}

// named asks the pod what is the matter with a machine. The error says that it does not name the fault.
func (r *stage) named(ctx context.Context, f Fault, w *watched, began time.Time, result *Result) error {
	said := r.look(ctx, w.machine.MAC.String())
	if said.name != result.Said {
		r.Logf("%s: %s is said after %.1f s", f.Name, said.name, time.Since(began).Seconds())
	}
	result.Said, result.Text = said.name, said.text
	switch {
	case said.trouble != "":
		return errors.New(said.trouble)
	case said.name != f.Cause:
		return fmt.Errorf("it says %q", said.name)
	case !strings.Contains(said.text, f.Names):
		return fmt.Errorf("it does not name %s", f.Names)
	}
	return nil
}

// power switches a machine on. An emulator can tell how long it has waited for a processor.
func (r *stage) power(
	ctx context.Context, f Fault, w *watched, virtual bool,
) (off func(), waited func() time.Duration, err error) {
	name := w.machine.Name
	if virtual {
		proc, err := machine.Boot(r.Lab, w.machine, func(installer.Report) {})
		if err != nil {
			return nil, nil, err
		}
		return func() {
			if err := r.Kill(proc.Name()); err != nil {
				r.Logf("%s: %v", name, err)
			}
		}, proc.Starved, nil
	}
	log, err := os.Create(r.LogPath(name))
	if err != nil {
		return nil, nil, err
	}
	client := &goMachine{
		Lab: r.Lab, Machine: w.machine, Media: r.Media, Timeout: r.Patience,
		Report: func(installer.Report) {},
		Logger: slog.New(slog.NewJSONHandler(log, nil)),
	}
	if f.client != nil {
		f.client(client)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := client.Run(ctx)
		fmt.Fprintln(log, err)
		_ = log.Close()
	}()
	return func() { cancel(); <-ended }, nil, nil
}

// goMachine does on the wire what firmware does.
type goMachine = machine.Client
