package charttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// variable is what a container is told by a name.
func variable(d *appsv1.Deployment, container, name string) string {
	pod := d.Spec.Template.Spec
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		for _, v := range c.Env {
			if c.Name == container && v.Name == name {
				return v.Value
			}
		}
	}
	return ""
}

// TestSparseFormerValuesKeepTheFormerDefaults renders what users of the former chart had set, and no more: an upgrade in
// place may not change what cannot be changed.
func TestSparseFormerValuesKeepTheFormerDefaults(t *testing.T) {
	for name, test := range map[string]struct {
		values  string
		address string
		parent  string
	}{
		"as its README says": {"global: {publicIP: 192.0.2.9, trustedProxies: [10.42.0.0/24]}", "192.0.2.9", ""},
		"an interface":       {"stack: {relay: {sourceInterface: eno1}}", "192.168.2.113", "eno1"},
		"an address":         {"stack: {loadBalancerIP: 192.0.2.8}", "192.0.2.8", ""},
		"a service's values": {"smee: {logLevel: debug}\nglobal: {publicIP: 192.0.2.9}", "192.0.2.9", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendersFrom(t, test.values)
			var service corev1.Service
			out.object(t, "Service", "tink-stack", &service)
			if service.Name != "tink-stack" || service.Spec.LoadBalancerIP != test.address ||
				service.Spec.LoadBalancerClass == nil || *service.Spec.LoadBalancerClass != "kube-vip.io/kube-vip-class" ||
				service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
				t.Errorf("the Service is %+v", service)
			}
			var deployment appsv1.Deployment
			out.object(t, "Deployment", "stack-proxy", &deployment)
			for _, want := range []struct{ container, name, value string }{
				{"dhcp-relay", "DHCP_RELAY_MAX_HOPS", "10"},
				{"broadcast-init", "BROADCAST_INIT_PARENT", test.parent},
				{"stack-proxy", "STACK_PROXY_ARTIFACTS_FILE", "/etc/stack-proxy/artifacts.yaml"},
			} {
				if got := variable(&deployment, want.container, want.name); got != want.value {
					t.Errorf("%s is %q, want %q", want.name, got, want.value)
				}
			}
			var routes corev1.ConfigMap
			out.object(t, "ConfigMap", "-routes", &routes)
			for _, want := range []string{"hook/releases/download/v0.10.0", "arch: both", `kernelVersion: "5.10"`, `kernelVersion: "6.6"`, "extension: tar.gz"} {
				if !strings.Contains(routes.Data["artifacts.yaml"], want) {
					t.Errorf("OS files are fetched without %s:\n%s", want, routes.Data["artifacts.yaml"])
				}
			}
			if !strings.Contains(out.notes(), "stack.name (by default tink-stack) -> service.name") {
				t.Errorf("the notes do not tell of the former defaults:\n%s", out.notes())
			}
		})
	}
	t.Run("this chart's own values have this chart's defaults", func(t *testing.T) {
		out := rendersFrom(t, "publicIP: 192.0.2.2\nglobal: {imageRegistry: registry.example}")
		var service corev1.Service
		out.object(t, "Service", "stack", &service)
		if service.Spec.LoadBalancerClass != nil || strings.Contains(out.notes(), "former") {
			t.Errorf("%+v\n%s", service.Spec, out.notes())
		}
	})
}

// TestFormerReleasesRender takes values in the shape of every release of the former chart, whole and each key alone.
func TestFormerReleasesRender(t *testing.T) {
	files, err := filepath.Glob("testdata/former/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			rendersFrom(t, string(text))
			alone(from(t, string(text)), nil, func(values map[string]any) {
				if _, err := inProcess(release{}, values); err != nil {
					text, _ := yaml.Marshal(values)
					t.Errorf("%v\nof\n%s", err, text)
				}
			})
		})
	}
}

// alone calls with each leaf of values by itself.
func alone(values map[string]any, path []string, call func(map[string]any)) {
	for key, value := range values {
		at := append(path[:len(path):len(path)], key)
		if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
			alone(inner, at, call)
			continue
		}
		call(nest(at, value))
	}
}

