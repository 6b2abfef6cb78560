// Command lab starts a provisioning site on this machine, shows how to look into it, and takes it down.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

const usage = `lab starts a provisioning site in network namespaces of this machine: a LAN, a node with the stack pod,
Smee and Hegel. It needs root and Go; nothing outside the namespaces is touched.

  lab up [flags]      start one, follow it until Ctrl-C, take it down
  lab keep [flags]    start one and leave it running
  lab build           build the modern Tinkerbell for labs and tests, once for this machine (some minutes), and print
                      its directory
  lab list            the labs of this machine
  lab down [-all] [ID...]
                      take kept labs down (the ones named; -all: also those that somebody is using) and remove what
                      killed ones left behind

Flags of up and keep:
`

func main() {
	lab.Init()
	program.Main("lab", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

func run(ctx context.Context, args []string, out io.Writer) error {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "up", "keep":
		return start(ctx, command, args, out)
	case "build":
		t, err := program.BuildTinkerbell(ctx, func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) })
		if err == nil {
			fmt.Fprintln(out, filepath.Dir(t.Server))
		}
		return err
	case "list":
		return list(out)
	case "down":
		return down(args, out)
	default:
		_, _, err := parse("lab", []string{"-help"}, out)
		return err
	}
}

// parse reads the flags of up and keep.
func parse(command string, args []string, out io.Writer) (lab.Options, bool, error) {
	opts := lab.Options{Env: map[string][]string{}}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, usage)
		flags.PrintDefaults()
	}
	quiet := flags.Bool("quiet", false, "no progress messages")
	flags.StringVar(&opts.Artifacts, "artifacts", "", "`directory` that is served on 8080 (default: an empty one)")
	flags.StringVar(&opts.RunDir, "rundir", "", "`directory` for logs (default: build/lab/ID in the repository)")
	flags.StringVar(&opts.Tink.Path, "tink", "", "`program` to run in place of Tink Server, listening on "+
		netip.AddrPortFrom(lab.TinkIP, 42113).String())
	flags.Func("without", "`program` to leave out: "+strings.Join(lab.Programs(), ", ")+"; may be repeated",
		func(name string) error {
			opts.Without = append(opts.Without, name)
			return nil
		})
	flags.Func("env", "`PROGRAM:NAME=value` to add to a program's environment; may be repeated", func(text string) error {
		name, variable, ok := strings.Cut(text, ":")
		if !ok || !strings.Contains(variable, "=") {
			return errors.New("want PROGRAM:NAME=value")
		}
		opts.Env[name] = append(opts.Env[name], variable)
		return nil
	})
	flags.Func("machine", "`NAME,MAC,IP` of a machine that Smee and Hegel know; may be repeated "+
		"(default m1,52:54:00:00:00:01,192.0.2.101)", func(text string) error {
		machine, err := parseMachine(text)
		opts.Machines = append(opts.Machines, machine)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return opts, false, err
	}
	if flags.NArg() > 0 {
		return opts, false, fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	if len(opts.Machines) == 0 {
		machine, err := parseMachine("m1,52:54:00:00:00:01,192.0.2.101")
		if err != nil {
			return opts, false, err
		}
		opts.Machines = []lab.Machine{machine}
	}
	return opts, *quiet, nil
}

func parseMachine(text string) (m lab.Machine, err error) {
	fields := strings.Split(text, ",")
	if len(fields) != 3 {
		return m, errors.New("want NAME,MAC,IP")
	}
	m.Name = fields[0]
	if m.MAC, err = net.ParseMAC(fields[1]); err != nil {
		return m, err
	}
	m.IP, err = netip.ParseAddr(fields[2])
	return m, err
}

func start(ctx context.Context, command string, args []string, out io.Writer) error {
	opts, quiet, err := parse(command, args, out)
	if err != nil {
		return err
	}
	if !quiet {
		opts.Logf = func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	}
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	fmt.Fprint(out, l.Guide())
	if command == "keep" {
		if err := l.Detach(); err != nil {
			return errors.Join(err, l.Down())
		}
		return nil
	}
	fmt.Fprintln(out, "\nCtrl-C takes it down.")
	for {
		select {
		case <-ctx.Done():
			return l.Down()
		case err := <-l.Failed():
			fmt.Fprintln(out, err)
		}
	}
}

func list(out io.Writer) error {
	infos, err := lab.List()
	if err != nil {
		return err
	}
	for _, info := range infos {
		fmt.Fprintf(out, "%s\t%s\tnode's pid %d\tlogs in %s\n", info.ID, info.State, info.Node, info.RunDir)
	}
	return nil
}

func down(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("down", flag.ContinueOnError)
	flags.SetOutput(out)
	all := flags.Bool("all", false, "also labs that somebody is using")
	if err := flags.Parse(args); err != nil {
		return err
	}
	removed, err := lab.Sweep()
	for _, id := range removed {
		fmt.Fprintf(out, "removed what was left of lab %s\n", id)
	}
	if err != nil {
		return err
	}
	ids := flags.Args()
	if len(ids) == 0 {
		infos, err := lab.List()
		if err != nil {
			return err
		}
		for _, info := range infos {
			if info.State == lab.Kept || *all {
				ids = append(ids, info.ID)
			}
		}
	}
	var faults []error
	for _, id := range ids {
		if err := lab.End(id); err != nil {
			faults = append(faults, err)
			continue
		}
		fmt.Fprintf(out, "took lab %s down\n", id)
	}
	return errors.Join(faults...)
}
