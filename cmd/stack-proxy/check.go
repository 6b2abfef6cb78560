package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/route"
)

// check is the command that looks at a routes file and starts nothing.
func check(args []string, stdout, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet(name+" check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("f", "", "the routes file; default what "+prefix+"_ROUTES_FILE and "+prefix+"_PRESET say")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "%s check: unexpected argument %q: a file is given with -f\n", name, flags.Arg(0))
		return 2
	}
	if err := daemon.ParseEnv(prefix, &c); err != nil {
		fmt.Fprintf(stderr, "%s: failed to read settings: %v\n", name, err)
		return 1
	}
	if *file != "" {
		c.RoutesFile = *file
	}
	var faults []error
	if c.ArtifactsFile != "" {
		_, err := c.artifacts()
		faults = append(faults, err)
	}
	table, err := c.table()
	faults = append(faults, err)
	if err := errors.Join(faults...); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	if err := route.Write(stdout, table); err != nil {
		fmt.Fprintf(stderr, "%s: failed to print routes: %v\n", name, err)
		return 1
	}
	for _, each := range table.PassThroughs() {
		fmt.Fprintf(stderr, "Warning: %s.\n", each)
	}
	if err := feed.CheckKey(c.BootsKeyFile); c.BootsKeyFile != "" && err != nil {
		fmt.Fprintf(stderr, "Warning: stack-boots is told nothing: %v.\n", err)
	}
	return 0
}
