// Package program is the main function of benches and soaks.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Main runs a program until it ends or is told to by SIGINT or SIGTERM, and exits. Its error goes to standard error,
// unless it is that of a child that has reported it already.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err == nil {
		return
	}
	if _, child := errors.AsType[*exec.ExitError](err); !child {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	os.Exit(1)
}
