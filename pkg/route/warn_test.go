package route

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A pass-through to a host that an HTTP route reaches is named, and nothing else is.
func TestPassThroughToATrustingBackendIsNamed(t *testing.T) {
	const http = "routes:\n- {name: web, protocol: http, listen: 80, backends: [BACKEND]}\n"
	tests := map[string]struct {
		http, tcp string // backends
		more      string // fields of the tcp route
		want      bool
	}{
		"another port":               {http: "tinkerbell:7080", tcp: "tinkerbell:7443", want: true},
		"the same":                   {http: "tinkerbell:7080", tcp: "tinkerbell:7080", want: true},
		"in capitals, with a dot":    {http: "tinkerbell.svc.:7080", tcp: "Tinkerbell.Svc:7443", want: true},
		"short and long":             {http: "tinkerbell.tink.svc.cluster.local.:7080", tcp: "tinkerbell:7443", want: true},
		"long and short":             {http: "tinkerbell:7080", tcp: "tinkerbell.tink:7443", want: true},
		"addresses":                  {http: "192.0.2.7:7080", tcp: "192.0.2.7:7443", want: true},
		"an address, mapped":         {http: "192.0.2.7:7080", tcp: `"[::ffff:192.0.2.7]:7443"`, want: true},
		"IPv6 in two spellings":      {http: `"[2001:db8::7]:80"`, tcp: `"[2001:db8:0::7]:81"`, want: true},
		"a Service":                  {http: "service:tink/tinkerbell:http", tcp: "service:tink/tinkerbell:https", want: true},
		"a Service and its name":     {http: "service:tink/tinkerbell:http", tcp: "tinkerbell.tink.svc.cluster.local:7443", want: true},
		"its name and a Service":     {http: "tinkerbell:80", tcp: "service:tink/tinkerbell:https", want: true},
		"with and without namespace": {http: "service:tink/tinkerbell:http", tcp: "service:tinkerbell:https", want: true},
		"namespace, and all of it":   {http: "tinkerbell.tink:80", tcp: "tinkerbell.tink.svc.cluster.local:443", want: true},
		"without the domain":         {http: "tinkerbell.tink.svc:80", tcp: "tinkerbell.tink.svc.cluster.local:443", want: true},
		"a Service, not all of it":   {http: "service:tink/tinkerbell:http", tcp: "tinkerbell.tink.svc:443", want: true},
		"another host":               {http: "hegel:50061", tcp: "tink-server:42113"},
		"another host, same letters": {http: "tink:50061", tcp: "tink-server:42113"},
		"another namespace":          {http: "service:a/tinkerbell:http", tcp: "service:b/tinkerbell:https"},
		"another domain":             {http: "a.example.org:80", tcp: "a.example.com:81"},
		"a Service elsewhere":        {http: "service:a/tinkerbell:http", tcp: "tinkerbell.b.svc:443"},
		"an address, and a name":     {http: "192.0.2.7:80", tcp: "192.0.2.7.example.org:443"},
		"another IPv6 address":       {http: `"[2001:db8::7]:80"`, tcp: `"[2001:db8::8]:80"`},
		"Tink Server's gRPC":         {http: "t:80", tcp: "t:42113"},
		"a Service's consoles":       {http: "service:t/t:http", tcp: "service:t/t:2222"},
		"it is told by PROXY":        {http: "t:80", tcp: "t:22", more: ", proxyProtocol: {send: v2}"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			text := strings.ReplaceAll(http, "BACKEND", test.http) +
				"- {name: through, protocol: tcp, listen: 81, backends: [" + test.tcp + "]" + test.more + "}\n"
			table, err := Parse([]byte(text), Defaults{})
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			got := table.PassThroughs()
			if (len(got) == 1) != test.want || len(got) > 1 {
				t.Fatalf("%+v", got)
			}
			if test.want && (got[0].Route != "through" || got[0].HTTP != "web" || !strings.Contains(got[0].String(), "through")) {
				t.Errorf("%+v: %s", got[0], got[0])
			}
		})
	}
}

// No preset passes a machine's words through to a backend that believes us, and none is warned of, even where one host
// has all the services.
func TestPresetsPassNothingThroughToATrustingBackend(t *testing.T) {
	for name, defaults := range map[string]Defaults{
		"hosts":    {},
		"one host": {Tinkerbell: "192.0.2.7"},
	} {
		for _, preset := range Presets() {
			table, err := Preset(preset, defaults)
			if err != nil {
				t.Fatal(err)
			}
			if got := table.PassThroughs(); len(got) > 0 {
				t.Errorf("%s, %s: %v", preset, name, got)
			}
			for _, r := range table.Routes {
				if r.Protocol == TCP && !slices.Contains([]string{"tink", "grpc", "ssh"}, r.Name) {
					t.Errorf("%s, %s: route %s is passed through: does its backend know clients by a header?", preset, name, r.Name)
				}
			}
		}
	}
}

// Metrics and user interfaces are not for machines.
func TestPresetsHideMetricsAndUserInterfaces(t *testing.T) {
	hidden := map[string]map[string][]string{}
	for _, preset := range Presets() {
		table, err := Preset(preset, Defaults{})
		if err != nil {
			t.Fatal(err)
		}
		hidden[preset] = map[string][]string{}
		for _, r := range table.Routes {
			if r.Protocol == HTTP {
				hidden[preset][r.Name] = append(append([]string{"deny"}, r.Paths.Deny...), append([]string{"allow"}, r.Paths.Allow...)...)
			}
		}
	}
	modern := []string{"deny", "allow", "/ipxe", "/iso", "/tftp", "/2009-04-04", "/metadata", "/tootles"}
	want := map[string]map[string][]string{
		"classic": {
			"hegel":     {"deny", "/metrics", "/healthz", "allow"},
			"smee-http": {"deny", "/metrics", "/healthcheck", "allow"},
		},
		"tinkerbell": {"http": modern},
		"tinkerbell-0.22": {
			"http":     {"deny", "/metrics", "/healthcheck", "allow"},
			"metadata": {"deny", "/metrics", "/healthz", "allow"},
		},
	}
	if diff := cmp.Diff(want, hidden); diff != "" {
		t.Error(diff)
	}
}