// TestEKSAnywhereHostNetworkIsMapped: on its bootstrap cluster the stack is on the node's network, without a Service.
func TestEKSAnywhereHostNetworkIsMapped(t *testing.T) {
	for values, host := range map[string]bool{
		"stack: {hostNetwork: true, service: {enabled: false}, relay: {enabled: false}, hook: {enabled: false}}":  true,
		"stack: {hostNetwork: false, service: {enabled: false}, relay: {enabled: false}, hook: {enabled: false}}": true,
		"stack: {service: {enabled: false}, relay: {enabled: false}}":                                             true,
		"stack: {hostNetwork: true, relay: {sourceInterface: eno1}}":                                              true,
		"stack: {hostNetwork: true}": true,
	} {
		var deployment appsv1.Deployment
		out := rendersFrom(t, values)
		out.object(t, "Deployment", "stack-proxy", &deployment)
		if deployment.Spec.Template.Spec.HostNetwork != host {
			t.Errorf("%s: on the node's network: %v", values, !host)
		}
		if strings.Contains(values, "eno1") != (variable(&deployment, "dhcp-relay", "DHCP_RELAY_LISTENERS") == "eno1") {
			t.Errorf("%s: hears on %q", values, variable(&deployment, "dhcp-relay", "DHCP_RELAY_LISTENERS"))
		}
	}
	if notes := rendersFrom(t, "stack: {hostNetwork: true}").notes(); !strings.Contains(notes, "stack.relay.sourceInterface is not set: on the node's network the relay hears no broadcasts") {
		t.Errorf("the notes do not say that nobody listens:\n%s", notes)
	}
}

// TestFormerValuesPassTheChecksOfThisChart: one sentence each, by the key that was written.
func TestFormerValuesPassTheChecksOfThisChart(t *testing.T) {
	for values, sentence := range map[string]string{
		"global: {publicIP: 300.2.1.1}":                                         `global.publicIP is "300.2.1.1", which is no IP address`,
		"stack: {loadBalancerIP: here}":                                         `stack.loadBalancerIP is "here", which is no IP address`,
		"stack: {name: Foo_Bar}":                                                `stack.name is "Foo_Bar", which is no name of a Service`,
		"smee: {name: my smee}":                                                 `smee.name is "my smee", which is no host name`,
		"stack: {lbClass: a b}":                                                 `stack.lbClass is "a b", which is no load balancer class`,
		"stack: {hook: {port: 99999}}":                                          `stack.hook.port is "99999", which is no number from 1 to 65535`,
		"stack: {relay: {maxHopCount: 0}}":                                      `stack.relay.maxHopCount is "0", which is no number from 1 to 255`,
		"stack: {relay: {interfaceMode: bridge}}":                               `stack.relay.interfaceMode is "bridge", which is none of macvlan, ipvlan`,
		"stack: {service: {type: ExternalName}}":                                `stack.service.type is "ExternalName", which is none of`,
		"stack: {enabled: perhaps}":                                             `stack.enabled is "perhaps", which is neither true nor false`,
		"stack: {hook: {arch: riscv}}":                                          `stack.hook.arch is "riscv", which is none of x86_64, aarch64, both`,
		"stack: {hook: {downloadURL: hook}}":                                    `stack.hook.downloadURL is "hook", which is no http or https URL`,
		"stack: {hook: {port: 7171}}":                                           "routes.files.port comes from stack.hook.port",
		"stack: {service: {type: NodePort}}\nservice: {loadBalancerClass: a/b}": "service.type comes from stack.service.type",
	} {
		refuses(t, values, sentence)
	}
	// What may be written in more than one way is taken in any.
	out := rendersFrom(t, `stack: {enabled: "true", hook: {port: "8081", kernelVersion: 5.10}, relay: {maxHopCount: "20"}}`)
	var deployment appsv1.Deployment
	out.object(t, "Deployment", "stack-proxy", &deployment)
	if hops := variable(&deployment, "dhcp-relay", "DHCP_RELAY_MAX_HOPS"); hops != "16" || !strings.Contains(out.notes(), "stack.relay.maxHopCount -> relay.maxHops=16") {
		t.Errorf("hops are %s:\n%s", hops, out.notes())
	}
}

