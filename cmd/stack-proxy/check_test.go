package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// A newcomer's file with five mistakes: all five are told, and nothing else.
func TestCheckTellsEveryMistake(t *testing.T) {
	path := t.TempDir() + "/routes.yaml"
	text := `routes:
- name: Hegel
  protocol: http
  listen: 50061
  backends: hegel
- name: tftp
  protocol: tftp
  listen: 69000
  backends: smee:69
  timeout: 5s
- {name: log, protocol: sylog, listen: 514, backends: "smee:514"}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", "-f", path}, &stdout, &stderr); code != 1 || stdout.Len() > 0 {
		t.Errorf("exit status %d, output %q", code, stdout.String())
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	want := []string{
		"stack-proxy: failed to parse routes file " + path + ":",
		`line 2: routes[0].name: "Hegel" is no name`, `line 5: routes[0].backends[0]: "hegel" is no backend`,
		`line 8: routes[1].listen[0]: "69000" is no port`, "line 10: routes[1].timeout: no such field (did you mean timeouts?)",
		`line 11: routes[2].protocol: "sylog" is none of`,
	}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines:\n%s", len(lines), stderr.String())
	}
	for i := range want {
		if !strings.HasPrefix(lines[i], want[i]) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want[i])
		}
	}
}

// The faults of the routes file are told beside those of the artifacts file.
func TestCheckReadsTheArtifactsFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir + "/" + name
	}
	const tail = ",\n  tls: {certificates: {certificate: /none.crt, key: /none.key}},\n" +
		"  jwt: {issuer: x, audience: x, jwks: /none.json}}"
	routes := write("routes.yaml", "preset: classic\nroutes:\n- {name: a, protocol: grpc, listen: 443, backends: 'x:1', hosts: a"+tail)
	clash := write("clash.yaml", "preset: classic\nroutes:\n- name: web\n  protocol: http\n  listen: 8080\n  backends: x:1\n")
	artifacts := write("artifacts.yaml", "volume: files\nsets: {name: a, ulr: x}\n")
	tests := map[string]struct {
		args      []string
		artifacts string
		code      int
		want      []string
	}{
		"good": {args: []string{"-f", routes}},
		"artifacts": {args: []string{"-f", clash}, artifacts: artifacts, code: 1, want: []string{
			artifacts + ":\nline 1: volume: \"files\" is not an absolute path\n",
			"line 2: sets[0].ulr: no such field (did you mean url?)\n",
			clash + ":\nline 5: routes[0].listen[0]: :8080/tcp is taken by route files of preset classic",
		}},
		"no artifacts file": {args: []string{"-f", routes}, artifacts: dir + "/none", code: 1, want: []string{"failed to read artifacts file"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("STACK_PROXY_ARTIFACTS_FILE", test.artifacts)
			t.Setenv("STACK_PROXY_FILES_DIRECTORY", dir+"/none")
			var stdout, stderr bytes.Buffer
			if code := run(append([]string{"check"}, test.args...), &stdout, &stderr); code != test.code {
				t.Errorf("exit status %d", code)
			}
			for _, want := range test.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("no %q in:\n%s", want, stderr.String())
				}
			}
		})
	}
}

func TestCheckPrintsTable(t *testing.T) {
	t.Setenv("STACK_PROXY_PRESET", "classic")
	t.Setenv("STACK_PROXY_TINKERBELL", "smee.tink.svc.cluster.local.")
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	if !strings.Contains(stdout.String(), "smee.tink.svc.cluster.local.:69") {
		t.Errorf("got\n%s", stdout.String())
	}
}

// The admin port is nobody's, be it the preset's or the file's, at the start as in the check.
func TestCheckKnowsTheAdminPort(t *testing.T) {
	path := t.TempDir() + "/routes.yaml"
	text := "routes:\n- {name: a, protocol: http, listen: 9069, backends: 'a:1'}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args        []string
		file, admin string
		want        string
	}{
		"file":            {args: []string{"check", "-f", path}, want: path + ":\nline 2: routes[0].listen[0]: :9069/tcp is taken by the admin port"},
		"start":           {file: path, want: "line 2: routes[0].listen[0]: :9069/tcp is taken by the admin port"},
		"loopback":        {args: []string{"check", "-f", path}, admin: "127.0.0.1:9069", want: ":9069/tcp is taken by the admin port"},
		"another":         {args: []string{"check", "-f", path}, admin: ":9068"},
		"a name":          {args: []string{"check", "-f", path}, admin: "localhost:9069", want: ":9069/tcp is taken by the admin port"},
		"no name":         {args: []string{"check", "-f", path}, admin: "9069", want: "STACK_PROXY_ADMIN_ADDRESS=address 9069: missing port in address"},
		"no port":         {args: []string{"check"}, admin: ":99999", want: `STACK_PROXY_ADMIN_ADDRESS=":99999": "99999" is no port`},
		"preset":          {args: []string{"check"}, admin: ":7173", want: "failed to use preset tinkerbell:\npreset: :7173/tcp of route files is"},
		"start by preset": {admin: ":7173", want: "preset: :7173/tcp of route files is"},
		"another, preset": {args: []string{"check"}},
		"datagrams' port": {args: []string{"check"}, admin: ":69"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("STACK_PROXY_ROUTES_FILE", test.file)
			t.Setenv("STACK_PROXY_PRESET", "tinkerbell")
			if test.admin != "" {
				t.Setenv("STACK_PROXY_ADMIN_ADDRESS", test.admin)
			}
			var stdout, stderr bytes.Buffer
			code := run(test.args, &stdout, &stderr)
			said := strings.ReplaceAll(stderr.String(), `\n`, "\n")
			if (code == 0) != (test.want == "") || !strings.Contains(said, test.want) {
				t.Errorf("exit status %d, want %q:\n%s", code, test.want, said)
			}
		})
	}
}

// The proxy does not guess which layout of Tinkerbell is behind it.
func TestPresetIsChosen(t *testing.T) {
	for _, args := range [][]string{nil, {"check"}} {
		var stdout, stderr bytes.Buffer
		code := run(args, &stdout, &stderr)
		if want := "STACK_PROXY_PRESET is not set: set it to tinkerbell for the one"; code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit status %d, no %q in: %s", args, code, want, stderr.String())
		}
	}
}

func TestWrongSettingsAreAllTold(t *testing.T) {
	for name, value := range map[string]string{
		"PRESET": "clasic", "HEGEL": "hegel", "TINKERBELL": "http://tinkerbell", "TRUSTED_PROXIES": "10.0.0.0/8", "DRAIN_GRACE": "-1s",
	} {
		t.Setenv("STACK_PROXY_"+name, value)
	}
	var stdout, stderr bytes.Buffer
	if code := run(nil, &stdout, &stderr); code != 1 {
		t.Errorf("exit status %d", code)
	}
	for _, want := range []string{"STACK_PROXY_PRESET", "STACK_PROXY_HEGEL: is no variable any more", "STACK_PROXY_TINKERBELL", "STACK_PROXY_DRAIN_GRACE"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("the message does not name %s:\n%s", want, stderr.String())
		}
	}
}

// A file without -f would be left unread, and the preset found right.
func TestCheckTakesNoArguments(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", "routes.yaml"}, &stdout, &stderr); code != 2 || stdout.Len() > 0 ||
		!strings.Contains(stderr.String(), `unexpected argument "routes.yaml"`) {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

// A pass-through that a machine could use to be another is warned of, and is no mistake; the presets have none.
func TestCheckWarnsOfPassThrough(t *testing.T) {
	path := t.TempDir() + "/routes.yaml"
	text := "preset: tinkerbell\nroutes:\n- {name: https, protocol: tcp, listen: 7443, backends: \"tinkerbell:7443\"}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"check", "-f", path}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "https") ||
		!strings.HasPrefix(stderr.String(), "Warning: route https passes streams through to tinkerbell:7443, which route http") ||
		strings.Count(stderr.String(), "Warning") != 1 {
		t.Errorf("exit status %d\n%s%s", code, stdout.String(), stderr.String())
	}
	for _, preset := range []string{"classic", "tinkerbell", "tinkerbell-0.22"} {
		t.Setenv("STACK_PROXY_PRESET", preset)
		stderr.Reset()
		if code := run([]string{"check"}, &stdout, &stderr); code != 0 || strings.Contains(stderr.String(), "Warning") {
			t.Errorf("%s: exit status %d, %s", preset, code, stderr.String())
		}
	}
}
