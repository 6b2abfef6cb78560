// Command stack-boots shows where each machine's boot is, what it waits for, and why: what dhcp-relay and stack-proxy
// hear of it they tell here.
package main

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

import (
	"context"
	"io"
	"os"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
)

const (
	name   = "stack-boots"
	prefix = "STACK_BOOTS"
	notes  = `Commands:
  show [MACHINE]        show machines that boot, of a running stack-boots: all, or one by its MAC, address or name;
                        -o json prints the API's answers
  help [show]           this text, or the flags of show
Exit status 1: stack-boots does not answer, or refuses; 2: an argument is wrong; 4: nothing was heard of the machine.

dhcp-relay and stack-proxy are told where it is by DHCP_RELAY_BOOTS_ADDRESS and STACK_PROXY_BOOTS_ADDRESS.
docs/boots.md explains states, causes, metrics and Events.`
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "help" {
		args = append(args[1:], "-help")
	}
	if len(args) > 0 && args[0] == "show" {
		return show(args[1:], os.Getenv, stdout, stderr)
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
