// guest runs a static program in a virtual machine with a kernel of Debian's, in a cgroup (v2) that limits its memory.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/guest"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/kernels"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() { program.Main("guest", run) }

func run(ctx context.Context) error {
	name := flag.String("kernel", "6.1", "`series` of the kernel")
	memory := flag.Int64("memory", 0, "`MiB` that the program may use; 0: no limit")
	machine := flag.Int("machine", 512, "`MiB` of the virtual machine")
	modules := flag.String("modules", "", "more `modules` of the kernel, separated by commas")
	root := flag.String("root", "", "`directory` whose files the guest has, at the same paths")
	shift := flag.Int("shift", 3, "an instruction takes two to the power of `N` ns of the guest's time")
	with := flag.String("with", "", "more `files` that the guest has in its /bin, separated by commas")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: guest [flags] PROGRAM [ARGUMENT...]\n\n"+
			"PROGRAM is static, such as CGO_ENABLED=0 go test -c makes it. It runs as root.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	series, err := kernels.Find(*name)
	if err != nil {
		return err
	}
	if *modules != "" {
		series.Package.Modules = append(slices.Clone(series.Package.Modules), strings.Split(*modules, ",")...)
	}
	dir, err := kernel.Cache(series.Package)
	if err != nil {
		return err
	}
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	boots, err := kernel.Fetch(ctx, dir, series.Package, logf)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "guest-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	file := filepath.Base(flag.Arg(0))
	programs := map[string]string{file: flag.Arg(0)}
	for path := range strings.SplitSeq(*with, ",") {
		if path != "" {
			programs[filepath.Base(path)] = path
		}
	}
	statuses, err := guest.Run(ctx, guest.Machine{
		Kernel: boots, Arch: series.Arch, Programs: programs, Root: *root, MiB: *machine, Shift: *shift,
		Commands: []guest.Command{{
			Args: append([]string{"/bin/" + file}, flag.Args()[1:]...), Memory: *memory << 20,
		}},
	}, work, func(line string) { fmt.Println(line) })
	if err == nil && statuses[0] != 0 {
		err = fmt.Errorf("%s: exit status %d", file, statuses[0])
	}
	return err
}
