package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
)

// Beside are tasks with helpers, which run until the last of the tasks has ended, its drain included. The program does
// its work without them: one that fails is logged, ends nothing, and never makes the process unready. All that is
// returned has to run.
func Beside(tasks []Task, logger *slog.Logger, helpers ...Task) []Task {
	if len(helpers) == 0 {
		return tasks
	}
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	working := new(sync.WaitGroup)
	working.Add(len(tasks))
	all := make([]Task, 0, len(tasks)+1)
	for _, task := range tasks {
		all = append(all, helped{task, working})
	}
	return append(all, &helping{working: working, logger: logger, helpers: helpers})
}

// helped is a task that says when it has ended.
type helped struct {
	Task
	working *sync.WaitGroup
}

// Run implements Task.
func (h helped) Run(ctx context.Context) error {
	defer h.working.Done()
	return h.Task.Run(ctx)
}

// helping is the task of all helpers.
type helping struct {
	working *sync.WaitGroup
	logger  *slog.Logger
	helpers []Task
}

// errEnded is a helper that ends without being asked to.
var errEnded = errors.New("ended without being asked to")

// Run implements Task.
func (h *helping) Run(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var group sync.WaitGroup
	for _, helper := range h.helpers {
		group.Go(func() {
			err := helper.Run(life)
			if err == nil && life.Err() == nil {
				err = errEnded
			}
			if err != nil {
				h.logger.Error("helper failed", "helper", helper.String(), "error", err.Error())
			}
		})
	}
	h.working.Wait()
	<-ctx.Done() // the end of a task is an error, or that of all
	stop()
	group.Wait()
	return nil
}

// Ready implements Task.
func (*helping) Ready() error { return nil }

// String implements Task.
func (*helping) String() string { return "helpers" }
