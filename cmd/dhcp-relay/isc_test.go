package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestISCArguments(t *testing.T) {
	tests := map[string]struct {
		args  string
		want  map[string]string
		fault []string
	}{
		"the incumbent's chart": {
			args: "-m forward -c 10 -id macvlan0 -iu eth0 -U eth0 smee.tink-system.svc.cluster.local.",
			want: map[string]string{
				"MAX_HOPS": "10", "LISTENERS": "macvlan0",
				"UPSTREAM": "eth0", "AGENT_OPTIONS": "circuit-id,link-selection",
				"SERVERS": "smee.tink-system.svc.cluster.local.",
			},
		},
		"several of each": {
			args: "-d -4 -a -D -id vlan1 -id vlan2 10.0.0.1 10.0.0.2",
			want: map[string]string{
				"AGENT_OPTIONS": "circuit-id", "LISTENERS": "vlan1,vlan2", "SERVERS": "10.0.0.1,10.0.0.2",
			},
		},
		"clear giaddr":     {args: "-g 10.0.0.1", want: map[string]string{"CLEAR_GIADDR": "true", "SERVERS": "10.0.0.1"}},
		"several faults":   {args: "-6 -p 6767 10.0.0.1", fault: []string{"-6: not supported", "-p: not supported"}},
		"two upstreams":    {args: "-iu eth0 -U eth1 10.0.0.1", fault: []string{"-U eth1"}},
		"value is missing": {args: "10.0.0.1 -c", fault: []string{"-c: needs a value"}},
		"other actions":    {args: "-m append 10.0.0.1", fault: []string{"-m: not supported"}},
		"no such":          {args: "-x", fault: []string{"-x: not supported"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(test.args)
			if !isISC(args) {
				t.Error("not taken for dhcrelay's arguments")
			}
			got, err := fromISC(args)
			if len(test.fault) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				return
			}
			for _, want := range test.fault {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want it to say %q", err, want)
				}
			}
		})
	}
	for _, own := range []string{"", "-version", "--help", "trace -mac 02:00:00:00:00:50"} {
		if isISC(strings.Fields(own)) {
			t.Errorf("%q is taken for dhcrelay's arguments", own)
		}
	}
}

// TestISCArgumentsRelay: the image is replaced and the arguments are kept.
func TestISCArgumentsRelay(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, strings.Fields("-m forward -c 10 -id macvlan0 -iu eth0 -U eth0 "+serverIP.String())...)
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	got, _ := receive(t, l.smee)
	if diff := cmp.Diff(podIP.AsSlice(), got[24:28]); diff != "" {
		t.Errorf("giaddr (-want +got):\n%s", diff)
	}
}
