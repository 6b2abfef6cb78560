// Package daemon is what every program of the stack shares: settings from the environment, flags, the logger,
// build information, and a life from the first signal to the last drained connection.
//
// The admin port lives in the package admin below it, so that a program without one links no HTTP server.
package daemon

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// Program describes a program to its user: what it is and what may be set.
type Program struct {
	// Name is the executable's name.
	Name string
	// Summary is one sentence for --help.
	Summary string
	// Prefix begins the name of every variable, without the underscore: "DHCP_RELAY".
	Prefix string
	// Config points to the settings struct; see [ParseEnv].
	Config any
	// Flags are the program's own flags, if it has any. Most have none: settings are variables.
	Flags *flag.FlagSet
	// MaxArgs is how many arguments may follow the flags.
	MaxArgs int
	// Notes end --help: examples, files, signals.
	Notes string
}

// Exit codes of a program that does not start.
const (
	exitSettings = 1 // a setting is unknown, missing or impossible
	exitUsage    = 2 // a flag or argument is
)

// Start reads flags, then the environment into Config. Where the program should go no further (it was asked for
// help or for its version, or something is wrong, which has been said on stderr), done is true and code is the
// exit status.
func (p Program) Start(args []string, stdout, stderr io.Writer) (code int, done bool) {
	flags := p.Flags
	if flags == nil {
		flags = flag.NewFlagSet(p.Name, flag.ContinueOnError)
	}
	flags.Init(p.Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	version := flags.Bool("version", false, "print the build and exit")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		if err := p.help(stdout, flags); err != nil {
			fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
			return exitSettings, true
		}
		return 0, true
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v (see %s --help)\n", p.Name, err, p.Name)
		return exitUsage, true
	case *version:
		fmt.Fprintf(stdout, "%s %s\n", p.Name, Version())
		return 0, true
	case flags.NArg() > p.MaxArgs:
		fmt.Fprintf(stderr, "%s: unexpected argument %q (see %s --help)\n", p.Name, flags.Arg(p.MaxArgs), p.Name)
		return exitUsage, true
	}
	if err := ParseEnv(p.Prefix, p.Config); err != nil {
		fmt.Fprintf(stderr, "%s: failed to read settings: %v\n", p.Name, err)
		return exitSettings, true
	}
	return 0, false
}

func (p Program) help(w io.Writer, flags *flag.FlagSet) error {
	fmt.Fprintf(w, "%s: %s\n\nFlags:\n  -help\n    \tprint this text and exit\n", p.Name, p.Summary)
	flags.SetOutput(w)
	flags.PrintDefaults()
	fmt.Fprintf(w, "\nEnvironment:\n")
	if err := usage(w, p.Prefix, p.Config); err != nil {
		return err
	}
	if p.Notes != "" {
		fmt.Fprintf(w, "\n%s\n", p.Notes)
	}
	return nil
}

// version and commit are set by the linker: -X github.com/tinkerbell/stack/pkg/daemon.version=v1.2.3.
var version, commit string

// Version is the build in one line: version, commit, Go and platform.
func Version() string {
	v, revision := BuildInfo()
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// BuildInfo is the version that was built and the commit it was built from; "unknown" where the build does not say.
func BuildInfo() (v, revision string) {
	v, revision = version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" && revision == "" {
				revision = setting.Value
			}
		}
	}
	return cmp.Or(v, "unknown"), cmp.Or(revision, "unknown")
}
