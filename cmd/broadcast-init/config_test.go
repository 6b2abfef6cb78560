package main

import (
	"bytes"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/hostlink"
)

func TestSettings(t *testing.T) {
	stable := hostlink.StableMAC("node-1", "stack-0", "macvlan0")
	tests := map[string]struct {
		env    map[string]string
		want   []hostlink.Spec
		faults []string
	}{
		"defaults": {want: []hostlink.Spec{{Name: "macvlan0"}}},
		"empty as a chart renders it": {
			env:  map[string]string{"PARENT": "", "KIND": "", "WATCH": "", "HOST_PID": ""},
			want: []hostlink.Spec{{Name: "macvlan0"}},
		},
		"one of each": {
			env:  map[string]string{"PARENT": "eth1", "LISTENER": "ipvlan0", "KIND": "ipvlan"},
			want: []hostlink.Spec{{Name: "ipvlan0", Parent: "eth1", Kind: hostlink.IPvlan}},
		},
		"several": {
			env: map[string]string{"PARENT": "eth1,bond0.20,2001:db8::/64", "LISTENER": "a0,b0,c0"},
			want: []hostlink.Spec{
				{Name: "a0", Parent: "eth1"}, {Name: "b0", Parent: "bond0.20"}, {Name: "c0", Parent: "2001:db8::/64"},
			},
		},
		"stable MAC address": {
			env:  map[string]string{"MAC": "stable", "NODE_NAME": "node-1", "POD_NAME": "stack-0"},
			want: []hostlink.Spec{{Name: "macvlan0", MAC: stable}},
		},
		"an address for a server": {
			env:  map[string]string{"ADDRESS": "127.1.1.1/32"},
			want: []hostlink.Spec{{Name: "macvlan0", Address: netip.MustParsePrefix("127.1.1.1/32")}},
		},
		"addresses that cannot be": {
			env: map[string]string{"ADDRESS": "2001:db8::1/128", "LISTENER": "a0,b0", "PARENT": "eth1,eth2"},
			faults: []string{
				"BROADCAST_INIT_ADDRESS: 2001:db8::1/128 is no IPv4 address", "BROADCAST_INIT_ADDRESS: one for 2 listeners",
			},
		},
		"every fault": {
			env: map[string]string{
				"LISTENER": "a0,a0,sixteen_bytes_16", "PARENT": "eth0", "MAC": "stable", "WAIT": "-1s", "HEAR": "-1s",
				"HOST_PID": "0",
			},
			faults: []string{
				`BROADCAST_INIT_LISTENER: "a0" twice`, `BROADCAST_INIT_LISTENER: "sixteen_bytes_16" is longer`,
				"BROADCAST_INIT_PARENT: 1 for 3 listeners", "BROADCAST_INIT_MAC: stable needs BROADCAST_INIT_NODE_NAME",
				"BROADCAST_INIT_WAIT: -1s is negative", "BROADCAST_INIT_HEAR: -1s is negative",
				"BROADCAST_INIT_HOST_PID: 0 is no process id",
			},
		},
		"wrong words": {
			env: map[string]string{"KIND": "vlan", "MAC": "02:00:00:00:00:01", "PARENTS": "eth0"},
			faults: []string{
				`"vlan" is neither macvlan nor ipvlan`, `"02:00:00:00:00:01" is neither random nor stable`,
				"BROADCAST_INIT_PARENTS: no such variable (did you mean BROADCAST_INIT_PARENT?)",
			},
		},
		"stable ipvlan": {
			env: map[string]string{
				"KIND": "ipvlan", "MAC": "stable", "NODE_NAME": "node-1", "POD_NAME": "stack-0",
			},
			faults: []string{"BROADCAST_INIT_MAC: an ipvlan has its parent's address"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.env {
				t.Setenv(prefix+"_"+variable, value)
			}
			var c config
			err := daemon.ParseEnv(prefix, &c)
			if len(test.faults) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(test.want, c.specs(), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
					t.Errorf("listeners differ (-want +got):\n%s", diff)
				}
				return
			}
			if err == nil {
				t.Fatal("got no error")
			}
			for _, fault := range test.faults {
				if !strings.Contains(err.Error(), fault) {
					t.Errorf("want %q in:\n%v", fault, err)
				}
			}
		})
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"--help"}, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Errorf("got exit %d, %s", code, stderr.String())
	}
	for _, word := range []string{
		"-dry-run", "-version", "PARENT", "LISTENER", "KIND", "MAC", "NODE_NAME", "POD_NAME", "WAIT", "HEAR",
		"WATCH", "HOST_PID", "LOG_LEVEL", "NET_ADMIN",
	} {
		if !strings.Contains(stdout.String(), word) {
			t.Errorf("want %s in:\n%s", word, stdout.String())
		}
	}
}

// TestDocsNameEverySetting holds the table of docs/broadcast-init.md to --help.
func TestDocsNameEverySetting(t *testing.T) {
	text, err := os.ReadFile("../../docs/broadcast-init.md")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	run([]string{"--help"}, &stdout, &stderr)
	variables := regexp.MustCompile(prefix+`_[A-Z_]+`).FindAllString(stdout.String(), -1)
	if len(variables) < 10 {
		t.Fatalf("got variables %v from --help", variables)
	}
	for _, variable := range variables {
		if !strings.Contains(string(text), "`"+variable+"`") {
			t.Errorf("want %s in docs/broadcast-init.md", variable)
		}
	}
}

// TestSettingsForHostsAreTaken: units and commands of docs/without-kubernetes.md.
func TestSettingsForHostsAreTaken(t *testing.T) {
	envdoc.CheckSettings(t, "../../docs/without-kubernetes.md", "", prefix, 1, func() error {
		return daemon.ParseEnv(prefix, &config{})
	})
}
