package daemon_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/daemon"
)

type newer struct{ Kept string }

func (*newer) Removed() map[string]string { return map[string]string{"GONE": "leave it out"} }

// A variable of a former version stops the start with what to do about it, beside all other faults.
func TestRemovedVariablesAreNamedWithARemedy(t *testing.T) {
	t.Setenv("REMOVED_TEST_GONE", "1")
	t.Setenv("REMOVED_TEST_NEVER", "1")
	t.Setenv("REMOVED_TEST_KEPT", "x")
	var s newer
	err := daemon.ParseEnv("REMOVED_TEST", &s)
	if err == nil {
		t.Fatal("got no error")
	}
	want := "2 faults:\n  REMOVED_TEST_GONE: is no variable any more: leave it out\n" +
		"  REMOVED_TEST_NEVER: no such variable"
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}