// TestNativeValuesWinOverFormerOnes: where both are given, this chart's own value counts, also after helm get values
// --all.
func TestNativeValuesWinOverFormerOnes(t *testing.T) {
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := from(t, string(text))
	both := from(t, `
publicIP: 192.0.2.2
trustedProxies: [10.0.0.0/8]
service: {name: mine, loadBalancerClass: example.com/lb}
relay: {maxHops: 3}
broadcast: {kind: ipvlan, parents: [eno7]}
files: {fetch: {sets: [{name: own, url: "https://a.example"}]}}
routes: {hegel: {port: 50062}}
stack:
  name: tink-stack
  loadBalancerIP: 192.0.2.3
  lbClass: kube-vip.io/kube-vip-class
  relay: {maxHopCount: 10, sourceInterface: eno1, interfaceMode: macvlan}
  hook: {downloadURL: "https://b.example"}
global: {trustedProxies: [10.1.0.0/16]}
hegel: {service: {port: 50063}}
`)
	for name, values := range map[string]map[string]any{"given": both, "helm get values --all": merged(all, both)} {
		t.Run(name, func(t *testing.T) {
			out, err := inProcess(release{}, values)
			if err != nil {
				t.Fatal(err)
			}
			var service corev1.Service
			out.object(t, "Service", "mine", &service)
			var routes corev1.ConfigMap
			out.object(t, "ConfigMap", "-routes", &routes)
			var deployment appsv1.Deployment
			out.object(t, "Deployment", "stack-proxy", &deployment)
			if service.Spec.LoadBalancerIP != "192.0.2.2" || *service.Spec.LoadBalancerClass != "example.com/lb" {
				t.Errorf("%+v", service.Spec)
			}
			if data := routes.Data["routes.yaml"] + routes.Data["artifacts.yaml"]; !strings.Contains(data, "10.0.0.0/8") ||
				!strings.Contains(data, "50062") || !strings.Contains(data, "a.example") || strings.Contains(data, "b.example") {
				t.Errorf("%s", data)
			}
			if got := variable(&deployment, "broadcast-init", "BROADCAST_INIT_PARENT"); got != "eno7" {
				t.Errorf("listens on %s", got)
			}
			if got := variable(&deployment, "dhcp-relay", "DHCP_RELAY_MAX_HOPS"); got != "3" {
				t.Errorf("%s hops", got)
			}
			for _, line := range []string{
				"stack.name: service.name is set, and counts", "stack.loadBalancerIP: publicIP is set, and counts",
				"stack.lbClass: service.loadBalancerClass is set, and counts", "global.trustedProxies: said whom Smee and Hegel believe",
				"stack.relay.maxHopCount: relay.maxHops is set, and counts", "stack.relay.sourceInterface: broadcast.parents is set, and counts",
				"stack.relay.interfaceMode: broadcast.kind is set, and counts", "stack.hook.downloadURL: files is set, and counts",
				"hegel.service.port: routes.hegel.port is set, and counts",
			} {
				if !strings.Contains(out.notes(), line) {
					t.Errorf("the notes do not say %q:\n%s", line, out.notes())
				}
			}
		})
	}
}

// merged puts values over others, as Helm does.
func merged(under, over map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range under {
		out[key] = value
	}
	for key, value := range over {
		inner, ok := value.(map[string]any)
		below, has := out[key].(map[string]any)
		if ok && has {
			value = merged(below, inner)
		}
		out[key] = value
	}
	return out
}

// TestNoFormerValueVanishesSilently: what has no meaning here is named, and nothing is said of what is off.
func TestNoFormerValueVanishesSilently(t *testing.T) {
	for values, line := range map[string]string{
		"stack: {deployment: {replicas: 3}}":                                                 "stack.deployment.replicas: it has no meaning here",
		"global: {publicIp: 192.0.2.1}":                                                      "global.publicIp: it has no meaning here",
		"stack: {hook: {downloadsDest: /opt/hook}}":                                          "stack.hook.downloadsDest: it has no meaning here",
		"stack: {relay: {sourceInterfce: eno1}}":                                             "stack.relay.sourceInterfce: it has no meaning here",
		"stack: {image: nginx}":                                                              "stack.image: the programs are this project's own",
		"stack: {hook: {persistence: {localPersistentVolume: {path: /tmp}}}}":                "stack.hook.persistence.localPersistentVolume: a directory of one node",
		"stack: {kubevip: {enabled: true}}":                                                  "stack.kubevip: this chart brings no load balancer",
		"stack: {hook: {downloads: [{url: 'https://a.example/b', sha512sum: {kernel: x}}]}}": "stack.hook.downloads: has sums of what is in the archives",
		"boots: {remoteIp: 192.0.2.3}":                                                       "boots: Boots became Smee",
	} {
		if notes := rendersFrom(t, values).notes(); !strings.Contains(notes, line) {
			t.Errorf("%s: want %q in\n%s", values, line, notes)
		}
	}
	for _, values := range []string{
		"stack: {kubevip: {enabled: false}}", "stack: {lbClass: '', kubevip: {enabled: true}}", "stack: {lbClass: null}",
	} {
		if notes := rendersFrom(t, values).notes(); strings.Contains(notes, "brings no load balancer") {
			t.Errorf("%s: the notes speak of kube-vip:\n%s", values, notes)
		}
	}
}

