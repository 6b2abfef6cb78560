package charttest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// withoutValue are the variables that the chart has no value for, and why.
var withoutValue = map[string]string{
	"BROADCAST_INIT_ADDRESS":      "the relay hears by packet sockets",
	"BROADCAST_INIT_LOG_LEVEL":    "init.extraEnv",
	"BROADCAST_INIT_WAIT":         "init.extraEnv",
	"BROADCAST_INIT_HEAR":         "init.extraEnv",
	"DHCP_RELAY_CLEAR_GIADDR":     "relay.extraEnv",
	"DHCP_RELAY_SOURCE_ADDRESS":   "relay.extraEnv",
	"BROADCAST_INIT_HOST_PID":     "for tests: in a pod with hostPID it is 1",
	"STACK_PROXY_PRESET":          "the chart writes the routes file",
	"STACK_PROXY_TINKERBELL":      "likewise: backends",
	"STACK_PROXY_TRUSTED_PROXIES": "likewise: trustedProxies",
	"STACK_LB_KUBECONFIG":         "the pod has a service account",
}

// ownDefault are the variables that the chart sets to something else than the program's default.
var ownDefault = map[string]bool{
	"BROADCAST_INIT_LISTENER": true, "DHCP_RELAY_LISTENERS": true, "DHCP_RELAY_SERVERS": true, "DHCP_RELAY_SERVERS_OPTIONAL": true,
	"STACK_PROXY_FILES_DIRECTORY": true, "STACK_PROXY_ROUTES_FILE": true,
	"DHCP_RELAY_DRAIN_GRACE": true,
	"STACK_BOOTS_KUBERNETES": true, // without it nobody can know that a machine is installed
}

// helpLine is a variable's line in a program's --help: name, type, default, meaning, two spaces or more between.
var helpLine = regexp.MustCompile(`(?m)^ {2}([A-Z][A-Z0-9_]+) {2,}(\S.*?) {2,}(\S+) {2,}\S`)

// TestEveryVariableIsReachable holds the chart to the programs: each variable has a value, or is listed above.
func TestEveryVariableIsReachable(t *testing.T) {
	programs := build(t)
	var template []byte
	for _, name := range []string{"deployment.yaml", "stack-boots.yaml", "loadbalancer.yaml"} {
		text, err := os.ReadFile(chart + "/templates/" + name)
		if err != nil {
			t.Fatal(err)
		}
		template = append(template, text...)
	}
	defaults := map[string]string{}
	for _, program := range []string{"broadcast-init", "dhcp-relay", "stack-proxy", "stack-boots", "stack-lb"} {
		help := helpLine.FindAllStringSubmatch(string(output(t, filepath.Join(programs, program), "--help")), -1)
		if len(help) < 10 {
			t.Fatalf("%s --help lists %d variables", program, len(help))
		}
		for _, line := range help {
			if line[1] == "VARIABLE" {
				continue
			}
			defaults[line[1]] = line[3]
			why, left := withoutValue[line[1]]
			if set := strings.Contains(string(template), line[1]); set == left {
				t.Errorf("%s: set by the template: %v; said to have no value: %q", line[1], set, why)
			}
		}
	}
	for name := range withoutValue {
		if _, ok := defaults[name]; !ok {
			t.Errorf("%s is no variable of any program", name)
		}
	}
	for _, o := range objects(t, render(t, "--set", "publicIP=192.0.2.2,loadBalancer.enabled=true")) {
		for _, c := range containers(t, o) {
			for _, v := range c.Env {
				if want := defaults[v.Name]; v.ValueFrom == nil && want != "" && want != "-" && v.Value != want && !ownDefault[v.Name] {
					t.Errorf("%s: the chart's default is %s, the program's %s", v.Name, v.Value, want)
				}
			}
		}
	}
}
