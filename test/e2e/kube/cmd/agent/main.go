// Command agent asks a Tink Server for its worker's workflow, as a machine's agent does, plays every action of it and
// reports each. It prints a line for each action.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/progress"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

func main() {
	server := flag.String("server", "192.0.2.2:42113", "`address` of Tink Server")
	worker := flag.String("worker", "52:54:00:00:00:01", "the worker's `id`")
	quiet := flag.Duration("quiet", 30*time.Second, "how long to wait for the workflow, and for each answer")
	flag.Parse()
	if err := run(*server, *worker, *quiet); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run gives up when nothing has moved for a time: no workflow, no action that Tink Server takes note of.
func run(server, worker string, quiet time.Duration) error {
	ctx, watch := progress.Begin(context.Background(), progress.Patience{Quiet: quiet})
	defer watch.End()
	client, err := tink.Dial(server)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		contexts, err := client.Contexts(ctx, worker)
		if err != nil {
			return fmt.Errorf("failed to ask for workflows: %w", watch.Why(ctx, err))
		}
		if len(contexts) > 0 {
			return watch.Why(ctx, play(ctx, watch, client, worker, contexts[0].WorkflowID))
		}
		select {
		case <-ctx.Done():
			return errors.New("failed to get a workflow: there is none for " + worker)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func play(ctx context.Context, watch *progress.Watch, client *tink.Client, worker, workflow string) error {
	actions, err := client.Actions(ctx, workflow)
	if err != nil {
		return fmt.Errorf("failed to get actions of %s: %w", workflow, err)
	}
	watch.Moved("workflow " + workflow)
	for _, action := range actions {
		for _, state := range []tink.State{tink.Running, tink.Success} {
			err := report(ctx, client, tink.ActionStatus{
				WorkflowID: workflow, TaskName: action.TaskName, ActionName: action.Name, WorkerID: worker, Status: state,
			})
			if err != nil {
				return fmt.Errorf("failed to report action %s: %w", action.Name, err)
			}
			watch.Moved(fmt.Sprintf("action %s was reported, state %d", action.Name, state))
		}
		fmt.Printf("%s: %s %s\n", workflow, action.Name, action.Image)
	}
	return nil
}

// report tries again, as agents do: Tink Server refuses a report when its view of the workflow is a moment old.
func report(ctx context.Context, client *tink.Client, status tink.ActionStatus) error {
	for {
		err := client.Report(ctx, status)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(300 * time.Millisecond):
		}
	}
}
