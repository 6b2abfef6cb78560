package main

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/film"
	"github.com/tinkerbell/stack/pkg/boot/history"
)

// A machine's film is what it said by DHCP, and what was asked for from its address or by its MAC; nothing of others.
func TestRecord(t *testing.T) {
	own, other := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	begin := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	event := func(after time.Duration, kind boot.Kind, mac [6]byte, given, client, file string) boot.Event {
		e := boot.Event{At: begin.Add(after).UnixNano(), Kind: kind, MAC: mac}
		for text, to := range map[string]*[16]byte{given: &e.Given, client: &e.Client} {
			if text != "" {
				*to = boot.Bytes(netip.MustParseAddr(text))
			}
		}
		boot.SetText(&e, boot.File, 99, file)
		return e
	}
	events := []boot.Event{
		event(500*time.Millisecond, boot.DHCPRequest, own, "", "", ""),
		event(600*time.Millisecond, boot.DHCPRequest, other, "", "", ""),
		event(time.Second, boot.DHCPReply, own, "192.0.2.101", "", "ipxe.efi"),
		event(1500*time.Millisecond, boot.DHCPReply, other, "192.0.2.102", "", "ipxe.efi"),
		event(2*time.Second, boot.TFTP, [6]byte{}, "", "192.0.2.101", "ipxe.efi"),
		event(3*time.Second, boot.TFTP, [6]byte{}, "", "192.0.2.102", "ipxe.efi"),
		event(4*time.Second, boot.HTTP, [6]byte{}, "", "192.0.2.200", "/02:00:00:00:00:01/auto.ipxe"),
		event(5*time.Second, boot.Syslog, [6]byte{}, "", "192.0.2.200", ""),
	}
	file := filepath.Join(t.TempDir(), "history")
	h, damage, err := history.Open(file, historySize, func(*boot.Event) {})
	if err != nil || damage != nil {
		t.Fatal(err, damage)
	}
	for i := range events {
		if err := h.Add(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(prefix+"_HISTORY_FILE", file)
	t.Setenv(prefix+"_PUBLIC_ADDRESSES", "192.0.2.2")
	for name, test := range map[string]struct {
		args []string
		want []int
	}{
		"all":        {nil, []int{0, 1, 2, 3, 4, 5, 6, 7}},
		"by MAC":     {[]string{"02-00-00-00-00-01", "-truth", "It went well."}, []int{0, 2, 4, 6, 7}},
		"by address": {[]string{"192.0.2.102"}, []int{5}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(append([]string{"record"}, test.args...), &stdout, &stderr); code != 0 {
				t.Fatalf("exit status %d: %s", code, &stderr)
			}
			_, lines, err := film.Read(&stdout)
			if err != nil {
				t.Fatal(err)
			}
			var got, want []boot.Event
			start := time.Unix(0, events[test.want[0]].At).Truncate(time.Second)
			for _, l := range lines {
				if l.Know != nil {
					continue
				}
				e, err := l.BootEvent(start)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, e)
			}
			for _, i := range test.want {
				want = append(want, events[i])
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(boot.Event{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	for want, args := range map[string][]string{
		"nothing of it is in the history": {"02:00:00:00:00:09"}, "neither a MAC nor an address": {"m1"},
		"failed to read the history": {"-history", filepath.Join(file, "x")}, "one machine at most": {"a", "b"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"record"}, args...), &stdout, &stderr); code == 0 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit status %d: %s", args, code, &stderr)
		}
	}
}
