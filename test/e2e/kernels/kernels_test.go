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

// The programs boot machines on the kernels that users have. Each kernel boots once and runs all cases of package inside, and
// the tests of packages that depend on the kernel; KERNELS names the kernels, separated by commas, in place of those that
// are tested by default.
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
			t.Parallel()
			boot(t, series)
		})
	}
}

// result is what a program of tests prints of a test that has ended.
var result = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+)`)

func boot(t *testing.T, s Series) {
	if missing := guest.Missing(s.Arch); missing != "" {
		t.Skipf("needs Debian's package %s", missing)
	}
	cache, err := kernel.Cache(s.Package)
	if err != nil {
		t.Fatal(err)
	}
	boots, err := kernel.Fetch(t.Context(), cache, s.Package, t.Logf)
	if err != nil {
		t.Skipf("needs Debian's package %s: %v", s.Package.Name, err)
	}
	programs, commands := build(t, s)
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
		if found := result.FindStringSubmatch(line); found != nil {
			t.Log(found[1], found[2])
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

// build builds what runs in a guest.
func build(t *testing.T, s Series) (programs map[string]string, commands []guest.Command) {
	t.Helper()
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(repo, "build", "bin", "guest-"+s.Arch)
	programs = map[string]string{}
	if err := guest.Build(t.Context(), s.Arch, repo, dir, "./cmd/broadcast-init", "./cmd/dhcp-relay"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"broadcast-init", "dhcp-relay"} {
		programs[name] = filepath.Join(dir, name)
	}
	for _, tests := range []struct {
		name, module, pkg string
		memory            int64
	}{
		{"kernels", filepath.Join(repo, "test", "e2e"), "./kernels/inside", 0},
		{"hostlink", repo, "./pkg/hostlink", 0},
		{"cgroup", repo, "./internal/cgroup", 64 << 20},
	} {
		name := tests.name + ".test"
		programs[name] = filepath.Join(dir, name)
		if err := guest.BuildTest(t.Context(), s.Arch, tests.module, programs[name], tests.pkg); err != nil {
			t.Fatal(err)
		}
		args := []string{"/bin/" + name, "-test.v", "-test.parallel=4"}
		if s.Cases != "" && tests.name == "kernels" {
			args = append(args, "-test.run="+s.Cases)
		}
		commands = append(commands, guest.Command{Args: args, Memory: tests.memory})
	}
	return programs, commands
}
