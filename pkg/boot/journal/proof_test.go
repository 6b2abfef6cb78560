package journal

import (
	"testing"

	"github.com/tinkerbell/stack/pkg/boot"
)

// TestBootedNeedsAProof: what is seen of an agent that hangs up, or of a disk that boots, is no success while a Workflow
// waits, runs or failed; without a Workflow to ask it is what is seen, and no more.
func TestBootedNeedsAProof(t *testing.T) {
	worked := film(one.toAgent(0), one.get(40, 1, files, 8080, "/image.gz", with(boot.Agent, "Go")), one.agent(45, 10, boot.Done))
	disk := film(one.asks(0), one.lease(60, plain, ""))
	known := func(w *Workflow) map[string]Hardware {
		return map[string]Hardware{first: {Known: true, Netboot: true, Workflow: w, Workflows: true}}
	}
	for name, test := range map[string]struct {
		shots    []shot
		hardware map[string]Hardware
		booted   bool // is it ever
		want     State
	}{
		"the agent hangs up, nobody to ask":               {shots: worked, want: Installed},
		"the agent hangs up, its Workflow runs":           {shots: worked, hardware: known(&Workflow{State: "RUNNING"}), want: Quiet},
		"the agent hangs up, its Workflow waits":          {shots: worked, hardware: known(&Workflow{State: "PENDING"}), want: Quiet},
		"the agent hangs up, and there is no Workflow":    {shots: worked, hardware: known(nil), want: Installed},
		"the disk boots, nobody to ask":                   {shots: disk, want: Installed},
		"the disk boots before anything was installed":    {shots: disk, hardware: known(&Workflow{State: "PENDING"}), want: Quiet},
		"the disk boots in the middle of a Workflow":      {shots: disk, hardware: known(&Workflow{State: "RUNNING"}), want: Quiet},
		"the disk boots, its Workflow has succeeded":      {shots: disk, hardware: known(&Workflow{State: "SUCCESS"}), want: Booted, booted: true},
		"the disk boots, and there is nothing to be done": {shots: disk, hardware: known(nil), want: Booted, booted: true},
		"the disk boots, Workflows are not watched": {
			shots: disk, hardware: map[string]Hardware{first: {Known: true, Netboot: true}}, want: Installed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{}
			if test.hardware != nil {
				o.Hardware = hardware(test.hardware)
			}
			j := New(o)
			put(j, test.shots...)
			var b BootView
			for at := 62.0; at < 2000; at++ {
				j.Tick(after(at))
				b = newest(t, j, first)
				if b.State == Booted && !test.booted {
					t.Fatalf("booted after %v s", at)
				}
			}
			if b.State != test.want && !(test.want == Quiet && b.State == StateFailed) {
				t.Errorf("got %s (%+v), want %s", b.State, b.Cause, test.want)
			}
		})
	}
}

// TestProofThatComesLate: a restarted stack-boots tells boots again before Kubernetes has answered. What was installed as
// far as seen is booted once the proof is there.
func TestProofThatComesLate(t *testing.T) {
	answered := false
	all := hardware(map[string]Hardware{
		first: {Known: true, Netboot: true, Workflow: &Workflow{State: "SUCCESS"}, Workflows: true},
	})
	j := New(Options{Hardware: func(mac [6]byte) (Hardware, bool) {
		if !answered {
			return Hardware{}, false
		}
		return all(mac)
	}})
	put(j, film(one.toAgent(0), one.get(40, 1, files, 8080, "/image.gz", with(boot.Agent, "Go")), one.agent(45, 10, boot.Done))...)
	for at := 62.0; at < 200; at++ {
		answered = at > 150
		j.Tick(after(at))
		if at == 150 && newest(t, j, first).State != Installed {
			t.Errorf("before the answer: %s", newest(t, j, first).State)
		}
	}
	if b := newest(t, j, first); b.State != Booted {
		t.Errorf("after it: %s (%+v)", b.State, b.Cause)
	}
}
