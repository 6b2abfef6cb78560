// Command stack-boots shows where each machine's boot is, what it waits for, and why: what dhcp-relay and stack-proxy
// hear of it they tell here.
package main

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
)

const (
	name   = "stack-boots"
	prefix = "STACK_BOOTS"
	notes  = `Commands:
  show [MACHINE]        show machines that boot, of a running stack-boots: all, or one by its MAC, address or name;
                        -w goes on with what changes, -o json prints the API's answers
  wait MACHINE          wait until it is in a state (-for booted); exit status 0: it is, 3: it failed,
                        124: the time is over (-timeout 20m)
  help [COMMAND]        this text, or the flags of a command
Exit status 1: stack-boots does not answer, or refuses; 2: an argument is wrong; 4: nothing was heard of the machine.

dhcp-relay and stack-proxy are told where it is by DHCP_RELAY_BOOTS_ADDRESS and STACK_PROXY_BOOTS_ADDRESS.
docs/boots.md explains states, causes, metrics and Events.`
)

// commands are those besides running.
var commands = map[string]func(
	ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer,
) error{"show": show, "wait": wait}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "help" {
		args = append(args[1:], "-help")
	}
	if len(args) > 0 {
		if command, known := commands[args[0]]; known {
			ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			defer restore()
			err := command(ctx, args[1:], os.Getenv, stdout, stderr)
			if code := statusOf(err); code != 0 && err.Error() != "" {
				fmt.Fprintf(cleanWriter{stderr}, "%s %s: %v\n", name, args[0], err)
			}
			return statusOf(err)
		}
	}
	var s settings
	program := daemon.Program{
		Name: name, Prefix: prefix, Config: &s, Notes: notes,
		Summary: "show where each machine's boot is, what it waits for, and why",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	log := s.OpenLog(stderr)
	defer log.Close()
	logger := log.Logger
	registry := admin.NewRegistry(log)
	v, err := newView(&s, logger, registry)
	if err != nil {
		logger.Error("failed to start", "error", err.Error())
		return 1
	}
	err = daemon.Run(context.Background(), daemon.Options{
		Logger: logger,
		Admin: admin.New(admin.Options{
			Address: s.AdminAddress, Registry: registry, Handlers: v.server.Handlers(), Hosts: s.Hosts,
		}),
		Tasks: v.tasks,
	})
	if err != nil {
		return 1 // Run has logged it
	}
	return 0
}
