package journey_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestJourneyIPv6 takes a UEFI machine that has IPv6 alone from power-on to the end of the installation: OVMF's PXE by DHCPv6
// and TFTP; Smee's iPXE, script, kernel and initramfs by HTTP, syslog, metadata, workflow and artifact. OVMF's HTTP boot up to
// the script is package machine's.
func TestJourneyIPv6(t *testing.T) {
	t.Parallel() // labs do not see each other
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skipf("needs Debian's package dnsmasq-base: %v", err)
	}
	var global []string
	j := travel(t, "uefi", func(opts *journey.Options) {
		opts.Lab.IPv6, opts.Scale = true, 2 // CI may be slow
		passed, seen := opts.Passed, opts.Ready
		if seen != nil {
			t.Fatal("somebody else waits for the lab")
		}
		var l *lab.Lab
		opts.Ready = func(up *lab.Lab) error { l = up; return nil }
		opts.Passed = func(name string, step journey.Step) {
			passed(name, step)
			if step.Name != journey.StepReply {
				return
			}
			addrs, err := l.GlobalAddresses(lab.RolePod, "macvlan0")
			if err != nil {
				t.Error(err)
			}
			for _, addr := range addrs {
				global = append(global, addr.String())
			}
		}
	})
	if !j.Result.OK {
		t.Fatal(j.Result.Failure())
	}
	if len(global) > 0 {
		t.Errorf("the listener took addresses on: %s", global)
	}
	var got []string
	details := map[string]string{}
	for _, step := range j.Result.Machines[0].Steps {
		got, details[step.Name] = append(got, step.Name), step.Detail
	}
	want := slices.Clone(journey.Steps(false))
	for i, step := range want {
		switch step {
		case journey.StepDiscover:
			want[i] = journey.StepSolicit
		case journey.StepOffer:
			want[i] = journey.StepAdvertise
		case journey.StepAck:
			want[i] = journey.StepReply
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the steps (-want +got): %s", diff)
	}
	for step, parts := range map[string][]string{
		journey.StepAdvertise: {"2001:db8:1::10", ", to its link-local address"},
		journey.StepTFTP:      {"ipxe.efi", " from [2001:db8:1::2]:69"},
		journey.StepScript:    {"/auto.ipxe", " from [2001:db8:1::2]:7171"},
		journey.StepKernel:    {" from [2001:db8:1::2]:8080"},
		journey.StepInitramfs: {" from [2001:db8:1::2]:8080"},
		journey.StepSyslog:    {"2001:db8:1::10"},
		journey.StepMetadata:  {"I am known as uefi, 2001:db8:1::10"},
	} {
		for _, part := range parts {
			if !strings.Contains(details[step], part) {
				t.Errorf("%s: %q does not tell of %q", step, details[step], part)
			}
		}
	}
}
