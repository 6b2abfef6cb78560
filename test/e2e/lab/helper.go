package lab

import (
	"fmt"
	"os"
	"os/exec"
)

// helperName is argv[0] of the lab's own processes, which are the calling program started again.
const helperName = "stack-lab"

// initialised tells that Init was called: without it a helper would run the whole program again.
var initialised bool

// Init runs the helper that the process was started as, if it was, and then ends the process. Call it first in
// main or TestMain.
func Init() {
	initialised = true
	if len(os.Args) < 2 || os.Args[0] != helperName {
		return
	}
	helpers := map[string]func([]string) error{
		"janitor": janitor,
		"node":    nodeInit,
		"exec":    sandboxExec,
		"dns":     serveDNS,
		"ra":      serveRA,
		"forward": serveForward,
	}
	job, ok := helpers[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: no such helper: %s\n", helperName, os.Args[1])
		os.Exit(2)
	}
	if err := job(os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", helperName, os.Args[1], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helper is a command that runs one of the jobs.
func helper(job string, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("failed to find own executable: %w", err)
	}
	return &exec.Cmd{Path: self, Args: append([]string{helperName, job}, args...), Env: []string{}}, nil
}
