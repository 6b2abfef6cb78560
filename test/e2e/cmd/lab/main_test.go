package main

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

func TestBadInput(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"up", "surplus"}, `unknown argument "surplus"`},
		{[]string{"up", "-machine", "m1"}, "want NAME,MAC,IP"},
		{[]string{"up", "-machine", "m1,nonsense,192.0.2.101"}, "invalid MAC address"},
		{[]string{"up", "-env", "smee"}, "want PROGRAM:NAME=value"},
		{[]string{"down", "ffffff"}, "failed to end lab ffffff"},
	} {
		var out strings.Builder
		err := run(t.Context(), test.args, &out)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			if err != nil && os.Geteuid() != 0 && test.args[0] == "down" {
				continue // not root: it fails earlier
			}
			t.Errorf("%v: got error %v, want %q", test.args, err, test.want)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), nil, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "lab keep") {
		t.Errorf("no arguments: got error %v and %q, want the help", err, &out)
	}
}

// TestKeep leaves a lab running, finds it in the list and takes it down.
func TestKeep(t *testing.T) {
	if err := lab.Preflight(); errors.Is(err, lab.ErrUnsupported) {
		t.Skip(err)
	}
	args := []string{"keep", "-rundir", t.TempDir()}
	for _, program := range []string{lab.Hegel, lab.BroadcastInit, lab.DHCPRelay, lab.StackProxy} {
		args = append(args, "-without", program)
	}
	var out strings.Builder
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	_, rest, _ := strings.Cut(out.String(), "go run ./cmd/lab down ")
	id, _, ok := strings.Cut(rest, " ")
	if !ok {
		t.Fatalf("it does not say how to take it down: %s", &out)
	}
	t.Cleanup(func() { _ = lab.End(id) })
	listed := func() string {
		var out strings.Builder
		if err := run(t.Context(), []string{"list"}, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := listed(); !strings.Contains(got, id+"\tkept\t") {
		t.Errorf("list: got %q, want lab %s kept", got, id)
	}
	if err := run(t.Context(), []string{"down", id}, &out); err != nil {
		t.Error(err)
	}
	if got := listed(); strings.Contains(got, id) {
		t.Errorf("list after down: got %q", got)
	}
}
