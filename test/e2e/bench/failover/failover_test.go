package failover

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// site builds stack-lb and a site with it.
func site(t *testing.T, nodes int, settings ...string) *Site {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if _, _, err := Cached(); err != nil {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "stack-lb")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/stack-lb")
	build.Dir = "../../../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("failed to build stack-lb: %v\n%s", err, out)
	}
	s, err := NewSite(t.Context(), t.TempDir(), program, nodes, settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestAddressSurvivesItsNode: whatever happens to the node that has the address, the client reaches it again in time, and
// never do two stations answer one ARP probe.
func TestAddressSurvivesItsNode(t *testing.T) {
	s := site(t, 3)
	if err := s.Open(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, s.Logs())
	}
	APIAway = 12 * time.Second
	for _, c := range Cases() {
		if c.Name == "switch-forgot" {
			continue // the bench has the time
		}
		t.Run(c.Name, func(t *testing.T) {
			seen, err := s.Try(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", seen)
			if seen.TwoOwners > 0 || seen.Rounds == 0 {
				t.Errorf("two owners in %d of %d probes", seen.TwoOwners, seen.Rounds)
			}
			if c.Bound > 0 && seen.Echo > c.Bound {
				t.Errorf("no answer for %.2f s, more than %.0f", seen.Echo, c.Bound)
			}
		})
	}
}
