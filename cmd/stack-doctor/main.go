// Command stack-doctor asks as a machine that boots from the network would, and says what is in the way, before a
// machine is there.
package main

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/bundle"
)

const notes = `It sends DISCOVER and no REQUEST: no lease, no address on this host, no frame from another Ethernet
address. It needs the capability NET_RAW, and an interface on the machines' network; docs/stack-doctor.md says where.

It exits with 0 where nothing is in the way, 1 for warnings, 2 for errors, 3 where it could not look.`

// prefix begins the names of all variables.
const prefix = "STACK_DOCTOR"

// interrupted is the exit code of a program that SIGINT ended.
const interrupted = 130

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	flags := newFlags()
	program := daemon.Program{
		Name: "stack-doctor", Prefix: prefix, Config: &s, Flags: flags.set, Notes: notes,
		Summary: "ask as a machine that boots from the network would, and say what is in the way",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		if code != 0 {
			return doctor.Blind
		}
		return 0
	}
	flags.over(&s)
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer restore()
	if len(s.Checks) > 0 {
		return ports(ctx, &s, stdout, stderr)
	}
	options, err := s.options()
	if err != nil {
		fmt.Fprintf(stderr, "stack-doctor: %v (see stack-doctor --help)\n", err)
		return doctor.Blind
	}
	if !s.JSON {
		options.Progress = func(what string) { fmt.Fprintf(stderr, "... %s\n", clean(what)) }
	}
	var frames *bundle.Recorder
	if s.Bundle != "" {
		frames = bundle.NewRecorder()
		options.Seen = frames.See
	}
	report := doctor.Run(ctx, options)
	if s.JSON {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = write(stdout, &report)
	}
	if err == nil && frames != nil {
		err = pack(&s, &report, frames)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "stack-doctor: %v\n", err)
		return doctor.Blind
	case ctx.Err() != nil && context.Cause(ctx) != context.DeadlineExceeded: //nolint:errorlint // the cause itself
		return interrupted
	}
	return report.Exit()
}
