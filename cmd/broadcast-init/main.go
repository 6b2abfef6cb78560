// Command broadcast-init gives its pod an interface that receives the broadcasts of the node's provisioning network.
package main

import (
	"flag"
	"io"
	"os"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

const notes = `It needs the capability NET_ADMIN and hostPID: true in the pod, and nothing else.
In "ip netns exec" as in a pod, the parent is an interface of process 1's network, or of the process' in HOST_PID.
Run it again at will: what is right stays, and what it did not make is never touched.
Exit status: 0 done, 1 failed, 2 wrong usage.`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	dryRun := flags.Bool("dry-run", false, "print what would be done, and do nothing")
	program := daemon.Program{
		Name: "broadcast-init", Prefix: prefix, Config: &c, Flags: flags, Notes: notes,
		Summary: "make an interface in this pod that receives the broadcasts of the node's network",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	log := c.OpenLog(stderr)
	defer log.Close()
	logger := log.Logger
	var err error
	if *dryRun {
		err = plan(c, stdout)
	} else {
		err = ensure(c, logger)
	}
	if err != nil {
		logger.Error("failed to make listener", "cause", hostlink.CauseOf(err).String(), "error", err.Error())
		return 1
	}
	return 0
}
