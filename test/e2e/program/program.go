// Package program is what the lab's programs share: their main function, how they build the programs under test, the
// files of results.
package program

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// Main runs a program until it ends or is told to by SIGINT or SIGTERM, and exits. Its error is the last line of
// standard error, unless the flags or a child have reported it already.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err == nil {
		return
	}
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if _, child := errors.AsType[*exec.ExitError](err); !child {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
	}
	os.Exit(1)
}
