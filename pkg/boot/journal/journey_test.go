package journal

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
)

// A boot that goes well has all steps in order, and never a cause.
func TestBootThatGoesWell(t *testing.T) {
	var told []string
	j := New(Options{Changed: func(c Change) {
		switch c.Kind {
		case StepEnded:
			told = append(told, string(c.Step.Step)+" "+string(c.Step.Result))
		case StateChanged:
			told = append(told, string(c.Before)+">"+string(c.Boot.State))
		case CauseChanged:
			told = append(told, "cause "+causeName(c.Boot))
		case BootEnded:
			told = append(told, "ends")
		}
	}})
	play(j, film(one.toAgent(0),
		one.get(60, 20, files, 8080, "/ubuntu.raw.gz", with(boot.Agent, "Go-http-client/1.1")),
		one.agent(70, 35, boot.Done)), 91)
	b := newest(t, j, first)
	type row struct {
		Step   Step
		Result Result
		Begin  float64
		End    float64
	}
	var rows []row
	for _, s := range b.Steps {
		rows = append(rows, row{s.Step, s.Result, s.Begin.Sub(start).Seconds(), s.End.Sub(start).Seconds()})
	}
	want := []row{
		{DHCP, OK, 0, 0.3}, {Loader, OK, 1, 2}, {IPXEDHCP, OK, 4, 4.3}, {Script, OK, 4.9, 5}, {Kernel, OK, 5.5, 6.5},
		{Initramfs, OK, 7, 9}, {OSDHCP, OK, 30, 30.3}, {Syslog, OK, 31, 31}, {Metadata, OK, 32.9, 33}, {Agent, OK, 35, 70},
		{Files, OK, 40, 60},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
	if b.State != Installed || b.Cause != nil {
		t.Errorf("got state %s, cause %v", b.State, b.Cause)
	}
	wantTold := []string{
		">booting", "dhcp ok", "loader ok", "ipxe-dhcp ok", "script ok", "kernel ok", "initramfs ok", "os-dhcp ok",
		"syslog ok", "metadata ok", "agent ok", "booting>installed", "files ok", "ends",
	}
	if diff := cmp.Diff(wantTold, told); diff != "" {
		t.Error(diff)
	}
}
