package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Task is one job of a program that lasts as long as the program does.
type Task interface {
	// Run does the job until ctx is done, then drains what is under way and returns nil.
	Run(ctx context.Context) error
	// Ready is nil when the job can be done now, else the reason why not. It may be called at any time.
	Ready() error
	// String names the job in logs and in the answer of /readyz.
	String() string
}

// Admin is the task behind the admin port. It is told what readiness means before it runs, and it outlives the
// other tasks, so that a drain can be watched.
type Admin interface {
	Task
	// Open binds the port, so that a taken one is an error before anything has begun.
	Open(ctx context.Context) error
	// Probe sets what /readyz asks.
	Probe(ready func() error)
}

// Options are what [Run] needs.
type Options struct {
	// Logger may be nil.
	Logger *slog.Logger
	// Admin may be nil.
	Admin Admin
	// Tasks are started together; the first to fail ends all.
	Tasks []Task
	// Helpers run until the last of the tasks has ended, its drain included. The tasks do their work without them: one
	// that fails is logged, ends nothing, and never makes the program unready.
	Helpers []Task
	// Grace is how long the tasks go on as before once the program is told to end, and are ready as before: others need
	// that time to learn of the end. Leave is called when it begins; nil is nothing to do.
	Grace time.Duration
	Leave func()
	// DrainTime is how long the tasks may take to drain, as they are when the drain begins; nil is no time.
	DrainTime func() time.Duration
}

// drainReserve is what a drain may take beyond DrainTime: closing what is left, and the admin port's last scrape.
const drainReserve = 3 * time.Second

// errDrainHangs is a drain that takes longer than the tasks said.
var errDrainHangs = errors.New("the drain did not end in time")

// errDraining is why a program whose tasks were told to end is not ready.
var errDraining = errors.New("draining")

// Run runs the tasks until ctx is done or a SIGTERM or SIGINT arrives, and for [Options].Grace more, or until a task
// fails, and returns when every task has returned. A task that takes longer than [Options].DrainTime and 3 s to do so
// is left running: the program ends without it. A second signal ends the process at once.
func Run(ctx context.Context, o Options) error {
	told, restore := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer restore()
	ctx, tell := context.WithCancelCause(context.WithoutCancel(ctx))
	// The default action is back before anybody sees that the end has begun: the second signal kills.
	defer context.AfterFunc(told, func() {
		restore()
		tell(context.Cause(told))
	})()
	return run(ctx, o)
}

// run is Run without the signals.
func run(ctx context.Context, o Options) error {
	logger := o.Logger
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	if o.Admin != nil {
		if err := o.Admin.Open(ctx); err != nil {
			logger.Error("failed to start", "error", err)
			return err
		}
	}
	tasksCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	group, groupCtx := errgroup.WithContext(tasksCtx)
	besideCtx, stopBeside := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBeside()
	var working sync.WaitGroup
	for _, task := range o.Tasks {
		working.Add(1)
		group.Go(func() error {
			defer working.Done()
			return runTask(groupCtx, task)
		})
	}
	if o.Admin != nil {
		o.Admin.Probe(func() error { return ready(groupCtx, o.Tasks) })
		group.Go(func() error { return runTask(besideCtx, o.Admin) })
	}
	for _, helper := range o.Helpers {
		group.Go(func() error {
			if err := runTask(besideCtx, helper); err != nil {
				logger.Error("helper failed", "helper", helper.String(), "error", err)
			}
			return nil
		})
	}
	group.Go(func() error {
		working.Wait()
		stopBeside()
		return nil
	})

	version, commit := BuildInfo()
	logger.Info("started", "version", version, "commit", commit)
	select {
	case <-ctx.Done():
		o.leave(groupCtx, logger, context.Cause(ctx))
		end(context.Cause(ctx))
	case <-groupCtx.Done():
	}
	start := time.Now()
	logger.Info("draining", "cause", context.Cause(groupCtx))
	patience := drainReserve
	if o.DrainTime != nil {
		patience += o.DrainTime()
	}
	if err := waitFor(group, patience); err != nil {
		logger.Error("stopped", "error", err, "drain_seconds", time.Since(start).Seconds())
		return err
	}
	logger.Info("stopped", "drain_seconds", time.Since(start).Seconds())
	return nil
}

// leave lets the grace pass, unless a task fails meanwhile.
func (o *Options) leave(working context.Context, logger *slog.Logger, cause error) {
	if o.Grace <= 0 {
		return
	}
	logger.Info("still serving", "cause", cause, "grace_seconds", o.Grace.Seconds())
	if o.Leave != nil {
		o.Leave()
	}
	select {
	case <-time.After(o.Grace):
	case <-working.Done():
	}
}

// waitFor waits until the group has ended, but not for ever.
func waitFor(group *errgroup.Group, patience time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return errDrainHangs
	}
}

// runTask holds a task to its word: it ends when it is told to, or with an error.
func runTask(ctx context.Context, task Task) error {
	if err := task.Run(ctx); err != nil {
		return fmt.Errorf("failed to run %s: %w", task, err)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("failed to run %s: ended without being asked to", task)
	}
	return nil
}

// ready joins the reasons of all the tasks that are not ready.
func ready(ctx context.Context, tasks []Task) error {
	if ctx.Err() != nil {
		return errDraining
	}
	var reasons []error
	for _, task := range tasks {
		if err := task.Ready(); err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w", task, err))
		}
	}
	return errors.Join(reasons...)
}
