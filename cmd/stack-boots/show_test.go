package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// told is a journal that says what it was told to.
type told struct{ machines []journal.MachineView }

func (f *told) Machines() []journal.MachineView { return f.machines }

func (f *told) Machine(id string) (journal.MachineView, bool) {
	for _, m := range f.Machines() {
		if m.ID == id || m.Address.String() == id {
			return m, true
		}
	}
	return journal.MachineView{}, false
}

func (*told) Version() uint64 { return 0 }

// twoMachines are one that is stuck and one that boots.
func twoMachines() *told {
	begin := time.Now().Add(-time.Minute)
	answer := journal.Answer{
		Begin: begin, End: begin.Add(time.Second), Kind: "GET", Text: "/auto.ipxe", Result: "404", Bytes: 9, Count: 3,
		From: netip.MustParseAddrPort("10.0.0.9:7171"),
	}
	return &told{machines: []journal.MachineView{
		{
			ID: "52:54:00:00:00:01", MAC: "52:54:00:00:00:01", Address: netip.MustParseAddr("192.0.2.1"), Name: "going",
			Boots: []journal.BootView{{ID: "a", Begin: begin, End: begin, State: journal.Booting, At: journal.Loader, Next: journal.IPXEDHCP}},
		}, {
			ID: "52:54:00:00:00:02", MAC: "52:54:00:00:00:02",
			Boots: []journal.BootView{{
				ID: "b", Begin: begin, End: begin, State: journal.Stuck, At: journal.Script,
				Cause: &journal.Cause{Name: "not-found", Text: "It was \x1b[31mnot there.", Remedy: "Put it there.", Since: begin},
				Steps: []journal.StepView{{
					Step: journal.Script, Result: journal.Failed, Begin: begin, End: begin.Add(time.Second), Answers: []journal.Answer{answer},
				}},
			}},
			Lines: []journal.LineView{{At: begin, Severity: "err", Tag: "kernel", Text: "panic\x1b]0;owned\x07\u202eright"}},
		},
	}}
}

func serveBoots(t *testing.T, f *told) string {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, handler := range page.New(page.Options{Journal: f}).Handlers() {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return strings.TrimPrefix(server.URL, "http://")
}

func TestShowsWhatThePageDoes(t *testing.T) {
	admin := serveBoots(t, twoMachines())
	tests := map[string]struct {
		args        []string
		code        int
		want, avoid []string
	}{
		"all": {nil, 0, []string{
			"STATE    MACHINE            NAME   ADDRESS    AT      HEARD",
			"stuck    52:54:00:00:00:02  -      -          script  1 m 0",
			"  not-found  likely: It was \ufffd[31mnot there. → Put it there.\nbooting  52:54:00:00:00:01  going  192.0.2.1  loader  1 m 0",
			"ipxe-dhcp\n",
		}, nil},
		"stuck":  {[]string{"-state", "stuck"}, 0, []string{"52:54:00:00:00:02"}, []string{"52:54:00:00:00:01"}},
		"search": {[]string{"-q", "going"}, 0, []string{"52:54:00:00:00:01"}, []string{"52:54:00:00:00:02"}},
		"one": {[]string{"52-54-00-00-00-02"}, 0, []string{
			"Cause:    likely: It was", "(not-found)", "Remedy:   Put it there.", "script  failed  +0 ms  1.0 s",
			"10.0.0.9:7171  GET ×3 /auto.ipxe: 404", "err kernel: panic\ufffd]0;owned\ufffd\ufffdright",
		}, nil},
		"cause":       {[]string{"-q", "not-found"}, 0, []string{"52:54:00:00:00:02"}, []string{"52:54:00:00:00:01"}},
		"states":      {[]string{"-state", "stuck,failed"}, 0, []string{"52:54:00:00:00:02"}, []string{"52:54:00:00:00:01"}},
		"by name":     {[]string{"going"}, 0, []string{"Machine:  52:54:00:00:00:01"}, nil},
		"by address":  {[]string{"192.0.2.1"}, 0, []string{"Machine:  52:54:00:00:00:01"}, nil},
		"unknown":     {[]string{"02:00:00:00:00:09"}, exitUnheard, []string{"nothing was heard of this machine"}, nil},
		"no state":    {[]string{"-state", "dead"}, 1, []string{`state "dead": none of`}, nil},
		"two":         {[]string{"a", "b"}, 2, []string{"one machine at most"}, nil},
		"no output":   {[]string{"-o", "yaml"}, 2, []string{"neither table nor json"}, nil},
		"nobody":      {[]string{"-admin", "127.0.0.1:1"}, 1, []string{"failed to ask the admin port at 127.0.0.1:1"}, nil},
		"no address":  {[]string{"-admin", "9069"}, 1, []string{"failed to parse admin address"}, nil},
		"machine -w?": {[]string{"52:54:00:00:00:02", "-x"}, 2, []string{"-x"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(append([]string{"show", "-admin", admin}, test.args...), &stdout, &stderr)
			said := stdout.String() + stderr.String()
			if code != test.code {
				t.Fatalf("exit status %d: %s", code, said)
			}
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in\n%s", want, said)
				}
			}
			for _, avoid := range append(test.avoid, "\x1b", "\x07", "\u202e") {
				if strings.Contains(said, avoid) {
					t.Errorf("%q in\n%s", avoid, said)
				}
			}
		})
	}
}

// TestHelp: of the program, and of a command.
func TestHelp(t *testing.T) {
	for want, args := range map[string][]string{
		"Usage: stack-boots show": {"help", "show"}, "  show [MACHINE]": {"help"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String()+stderr.String(), want) {
			t.Errorf("%q: exit status %d: %s%s", args, code, &stdout, &stderr)
		}
	}
}

func TestBootsAsJSON(t *testing.T) {
	admin := serveBoots(t, twoMachines())
	var stdout, stderr bytes.Buffer
	if code := run([]string{"show", "-admin", admin, "-o", "json"}, &stdout, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	var list page.List
	if err := json.Unmarshal(stdout.Bytes(), &list); err != nil || len(list.Machines) != 2 || list.Counts["stuck"] != 1 {
		t.Errorf("%v: %s", err, stdout.String())
	}
	stdout.Reset()
	if code := run([]string{"show", "-o", "json", "-admin", admin, "52:54:00:00:00:02"}, &stdout, &stderr); code != 0 {
		t.Fatal(stderr.String())
	}
	var m journal.MachineView
	if err := json.Unmarshal(stdout.Bytes(), &m); err != nil || len(m.Boots[0].Steps[0].Answers) != 1 || strings.Contains(stdout.String(), "\x1b") {
		t.Errorf("%v: %s", err, stdout.String())
	}
}