// TestFormerBackendsAreClassic: the other presets have neither those backends nor their routes, and a helm get values
// --all of the former chart names them all.
func TestFormerBackendsAreClassic(t *testing.T) {
	for _, preset := range []string{"tinkerbell", "tinkerbell-0.22"} {
		out := rendersFrom(t, "preset: "+preset+`
global: {publicIP: 192.0.2.2}
hegel: {name: hegel, service: {port: 50061}}
tink: {server: {name: tink-server, service: {port: 42113}}}
smee: {name: smee, hostNetwork: true, http: {port: 7171}, tftp: {port: 69}, syslog: {port: 514}}
`)
		for _, line := range []string{
			"smee.http.port: preset " + preset + " has no such backend", "hegel.name: preset " + preset, "tink.server.service.port: preset " + preset,
		} {
			if !strings.Contains(out.notes(), line) {
				t.Errorf("want %q in\n%s", line, out.notes())
			}
		}
		if strings.Contains(out.notes(), "smee-tftp") || strings.Contains(out.notes(), "-> backends.") {
			t.Errorf("the notes speak of the classic routes:\n%s", out.notes())
		}
	}
}

// TestGlobalsOfOthersAreNotTheFormerCharts: a chart above this one may have a global.rbac of its own.
func TestGlobalsOfOthersAreNotTheFormerCharts(t *testing.T) {
	for values, want := range map[string]string{
		"global: {rbac: {create: true}, publicIP: '', trustedProxies: []}": "stack",
		"global: {rbac: {type: Role}}":                                     "tink-stack",
	} {
		var service corev1.Service
		rendersFrom(t, values).object(t, "Service", "stack", &service)
		if service.Name != want {
			t.Errorf("%s: the Service is %s, want %s", values, service.Name, want)
		}
	}
}

// TestStrategyHasNoNull as the API's types want it.
func TestStrategyHasNoNull(t *testing.T) {
	var deployment appsv1.Deployment
	out := rendersFrom(t, "stack: {deployment: {strategy: {type: Recreate, rollingUpdate: null}}}")
	out.object(t, "Deployment", "-proxy", &deployment)
	if deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		t.Errorf("%+v", deployment.Spec.Strategy)
	}
	for _, document := range out.documents() {
		if strings.Contains(document, "rollingUpdate: null") {
			t.Errorf("a null is left:\n%s", document)
		}
	}
}

// TestModernChartsValuesAreRefusedWithOneSentence: the values of Tinkerbell's own chart, also as EKS Anywhere makes them.
func TestModernChartsValuesAreRefusedWithOneSentence(t *testing.T) {
	for values, says := range map[string][]string{
		"deployment: {imageTag: latest}":                     {"deployment is a value of Tinkerbell's own chart", "set here preset=tinkerbell and publicIP"},
		"optional: {kubevip: {enabled: false}}":              {"optional is a value", "files.fetch.sets takes optional.hookos.downloadURL"},
		"artifactsFileServer: http://192.0.2.2:7173":         {"artifactsFileServer is a value", "publicIP:7173"},
		"service: {lbClass: a/b}":                            {"service.lbClass is a value", "service.loadBalancerClass"},
		"service: {loadBalancerIP: 192.0.2.2}":               {"service.loadBalancerIP is a value", "publicIP"},
		"rbac: {type: Role, name: tinkerbell}":               {"rbac.name, rbac.type are values"},
		"publicIP:\nname: tinkerbell\ntrustedProxies: []":    {"name is a value"},
		"deployment: {envs: {}}\nservice: {lbClass: null}":   {"deployment, service.lbClass are values"},
		"deployment: {}\nrelay: {enabled: false}\noptional:": {"deployment, optional are values"},
		`
deployment: {affinity: {}, agentImage: a, envs: {globals: {backend: kube}, smee: {dhcpMode: reservation}}, hostNetwork: false, init: {enabled: false}}
name: tinkerbell
optional: {hookos: {enabled: false}, kubevip: {enabled: true, image: a}}
publicIP: 192.0.2.4
service: {lbClass: kube-vip.io/kube-vip-class, loadBalancerIP: 192.0.2.4, type: LoadBalancer}
trustedProxies: [192.168.0.0/16]`: {"deployment, name, optional, service.lbClass, service.loadBalancerIP are values"},
	} {
		for _, sentence := range says {
			refuses(t, values, sentence)
		}
	}
}
