package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLimits(t *testing.T) {
	const mib = 1 << 20
	tests := map[string]struct {
		reserve     Reserve
		memory      int64
		descriptors uint64
		want        Limits
	}{
		"a container":                {Reserve{28 * mib, 24}, 128 * mib, 1024, Limits{Memory: 60 * mib, Descriptors: 1000}},
		"no limit of memory":         {Reserve{48 * mib, 24}, 0, 1024, Limits{Memory: 1200 * mib, Descriptors: 1000}},
		"half at most is reserved":   {Reserve{900 * mib, 900}, 200 * mib, 1024, Limits{Memory: 60 * mib, Descriptors: 512}},
		"no limit of descriptors":    {Reserve{28 * mib, 0}, 128 * mib, 1 << 62, Limits{Memory: 60 * mib, Descriptors: mostDescriptors}},
		"neither memory nor reserve": {Reserve{}, 0, 0, Limits{Memory: freeMemory / 100 * connectionShare}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.reserve.limits(test.memory, test.descriptors)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
