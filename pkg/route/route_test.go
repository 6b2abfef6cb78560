package route

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/strict"
)

var compare = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b Listen) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func at(port uint16) Listen { return Listen(netip.AddrPortFrom(netip.Addr{}, port)) }

// A newcomer's file: everything that is wrong is told at once, with its line.
func TestAllMistakesAtOnce(t *testing.T) {
	text, err := os.ReadFile("testdata/mistakes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Parse(text, Defaults{})
	var mistakes strict.Mistakes
	if !errors.As(err, &mistakes) {
		t.Fatalf("got %v", err)
	}
	want := strings.Split(strings.TrimSpace(`
line 1: preset: "clasic" is none of classic, tinkerbell, tinkerbell-0.22
line 4: routes[0].protocol: "https" is none of tcp, http, grpc, tftp, syslog, udp, files
line 7: routes[0].trustedPrefixes[0]: "10.0.0.0/33" is no prefix: write it as 192.0.2.0/24 or 2001:db8::/64
line 8: routes[1].backends: required
line 10: routes[1].listen[1]: ":70000" is no port or address: write it as 69, 192.0.2.1:69 or [2001:db8::1]:69
line 11: routes[1].backend: no such field (did you mean backends?)
line 13: routes[1].timeouts.idle: 90 is no duration: write it with its unit, as in 30s
line 14: routes[2].name: "hegel" is the name of routes[0] too
line 16: routes[2].listen[0]: :50061/tcp is taken by route hegel
line 17: routes[2].backends: a files route has none
line 17: routes[2].backends[0]: "nowhere" is no backend: write it as host:port`), "\n")
	if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte(`
trustedPrefixes: 10.0.0.0/8
routes:
- name: tink
  protocol: tcp
  listen: ["192.0.2.1:42113", "[2001:db8::1]:42113"]
  backends: [tink-server.tink.:42113, service:tink/server:grpc]
  timeouts: {idle: 1h30m}
  limits: {connections: 1000}
  proxyProtocol: {accept: [192.0.2.0/24], send: v2}
- name: boot
  protocol: http
  listen: 7171
  backends: smee:7171
  accessLog: all
  limits: {rate: 2.5G}
`), Defaults{Drain: setting.Duration(30 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	want := Table{TrustedPrefixes: ten, Routes: []Route{
		{
			Name: "tink", Protocol: TCP,
			Listen: []Listen{
				Listen(netip.MustParseAddrPort("192.0.2.1:42113")), Listen(netip.MustParseAddrPort("[2001:db8::1]:42113")),
			},
			Backends: []Backend{
				{Host: "tink-server.tink.", Port: 42113},
				{Service: &Service{"tink", "server", "grpc"}},
			},
			Timeouts: Timeouts{
				Idle: setting.Duration(90 * time.Minute), Drain: setting.Duration(30 * time.Second),
			},
			Limits:        Limits{Connections: 1000},
			ProxyProtocol: ProxyProtocol{Accept: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Send: "v2"},
		},
		{
			Name: "boot", Protocol: HTTP, Listen: []Listen{at(7171)}, Backends: []Backend{{Host: "smee", Port: 7171}},
			TrustedPrefixes: ten, AccessLog: "all", Limits: Limits{Rate: 2.5e9},
			Timeouts: Timeouts{Drain: setting.Duration(30 * time.Second)},
		},
	}}
	if diff := cmp.Diff(want, got, compare); diff != "" {
		t.Error(diff)
	}
}

func TestMistakes(t *testing.T) {
	route := func(lines string) string {
		return "routes:\n- name: r\n  protocol: tcp\n  listen: 1\n  backends: a:1\n" + lines
	}
	tests := map[string]struct{ text, want string }{
		"empty":           {"", "the file is empty"},
		"no routes":       {"routes: []\n", "line 1: routes: there is none"},
		"not YAML":        {"routes:\n  - name: a\n name: b\n", "line 3: not YAML: did not find expected key (indented"},
		"twice":           {route("  optional: true\n  optional: true\n"), "line 7: routes[0].optional: given before, on line 6"},
		"unknown":         {route("  timeout: {}\n"), "line 6: routes[0].timeout: no such field (did you mean timeouts?)"},
		"scalar for list": {"routes: 7\n", "line 1: routes[0]: expected fields (name, "},
		"list for scalar": {route("  optional: [a]\n"), `line 6: routes[0].optional: expected one value, found a list`},
		"number for text": {route("  accessLog: 5\n"), "line 6: routes[0].accessLog: 5 is not a text: put it in quotes"},
		"text for bool":   {route("  optional: maybe\n"), `line 6: routes[0].optional: "maybe" is neither true nor false`},
		"fraction":        {route("  limits: {connections: 1.5}\n"), `line 6: routes[0].limits.connections: "1.5" is not a whole number`},
		"below zero":      {route("  limits: {connections: -1}\n"), "line 6: routes[0].limits.connections: -1 is below 0"},
		"wrong protocol":  {route("  tftp: {files: boot}\n"), "line 6: routes[0].tftp: does not apply to protocol tcp"},
		"removed":         {route("  health: {active: {type: tcp}}\n"), "line 6: routes[0].health: is no field any more: leave it out: three failures"},
		"bad name":        {"routes: [{name: A_b, protocol: tcp, listen: 1, backends: a:1}]", `"A_b" is no name`},
		"bad host":        {"routes: [{name: a, protocol: tcp, listen: 1, backends: 'a b:1'}]", `"a b" is not a DNS name`},
		"bad service":     {"routes: [{name: a, protocol: tcp, listen: 1, backends: 'service:x'}]", "is no Kubernetes Service"},
		"port 0":          {"routes: [{name: a, protocol: tcp, listen: 0, backends: a:1}]", `"0" is no port`},
		"only told once": {strings.Replace(route("  limits: {connections: -1}\n"), "tcp", "syslog", 1),
			"line 6: routes[0].limits.connections: does not apply to protocol syslog"},
		"rate in Mbits": {strings.Replace(route("  limits: {rate: 500}\n"), "tcp", "http", 1), "line 6: routes[0].limits.rate: 500 bits a second is below 1M: machines would not boot"},
		"removed field": {route("  limits: {machines: 40}\n"), "line 6: routes[0].limits.machines: is no field any more: " +
			"leave it out: machines do not wait to be served, and limits.rate gives each the same share"},
		"rate that is none": {route("  limits: {rate: fast}\n"), `line 6: routes[0].limits.rate: "fast" is no rate: write the bits a second as in 500M or 2.5G`},
		"rate of a stream":  {route("  limits: {rate: 1G}\n"), "line 6: routes[0].limits.rate: does not apply to protocol tcp"},
		"rate of syslog": {strings.Replace(route("  limits: {requests: {total: {perSecond: -1}}}\n"), "tcp", "syslog", 1),
			"line 6: routes[0].limits.requests: does not apply to protocol syslog"},
		"bad preset":      {"preset: [classic]\nroutes: []\n", "line 1: preset: expected one value, found a list"},
		"name, not text":  {"routes: [{name: 5, protocol: tcp, listen: 1, backends: a:1}]", "5 is not a text: put it in quotes"},
		"prefix":          {"trustedPrefixes: 10.0.0.1\n" + route(""), `"10.0.0.1" is no prefix: write it as 192.0.2.0/24`},
		"second document": {route("---\nroutes: []\n"), "line 7: a second document begins here"},
		"bad address":     {"routes: [{name: a, protocol: tcp, listen: 'eth0:1', backends: a:1}]", `"eth0" is not an IP address`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(test.text), Defaults{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if lines := strings.Count(err.Error(), "\n"); lines > 0 {
				t.Errorf("one mistake was told %d times:\n%v", lines+1, err)
			}
		})
	}
}

// The preset's routes that a file does not name stay.
func TestPresetWithChanges(t *testing.T) {
	got, err := Parse([]byte(`
preset: classic
routes:
- {name: tink, protocol: grpc, listen: 42113, backends: "other:42113"}
`), Defaults{Tinkerbell: "stack.example", FilesDirectory: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range got.Routes {
		row := r.Name + " " + string(r.Protocol) + " " + r.Address(r.Listen[0]) + r.Files.Directory
		for _, b := range r.Backends {
			row += " " + b.String()
		}
		rows = append(rows, row)
	}
	want := []string{
		"tink grpc :42113/tcp other:42113",
		"hegel http :50061/tcp stack.example:50061",
		"smee-http http :7171/tcp stack.example:7171",
		"smee-tftp tftp :69/udp stack.example:69",
		"smee-syslog syslog :514/udp stack.example:514",
		"files files :8080/tcp/f",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

// Every preset obeys the rules that files do.
func TestPresetsAreValid(t *testing.T) {
	for _, name := range Presets() {
		if _, err := Parse([]byte("preset: "+name), Defaults{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckHost(t *testing.T) {
	for host, fine := range map[string]bool{
		"hegel": true, "hegel.tink.svc.cluster.local.": true, "hegel:50061": false, "10.0.0.1": true,
		"[2001:db8::1]:80": false, "2001:db8::1": true,
		"": false, "a b": false, "hegel:": false, "hegel:http": false, "-": false, "http://hegel": false,
	} {
		if err := CheckHost(host); (err == nil) != fine {
			t.Errorf("CheckHost(%q) = %v", host, err)
		}
	}
}

// A written route in the way of a preset's is told by its own line, and with the preset's name.
func TestClashesWithPreset(t *testing.T) {
	tests := map[string]struct {
		text string
		want []string
	}{
		"of datagrams": {
			"preset: classic\nroutes:\n- name: log\n  protocol: syslog\n  listen: 514\n  backends: a:1\n",
			[]string{"line 5: routes[0].listen[0]: :514/udp is taken by route smee-syslog of preset classic " +
				"(name the route smee-syslog to replace it)"},
		},
		"of HTTP": {
			"preset: classic\nroutes:\n- name: web\n  protocol: http\n  listen: [80, 8080]\n  backends: a:1\n",
			[]string{"line 5: routes[0].listen[1]: :8080/tcp is taken by route files of preset classic; " +
				"routes share a port by hosts (name the route files to replace it)"},
		},
		"by hosts, beside another": {
			"preset: tinkerbell\nroutes:\n" +
				"- {name: a, protocol: http, listen: 7173, backends: 'a:1', hosts: a.example.org}\n" +
				"- {name: b, protocol: tcp, listen: 7080, backends: 'a:1'}\n",
			[]string{"line 4: routes[1].listen[0]: :7080/tcp is taken by route http of preset tinkerbell " +
				"(name the route http to replace it)"},
		},
		"replaced":         {"preset: classic\nroutes:\n- {name: files, protocol: http, listen: 8080, backends: 'a:1'}\n", nil},
		"another protocol": {"preset: classic\nroutes:\n- {name: x, protocol: tcp, listen: 69, backends: 'a:1'}\n", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			if _, err := Parse([]byte(test.text), Defaults{}); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Sockets on one port exclude each other, be they for one address or all, and whoever they belong to.
func TestAddressesThatOverlap(t *testing.T) {
	const tcp = "  protocol: tcp\n  backends: x:1\n"
	const two = "routes:\n- name: a\n" + tcp + "  listen: A\n- name: b\n" + tcp + "  listen: B\n"
	pair := func(a, b string) string { return strings.NewReplacer("A", `"`+a+`"`, "B", `"`+b+`"`).Replace(two) }
	tests := map[string]struct {
		text  string
		admin string
		want  []string
	}{
		"one, then all": {
			text: pair("192.0.2.1:80", "80"),
			want: []string{"line 9: routes[1].listen[0]: :80/tcp is taken by route a, which has 192.0.2.1:80/tcp"},
		},
		"all, then one": {
			text: pair("[::]:80", "[2001:db8::1]:80"),
			want: []string{"line 9: routes[1].listen[0]: [2001:db8::1]:80/tcp is taken by route a, which has :80/tcp"},
		},
		"two":       {text: pair("192.0.2.1:80", "192.0.2.2:80")},
		"two ports": {text: pair("80", "192.0.2.2:81")},
		"of a preset": {
			text: "preset: classic\nroutes:\n- name: a\n" + tcp + "  listen: 192.0.2.1:8080\n",
			want: []string{"line 6: routes[0].listen[0]: 192.0.2.1:8080/tcp is taken by route files of preset classic, " +
				"which has :8080/tcp (name the route files to replace it)"},
		},
		"the admin port": {
			text: pair("9068", "9069"), admin: "[::]:9069",
			want: []string{"line 9: routes[1].listen[0]: :9069/tcp is taken by the admin port (STACK_PROXY_ADMIN_ADDRESS)"},
		},
		"the admin port on one address": {
			text: pair("192.0.2.1:9069", "127.0.0.1:9069"), admin: "127.0.0.1:9069",
			want: []string{
				"line 9: routes[1].listen[0]: 127.0.0.1:9069/tcp is taken by the admin port (STACK_PROXY_ADMIN_ADDRESS)",
			},
		},
		"the admin port, by datagrams": {
			text: "routes:\n- {name: a, protocol: udp, listen: 9069, backends: 'x:1'}\n", admin: "0.0.0.0:9069",
		},
		"the admin port, a preset's": {
			text: "preset: classic\nroutes: []\n", admin: "[::]:8080",
			want: []string{"line 1: preset: :8080/tcp of route files is taken by the admin port (STACK_PROXY_ADMIN_ADDRESS)"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var defaults Defaults
			if test.admin != "" {
				defaults.Admin = netip.MustParseAddrPort(test.admin)
			}
			var got []string
			if _, err := Parse([]byte(test.text), defaults); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile("testdata/mistakes.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("routes: [{name: a, listen: &a [1, *a]}]"))
	f.Add([]byte("{routes: {a: b}, ? [x] : y}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := Parse(text, Defaults{})
		if err == nil && len(table.Routes) == 0 {
			t.Error("a table without routes is no mistake")
		}
	})
}
