package main

import (
	"flag"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// Every fault names the variable to change, and all are named at once: those of reading and those of meaning.
func TestSettingsNameEveryFault(t *testing.T) {
	for variable, value := range map[string]string{
		"SERVERS": "a:0", "MAX_HOPS": "99", "TOKEN_KEY": "short", "PENDING": "1", "TRACE_PACKETS": "-1",
		"UPSTREAM": "127.0.0.1", "SOURCE_ADDRESS": "255.255.255.255",
		"LISTENERS": "a,a", "TRUSTED_LISTENERS": "b", "CIRCUIT_ID": "x", "AGENT_OPTIONS": "remote-id,remote-id",
		"RELAY_ID": "00", "UNHEARD_OF": "1",
	} {
		t.Setenv(prefix+"_"+variable, value)
	}
	var s settings
	err := daemon.ParseEnv(prefix, &s)
	if err == nil {
		t.Fatal("got no error")
	}
	for _, variable := range []string{
		"SERVERS", "MAX_HOPS", "TOKEN_KEY", "PENDING", "UPSTREAM",
		"SOURCE_ADDRESS", "LISTENERS", "TRUSTED_LISTENERS", "CIRCUIT_ID", "AGENT_OPTIONS",
		"TRACE_PACKETS", "RELAY_ID", "UNHEARD_OF",
	} {
		named := 0
		for line := range strings.Lines(err.Error()) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, prefix+"_"+variable+":") || strings.HasPrefix(line, prefix+"_"+variable+"=") {
				named++
			}
		}
		if named != 1 {
			t.Errorf("%s is named %d times in:\n%v", variable, named, err)
		}
	}
}

// TestUpstream is an interface by name, or an address; a mistyped address is none of the two.
func TestUpstream(t *testing.T) {
	for value, fine := range map[string]bool{
		"": true, "eth0": true, "bond0.20": true, "10": true, "10.244.0.10": true,
		"10.244.0.300": false, "10.244.0.1/24": false, "2001:db8::g": false,
	} {
		t.Setenv(prefix+"_SERVERS", "smee")
		t.Setenv(prefix+"_UPSTREAM", value)
		var s settings
		if err := daemon.ParseEnv(prefix, &s); (err == nil) != fine {
			t.Errorf("UPSTREAM=%q: %v", value, err)
		}
	}
}

// TestSettingsOfDHCPv6: its servers are those of DHCPv4 by name, unless others are named; every fault names its variable.
func TestSettingsOfDHCPv6(t *testing.T) {
	tests := map[string]struct {
		env   map[string]string
		want  []string
		fault string
	}{
		"names of SERVERS":  {env: map[string]string{"SERVERS": "smee,kea:6767,192.0.2.1"}, want: []string{"smee", "kea"}},
		"its own":           {env: map[string]string{"SERVERS": "smee", "DHCPV6_SERVERS": "[2001:db8::1]:5470"}, want: []string{"[2001:db8::1]:5470"}},
		"IPv6 only":         {env: map[string]string{"DHCPV6_SERVERS": "2001:db8::1"}, want: []string{"2001:db8::1"}},
		"addresses only":    {env: map[string]string{"SERVERS": "192.0.2.1"}, fault: "DHCPV6_SERVERS"},
		"IPv4 address":      {env: map[string]string{"DHCPV6_SERVERS": "192.0.2.1"}, fault: "DHCPV6_SERVERS"},
		"with a zone":       {env: map[string]string{"DHCPV6_SERVERS": "fe80::1%eth0"}, fault: `DHCPV6_SERVERS: "fe80::1%eth0": not an IPv6 address that is reached`},
		"link-local server": {env: map[string]string{"DHCPV6_SERVERS": "fe80::1"}, fault: "DHCPV6_SERVERS"},
		"link address of another": {
			env: map[string]string{"SERVERS": "smee", "DHCPV6_LINK_ADDRESSES": "eth7=2001:db8::1"}, fault: "DHCPV6_LINK_ADDRESSES",
		},
		"link address is link-local": {
			env: map[string]string{"SERVERS": "smee", "DHCPV6_LINK_ADDRESSES": "macvlan0=fe80::1"}, fault: "DHCPV6_LINK_ADDRESSES",
		},
		"link address without name": {
			env: map[string]string{"SERVERS": "smee", "DHCPV6_LINK_ADDRESSES": "2001:db8::1"}, fault: "DHCPV6_LINK_ADDRESSES",
		},
		"link address twice": {
			env:   map[string]string{"SERVERS": "smee", "DHCPV6_LINK_ADDRESSES": "macvlan0=2001:db8::1,macvlan0=2001:db8::2"},
			fault: "DHCPV6_LINK_ADDRESSES",
		},
		"no IPv6 server is trusted": {
			env: map[string]string{"SERVERS": "smee", "TRUSTED_SERVERS": "192.0.2.0/24"}, fault: "TRUSTED_SERVERS",
		},
		"listener of the name that unicasts have": {
			env: map[string]string{"SERVERS": "smee", "LISTENERS": "unicast"}, fault: "LISTENERS",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(prefix+"_DHCPV6_ENABLED", "true")
			for variable, value := range test.env {
				t.Setenv(prefix+"_"+variable, value)
			}
			var s settings
			err := daemon.ParseEnv(prefix, &s)
			if test.fault != "" {
				if err == nil || !strings.Contains(err.Error(), prefix+"_"+test.fault) {
					t.Errorf("got %v, want a fault of %s", err, test.fault)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, s.relay6().Servers); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSharedFaultIsToldOnce: what DHCPv4 and DHCPv6 share is wrong for both, and is looked at as well where only DHCPv6 is
// relayed.
func TestSharedFaultIsToldOnce(t *testing.T) {
	shared := map[string]string{
		"TOKEN_KEY": "short",
	}
	for name, more := range map[string]map[string]string{
		"both families": {"SERVERS": "192.0.2.1"},
		"DHCPv6 alone":  {},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := maps.Clone(shared)
			if len(more) > 0 {
				wrong["LISTENERS"] = "a,a"
			}
			for _, env := range []map[string]string{
				wrong, more, {"DHCPV6_ENABLED": "true", "DHCPV6_SERVERS": "2001:db8::1"},
			} {
				for variable, value := range env {
					t.Setenv(prefix+"_"+variable, value)
				}
			}
			var s settings
			err := daemon.ParseEnv(prefix, &s)
			if err == nil {
				t.Fatal("got no error")
			}
			for variable := range wrong {
				if n := strings.Count(err.Error(), prefix+"_"+variable+":"); n != 1 {
					t.Errorf("%s is named %d times in:\n%v", variable, n, err)
				}
			}
		})
	}
}

var update = flag.Bool("update", false, "write the generated parts of the document anew")

// TestDocumentAgreesWithCode: the table of variables is made from the code, by "make generate".
func TestDocumentAgreesWithCode(t *testing.T) {
	envdoc.Check(t, "../../docs/reference/dhcp-relay.md", *update, map[string]string{
		"variables": envdoc.Table(prefix, reflect.TypeFor[settings]()),
	})
}

// TestSettingsForHostsAreTaken: commands of docs/without-kubernetes.md, and the units of docs/examples/host.
func TestSettingsForHostsAreTaken(t *testing.T) {
	envdoc.CheckSettings(t, "../../docs/without-kubernetes.md", "../../docs/examples/host", prefix, 1, func() error {
		return daemon.ParseEnv(prefix, &settings{})
	})
}
