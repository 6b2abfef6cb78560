// Command storm-machines boots machines by a plan, in the network namespace that it is started in, and says on standard
// output how far each comes. See test/e2e/storm, which starts it.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

func main() {
	program.Main("storm-machines", func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("got %d arguments, want the file of a plan", len(args))
	}
	plan, err := machines.ReadPlan(args[0])
	if err != nil {
		return err
	}
	debug.SetGCPercent(800) // the machines share two cores with what they measure
	return machines.Run(ctx, plan, os.Stdout)
}
