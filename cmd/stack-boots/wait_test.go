package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// What wait says, and its exit status, by the state of the machine and how long it has it.
func TestWait(t *testing.T) {
	const id = "52:54:00:00:00:02"
	long := time.Now().Add(-time.Hour)
	tests := map[string]struct {
		state journal.State
		since time.Time // of the cause
		args  []string
		code  int
		want  string
	}{
		"booted":             {journal.Booted, time.Time{}, []string{id}, 0, "is booted at script"},
		"failed":             {journal.StateFailed, long, []string{id, "--for=booted"}, waitFailed, "It was \ufffd[31mnot there. → Put it there."},
		"failed, as wanted":  {journal.StateFailed, long, []string{id, "-for", "failed"}, 0, "is failed"},
		"stuck for long":     {journal.Stuck, long, []string{id}, waitFailed, "is stuck at script"},
		"stuck for a moment": {journal.Stuck, time.Now(), []string{id, "-timeout", "50ms"}, waitOver, "is stuck at script"},
		"stuck, as wanted":   {journal.Stuck, time.Now(), []string{"-for", "stuck", id}, 0, "is stuck"},
		"on its way":         {journal.Booting, time.Time{}, []string{id, "-timeout=50ms"}, waitOver, "is booting at script"},
		"booted long ago":    {journal.Booted, time.Time{}, []string{id, "-since=10s", "-timeout=50ms"}, exitUnheard, "no boot was heard of that began since"},
		"booted since":       {journal.Booted, time.Time{}, []string{id, "-since=10m"}, 0, "is booted"},
		"unknown":            {journal.Booted, time.Time{}, []string{"02:00:00:00:00:09", "-timeout=50ms"}, exitUnheard, "nothing was heard"},
		"nobody answers":     {journal.Booted, time.Time{}, []string{id, "-timeout=50ms", "-admin=127.0.0.1:1"}, 1, "failed to ask the admin port"},
		"no state":           {journal.Booted, time.Time{}, []string{id, "-for=well"}, 2, `-for "well": none of`},
		"no machine":         {journal.Booted, time.Time{}, nil, 2, "no machine"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			machines := twoMachines()
			b := &machines.machines[1].Boots[0]
			if b.State = test.state; b.State == journal.Stuck || b.State == journal.StateFailed {
				b.Cause.Since = test.since
			} else {
				b.Cause = nil
			}
			args := append([]string{"wait", "-admin", serveBoots(t, machines)}, test.args...)
			var stdout, stderr bytes.Buffer
			code := run(args, &stdout, &stderr)
			if said := stdout.String() + stderr.String(); code != test.code || !strings.Contains(said, test.want) {
				t.Errorf("exit status %d, want %d: %s", code, test.code, said)
			}
		})
	}
}

// A machine that boots while it is waited for ends the wait.
func TestWaitEndsWithTheBoot(t *testing.T) {
	machines := twoMachines()
	admin := serveBoots(t, machines)
	time.AfterFunc(100*time.Millisecond, func() {
		machines.put(0, func(m *journal.MachineView) { m.Boots[0].State = journal.Booted })
	})
	var stdout, stderr bytes.Buffer
	if code := run([]string{"wait", "-admin", admin, "52:54:00:00:00:01"}, &stdout, &stderr); code != 0 {
		t.Errorf("exit status %d: %s%s", code, &stdout, &stderr)
	}
}
