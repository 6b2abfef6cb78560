package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tally is the last line of "make test" and of CI for a log.
func tally(t *testing.T, log string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../scripts/tally")
	cmd.Stdin = strings.NewReader(log)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("failed to sum up: %v\n%s", err, out)
	}
	return string(out)
}

func TestTallyCountsAndNamesFlakyTests(t *testing.T) {
	for name, test := range map[string]struct{ log, want string }{
		"nothing": {"", "0 passed, 0 failed, 0 skipped, 0 flaky\n"},
		"two modules": {
			"DONE 512 tests, 3 skipped in 55.1s\nDONE 1 test in 1s\n",
			"510 passed, 0 failed, 3 skipped, 0 flaky\n",
		},
		"colours": {"\033[1mDONE\033[0m 2 tests in 1s\n", "2 passed, 0 failed, 0 skipped, 0 flaky\n"},
		"passed when run again": {
			"DONE 10 tests, 1 failure in 5s\n\nDONE 2 runs, 11 tests, 1 failure in 6s\n" +
				"FLAKY pkg/a.TestX (1 of 2 runs failed)\nDONE 3 tests in 1s\n",
			"13 passed, 0 failed, 0 skipped, 1 flaky: pkg/a.TestX\n",
		},
		"one flaky, one failed": {
			"DONE 10 tests, 2 failures in 5s\n\nDONE 3 runs, 13 tests, 4 failures in 6s\n" +
				"FLAKY pkg/a.TestX/sub (1 of 2 runs failed)\nFAILED pkg/b.TestY\n",
			"9 passed, 1 failed, 0 skipped, 1 flaky: pkg/a.TestX/sub\n",
		},
		"too many to run again": {
			"DONE 10 tests, 6 failures in 5s\nDONE 4 tests, 1 error in 1s\n",
			"8 passed, 7 failed, 0 skipped, 0 flaky\n",
		},
		"the chart and a cluster": {
			"Tests:       2 failed, 70 passed, 72 total\nDONE 5 tests in 1s\n" +
				"FLAKY e2e-kube/helm_install (1 of 2 runs failed)\ne2e-kube: 25 passed, 0 failed\n",
			"100 passed, 2 failed, 0 skipped, 1 flaky: e2e-kube/helm_install\n",
		},
		"no cluster": {
			"e2e-kube: 0 passed, 0 failed, 1 skipped: it needs root\n", "0 passed, 0 failed, 1 skipped, 0 flaky\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tally(t, test.log); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// A module with a test that fails the first time and one that always does, run as "make test" runs them.
func TestFlakyTestsAreNamed(t *testing.T) {
	gotestsum := os.Getenv("GOTESTSUM")
	if gotestsum == "" {
		t.Skip("needs gotestsum: make test has it")
	}
	module, script := t.TempDir(), "../../scripts/gotest"
	for name, content := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n",
		"x_test.go": `package x
import ("os"; "testing")
func TestFlaky(t *testing.T) {
	if f, err := os.OpenFile("seen", os.O_CREATE|os.O_EXCL, 0o600); err == nil { f.Close(); t.Fatal("once") }
}
func TestGood(t *testing.T) {}
`,
		"y_test.go": `package x
import "testing"
func TestBad(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Fatal("always") }) }
`,
	} {
		if err := os.WriteFile(filepath.Join(module, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	run := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), script, "--", "-count=1")
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOFLAGS=", "CI=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run()
	if err == nil {
		t.Errorf("a test that always fails is no failure:\n%s", out)
	}
	if got, want := tally(t, out), "1 failed, 0 skipped, 1 flaky: example.TestFlaky\n"; !strings.HasSuffix(got, want) {
		t.Errorf("%q does not end with %q:\n%s", got, want, out)
	}
	for _, name := range []string{"seen", "y_test.go"} {
		if err := os.Remove(filepath.Join(module, name)); err != nil {
			t.Fatal(err)
		}
	}
	out, err = run()
	if err != nil {
		t.Errorf("a test that passes when run again is a failure: %v", err)
	}
	if got, want := tally(t, out), "2 passed, 0 failed, 0 skipped, 1 flaky: example.TestFlaky\n"; got != want {
		t.Errorf("%q, want %q:\n%s", got, want, out)
	}
}

// Go ends a package after ten minutes, which on a busy machine are not enough for tests that are merely slow.
func TestPackagesHaveTimeOnABusyMachine(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "gotestsum")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for arguments, want := range map[string]string{
		"":                     "-- -timeout 60m",
		"-- -count=1":          "-- -count=1 -timeout 60m",
		"-- -race -timeout 5m": "-- -race -timeout 5m",
	} {
		cmd := exec.CommandContext(t.Context(), "../../scripts/gotest", strings.Fields(arguments)...)
		cmd.Env = append(os.Environ(), "GOTESTSUM="+fake)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), want+"\n") {
			t.Errorf("with %q gotestsum is told %q (%v), want %q", arguments, out, err, want)
		}
	}
}
