package kernels

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/guest"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// The programs boot machines on the kernels that users have. Each kernel boots once and runs all cases of package
// inside, and the tests of packages that depend on the kernel; KERNELS names the kernels, separated by commas, in
// place of those that are tested by default.
func TestKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it boots virtual machines")
	}
	for _, series := range All {
		t.Run(series.Name, func(t *testing.T) {
			names, ok := os.LookupEnv("KERNELS")
			if !ok && !series.Default || ok && !strings.Contains(","+names+",", ","+series.Name+",") {
				t.Skipf("needs KERNELS=%s", series.Name)
			}
			if missing := guest.Missing(series.Arch); missing != "" {
				t.Skipf("needs Debian's package %s", missing)
			}
			programs := build(t, series.Arch)
			t.Parallel()
			boot(t, series, programs)
		})
	}
}

// result is what a program of tests prints of a test that has ended.
var result = regexp.MustCompile(`^\s*--- (?:PASS|FAIL|SKIP): .*`)

func boot(t *testing.T, s Series, programs map[string]string) {
	cache, err := kernel.Cache(s.Package)
	if err != nil {
		t.Fatal(err)
	}
	boots, err := kernel.Fetch(t.Context(), cache, s.Package, t.Logf)
	if err != nil {
		t.Skipf("needs Debian's package %s: %v", s.Package.Name, err)
	}
	commands := s.commands()
	log := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	began := time.Now()
	statuses, err := guest.Run(t.Context(), guest.Machine{
		Kernel: boots, Arch: s.Arch, Programs: programs, Commands: commands, MiB: 768,
	}, t.TempDir(), func(line string) {
		fmt.Fprintln(file, line)
		if result.MatchString(line) {
			t.Log(line)
		}
	})
	t.Logf("kernel %s: %d commands in %.0f s", boots.Version, len(statuses), time.Since(began).Seconds())
	if err != nil {
		t.Error(err)
	}
	for i, status := range statuses {
		if status != 0 {
			t.Errorf("%s: exit status %d", strings.Join(commands[i].Args, " "), status)
		}
	}
	if t.Failed() {
		text, err := os.ReadFile(log)
		t.Logf("%s\n%v", text, err)
	}
}

// tested are the packages whose tests run in guests.
var tested = []struct {
	name, pkg string
	e2e       bool // a package of this module
	memory    int64
	args      []string
	part      bool // runs also on kernels that run some cases only
}{
	{name: "kernels.test", pkg: "./kernels/inside", e2e: true, part: true},
	{name: "hostlink.test", pkg: "./pkg/hostlink", args: []string{"-test.skip=^TestDocs$"}}, // which reads the repository
	{name: "cgroup.test", pkg: "./internal/cgroup", memory: 64 << 20},
	// The wall clock is the guest's own.
	{name: "artifacts.test", pkg: "./pkg/artifacts", args: clocks},
	{name: "admission.test", pkg: "./pkg/proxy/admission", args: clocks},
	{name: "tcp.test", pkg: "./pkg/proxy/tcp", args: clocks},
}

// clocks are the tests that set the wall clock.
var clocks = []string{"-test.run=ClockSetBack"}

// commands are what runs on a kernel.
func (s Series) commands() (commands []guest.Command) {
	for _, tests := range tested {
		args := append([]string{"/bin/" + tests.name, "-test.v", "-test.parallel=4"}, tests.args...)
		if s.Cases != "" && !tests.part {
			continue
		}
		if s.Cases != "" {
			args = append(args, "-test.run="+s.Cases)
		}
		commands = append(commands, guest.Command{Args: args, Memory: tests.memory})
	}
	return commands
}

// build builds what runs in guests.
func build(t *testing.T, arch string) (programs map[string]string) {
	t.Helper()
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	dir, e2e := filepath.Join(repo, "build", "bin", "guest-"+arch), filepath.Join(repo, "test", "e2e")
	programs = map[string]string{}
	if err := program.For(t.Context(), arch, repo, dir, "./cmd/broadcast-init", "./cmd/dhcp-relay"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"broadcast-init", "dhcp-relay"} {
		programs[name] = filepath.Join(dir, name)
	}
	for _, tests := range tested {
		module := repo
		if tests.e2e {
			module = e2e
		}
		if err := program.TestsFor(t.Context(), arch, module, dir, tests.name, tests.pkg); err != nil {
			t.Fatal(err)
		}
		programs[tests.name] = filepath.Join(dir, tests.name)
	}
	return programs
}
