// Command stack-doctor asks as a machine that boots from the network would, and says what is in the way, before a
// machine is there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/doctor"
)

const (
	summary = "ask as a machine that boots from the network would, and say what is in the way"
	notes   = `It sends DISCOVER and no REQUEST: no lease, no address on this host, no frame from another Ethernet
address. It needs the capability NET_RAW, and an interface on the machines' network; docs/stack-doctor.md says where.

Arguments are ports to ask, in place of a network: name=http://host:port/path, https://host:port/path?host=name,
tcp://host:port, grpc://host:port, tftp://host:port/file, dhcp://host:port?metrics=URL,
trust://host:port/path?machine=address&through=host:port. None of them needs a capability.

It exits with 0 where nothing is in the way, 1 for warnings, 2 for errors, 3 where it could not look.`
)

// interrupted is the exit code of a program that SIGINT ended.
const interrupted = 130

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "stack-doctor: %v (see stack-doctor --help)\n", err)
		return doctor.Blinded
	case s.version:
		fmt.Fprintf(stdout, "stack-doctor %s\n", daemon.Version())
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	ctx, restore := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer restore()
	if len(s.checks) > 0 {
		return ports(ctx, s.checks, stdout, stderr)
	}
	if !s.json {
		s.options.Progress = func(what string) { fmt.Fprintf(stderr, "... %s\n", doctor.Clean(what)) }
	}
	report := doctor.Run(ctx, s.options)
	if s.json {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = write(stdout, &report)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "stack-doctor: %v\n", err)
		return doctor.Blinded
	case ctx.Err() != nil && context.Cause(ctx) != context.DeadlineExceeded: //nolint:errorlint // the cause itself
		return interrupted
	}
	return report.Exit()
}
