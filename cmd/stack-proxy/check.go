package main

import (
	"flag"
	"fmt"
	"io"

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
	if err := daemon.ParseEnv(prefix, &c); err != nil {
		fmt.Fprintf(stderr, "%s: failed to read settings: %v\n", name, err)
		return 1
	}
	if *file != "" {
		c.RoutesFile = *file
	}
	table, err := c.table()
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	if err := route.Write(stdout, table); err != nil {
		fmt.Fprintf(stderr, "%s: failed to print routes: %v\n", name, err)
		return 1
	}
	return 0
}
