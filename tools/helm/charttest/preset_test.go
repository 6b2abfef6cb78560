package charttest

import (
	"strings"
	"testing"
)

// TestPresetIsChosen: what stands behind the stack is not guessed. The former chart's values say it.
func TestPresetIsChosen(t *testing.T) {
	for _, values := range []string{"{}", "preset: ''", "preset: null", "publicIP: 192.0.2.2"} {
		refusesAt(t, release{noPreset: true}, values, "preset is not set: set preset=tinkerbell for the one Tinkerbell binary")
	}
	refusesAt(t, release{noPreset: true}, "backends: {namespace: metal}", "kubectl -n metal get services shows which")
	for _, values := range []string{"global: {publicIP: 192.0.2.2}", "stack: {relay: {sourceInterface: eno1}}", "smee: {name: boots}"} {
		out, err := inProcess(release{noPreset: true}, from(t, values))
		if err != nil {
			t.Errorf("%v\nof\n%s", err, values)
			continue
		}
		if notes := out.notes(); !strings.Contains(notes, "preset classic") {
			t.Errorf("%s: preset classic is not implied:\n%s", values, notes)
		}
	}
}
