package charttest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// TestOnlyAddressAnnotationsTakeThePlaceOfTheAddress: an annotation that only ends alike leaves publicIP alone.
func TestOnlyAddressAnnotationsTakeThePlaceOfTheAddress(t *testing.T) {
	for key, asks := range map[string]bool{
		"metallb.io/allow-shared-ip": false, "metallb.universe.tf/allow-shared-ip": false, "example.org/ips": false,
		"external-dns.alpha.kubernetes.io/internal-hostname-ip": false, "metallb.io/address-pool": false,
		"metallb.io/loadBalancerIPs": true, "metallb.universe.tf/loadBalancerIPs": true, "kube-vip.io/loadbalancerIPs": true,
		"lbipam.cilium.io/ips": true, "io.cilium/lb-ipam-ips": true, "purelb.io/addresses": true,
	} {
		var service corev1.Service
		rendersFrom(t, "publicIP: 192.0.2.2\nservice: {annotations: {"+key+": '192.0.2.2, 2001:db8::2'}}").object(t, "Service", "stack", &service)
		if (service.Spec.LoadBalancerIP == "") != asks {
			t.Errorf("%s: loadBalancerIP is %q", key, service.Spec.LoadBalancerIP)
		}
	}
	refuses(t, "publicIP: 192.0.2.2\nservice: {annotations: {metallb.io/loadBalancerIPs: 192.0.2.3}}",
		"publicIP is 192.0.2.2 and service.annotations asks for another address by metallb.io/loadBalancerIPs=192.0.2.3")
	refuses(t, "service: {loadBalancerClass: a/b, annotations: {metallb.io/allow-shared-ip: key}}", "no address is asked of it")
}

// TestNullIsTheDefault sets every documented value to null, alone and all together, and each group.
func TestNullIsTheDefault(t *testing.T) {
	want := rendersFrom(t, "{}")
	same := func(path []string) {
		out, err := inProcess(release{}, nest(path, nil))
		if err != nil {
			t.Errorf("%s: null: %v", strings.Join(path, "."), err)
			return
		}
		for name, text := range want {
			if out[name] != text {
				t.Errorf("%s: null gives another %s", strings.Join(path, "."), name)
			}
		}
	}
	raw := rawSchema(t)
	together := map[string]any{}
	groups := map[string]bool{}
	documented(raw, nil, func(path []string, _ map[string]any) {
		together = merged(together, nest(path, nil))
		same(path)
		for i := 1; i < len(path); i++ {
			if group := path[:i]; !groups[strings.Join(group, ".")] {
				groups[strings.Join(group, ".")] = true
				same(group)
			}
		}
	})
	out, err := inProcess(release{}, together)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want {
		if out[name] != text {
			t.Errorf("all null gives another %s", name)
		}
	}
	rendersFrom(t, "routes: {hegel: {port: null, timeouts: {idle: null}, hosts: null}, tink: null}\ncommonLabels: {a: null}")
}

// TestNoKeyIsTwice: labels and annotations that the chart sets, too.
func TestNoKeyIsTwice(t *testing.T) {
	out := rendersFrom(t, `
commonLabels: {app.kubernetes.io/part-of: mine, app.kubernetes.io/managed-by: me, team: metal}
podLabels: {team: pod}
podAnnotations: {kubectl.kubernetes.io/default-container: dhcp-relay}
commonAnnotations: {a: common}
`)
	for _, document := range out.documents() {
		if err := yaml.UnmarshalStrict([]byte(document), &map[string]any{}); err != nil {
			t.Errorf("%v\n%s", err, document)
		}
	}
}

// TestLabelsCannotBreakTheSelector: neither a pod's nor all objects'.
func TestLabelsCannotBreakTheSelector(t *testing.T) {
	for _, where := range []string{"podLabels", "commonLabels"} {
		for _, key := range []string{"name", "instance", "component"} {
			values := fmt.Sprintf("%s: {app.kubernetes.io/%s: mine}", where, key)
			refuses(t, values, where+" sets app.kubernetes.io/"+key+", by which the Service finds its pods: leave it out")
		}
	}
}

// TestThePodTakesWhatIsAdded, and what would be lost is refused with the value to set in its place.
func TestThePodTakesWhatIsAdded(t *testing.T) {
	var deployment appsv1.Deployment
	rendersFrom(t, `
extraContainers: [{name: sidecar, image: a}]
extraInitContainers: [{name: before, image: b}]
extraVolumes: [{name: extra, emptyDir: {}}]
podSpec: {hostAliases: [{ip: 192.0.2.1, hostnames: [a]}], dnsPolicy: Default, enableServiceLinks: true, runtimeClassName: gvisor}
podSecurityContext: {runAsNonRoot: false, sysctls: [{name: net.core.somaxconn, value: "1024"}], seccompProfile: {type: Unconfined}}
proxy:
  extraVolumeMounts: [{name: extra, mountPath: /extra}]
  extraEnv: [{name: GOMEMLIMIT, value: 1GiB}]
init: {extraEnv: [{name: A, value: b}]}
`).object(t, "Deployment", "stack-proxy", &deployment)
	pod := deployment.Spec.Template.Spec
	var names []string
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "broadcast-init before stack-proxy dhcp-relay sidecar" {
		t.Errorf("containers: %s", got)
	}
	if pod.DNSPolicy != corev1.DNSDefault || !*pod.EnableServiceLinks || *pod.RuntimeClassName != "gvisor" || len(pod.HostAliases) != 1 {
		t.Errorf("podSpec is not all there: %+v", pod)
	}
	sysctls := map[string]int{}
	for _, each := range pod.SecurityContext.Sysctls {
		sysctls[each.Name]++
	}
	if sysctls["net.core.somaxconn"] != 1 || sysctls["net.ipv4.ip_unprivileged_port_start"] != 1 || *pod.SecurityContext.RunAsNonRoot || pod.SecurityContext.SeccompProfile.Type != "Unconfined" {
		t.Errorf("the pod's security context is %+v", pod.SecurityContext)
	}
	proxy := pod.Containers[0]
	if mounts := proxy.VolumeMounts; mounts[len(mounts)-1].MountPath != "/extra" || proxy.StartupProbe == nil {
		t.Errorf("stack-proxy is %+v", proxy)
	}
	if got := variable(&deployment, "stack-proxy", "GOMEMLIMIT"); got != "1GiB" {
		t.Errorf("GOMEMLIMIT is %s", got)
	}
	for key, value := range map[string]string{
		"initContainers": "extraInitContainers", "containers": "extraContainers", "volumes": "extraVolumes",
		"securityContext": "podSecurityContext", "nodeSelector": "nodeSelector", "tolerations": "tolerations",
		"imagePullSecrets": "imagePullSecrets", "hostNetwork": "broadcast.provider",
	} {
		refuses(t, "podSpec: {"+key+": [{a: b}]}", "podSpec."+key+" is a value of its own: set "+value+" in its place")
	}
	for values, sentence := range map[string]string{
		"extraContainers: [{name: dhcp-relay}]":                                 "extraContainers[0].name is dhcp-relay, which another container",
		"extraContainers: [{name: a}]\nextraInitContainers: [{name: a}]":        "extraContainers[0].name is a, which another container",
		"extraVolumes: [{name: routes}]":                                        "extraVolumes[0].name is routes, which another volume",
		"proxy: {extraVolumeMounts: [{name: files, mountPath: /files/}]}":       "proxy.extraVolumeMounts[0].mountPath is /files/, where something else is mounted",
		"proxy: {extraVolumeMounts: [{name: a, mountPath: /a}]}":                "proxy.extraVolumeMounts[0].name is a, and there is no such volume: add it to extraVolumes",
		"relay: {extraEnv: [{name: A, value: '1'}, {name: A, value: '2'}]}":     "relay.extraEnv[1].name is A, which another one has",
		"proxy: {secrets: [a]}\nextraVolumes: [{name: secret-a, emptyDir: {}}]": "extraVolumes[0].name is secret-a, which another volume",
	} {
		refuses(t, values, sentence)
	}
}

// TestPortsAndNamesDoNotClash, neither of the Service nor of its node ports.
func TestPortsAndNamesDoNotClash(t *testing.T) {
	backend := `protocol: tcp, backends: ["192.0.2.9:1"]`
	out := rendersFrom(t, `
routes:
  aaaaaaaaaaaa1: {listen: [1001, 1002], `+backend+`}
  aaaaaaaaaaaa2: {listen: [1003, 1004], `+backend+`}
  aaaaaaaaa-1004: {listen: [1005, 1006], `+backend+`}
service: {nodePorts: {aaaaaaaaaaaa1: 30001, hegel: 30002, smee-tftp: 30002}}
`)
	var service corev1.Service
	out.object(t, "Service", "stack", &service)
	seen := map[string]bool{}
	for _, port := range service.Spec.Ports {
		if seen[port.Name] || len(validation.IsValidPortName(port.Name)) > 0 {
			t.Errorf("port %q of %+v", port.Name, service.Spec.Ports)
		}
		seen[port.Name] = true
	}
	for values, sentence := range map[string]string{
		"routes: {dhcp: {port: 1001, " + backend + "}}":                                       "routes.dhcp is called as the DHCP relay's port is",
		"routes: {admin-proxy: {port: 1001, " + backend + "}}":                                "routes.admin-proxy is called as the proxy's admin port is",
		`routes: {a: {listen: ["99999"], ` + backend + `}}`:                                   "/routes/a/listen/0",
		"routes: {a: {listen: [65536], " + backend + "}}":                                     "/routes/a/listen/0",
		"routes: {a--b: {port: 1001, " + backend + "}}":                                       "a--b",
		"service: {nodePorts: {hegel: 30001, tink: 30001}}":                                   "service.nodePorts.hegel and service.nodePorts.tink are both 30001/TCP",
		"routes: {hegel: {service: false}}\nservice: {nodePorts: {hegel: 30001}}":             "service.nodePorts names hegel, whose port the Service has not",
		"service: {name: stack-admin}":                                                        "service.name is stack-admin, as the Service of the admin ports is called",
		"preset: tinkerbell\nroutes: {a: {port: 7080, " + backend + "}}":                      "routes.a.port is 7080/TCP, which route http has",
		"routes: {a: {port: 67, protocol: udp, backends: ['a:1']}}":                           "routes.a.port is 67/UDP, which the DHCP relay has",
		"routes: {a: {listen: ['192.0.2.1:9069'], " + backend + "}}":                          "routes.a.listen is 9069/TCP, which the proxy's admin port has",
		"routes: {a: {port: 1001, " + backend + "}, b: {listen: [1, 1001], " + backend + "}}": "1001/TCP",
	} {
		refuses(t, values, sentence)
	}
	// A route off the Service does not take its port from the one that shares it.
	rendersFrom(t, `
routes:
  a: {protocol: http, port: 8443, hosts: [a.example], service: false, backends: ["a:1"]}
  b: {protocol: http, port: 8443, hosts: [b.example], backends: ["b:1"]}
`).object(t, "Service", "stack", &service)
	if text := fmt.Sprint(service.Spec.Ports); !strings.Contains(text, "8443") {
		t.Errorf("b is not on the Service: %s", text)
	}
}

// TestOuterRoutesTakeWhatPassesThere: no UDP through an Ingress, no TCP through a UDPRoute.
func TestOuterRoutesTakeWhatPassesThere(t *testing.T) {
	gateway := func(kind, route string) string {
		return "gatewayRoutes: {a: {kind: " + kind + ", route: " + route + ", parentRefs: [{name: gw}]}}"
	}
	ingress := func(route string) string {
		return "ingress: {enabled: true, hosts: [{host: a.example, paths: [{route: " + route + "}]}]}"
	}
	for values, sentence := range map[string]string{
		ingress("smee-tftp"):              `ingress.hosts[0].paths[0].route is "smee-tftp", whose protocol is tftp, and an Ingress takes http, grpc, files: name another route`,
		ingress("tink"):                   `whose protocol is tcp, and an Ingress takes http, grpc, files: name another route, or set routes.tink.protocol`,
		ingress("dhcp"):                   `whose protocol is dhcp`,
		gateway("HTTPRoute", "smee-tftp"): `gatewayRoutes.a.route is "smee-tftp", whose protocol is tftp, and an HTTPRoute takes`,
		gateway("GRPCRoute", "files"):     `whose protocol is files, and a GRPCRoute takes`,
		gateway("TCPRoute", "smee-tftp"):  `whose protocol is tftp, and a TCPRoute takes`,
		gateway("UDPRoute", "hegel"):      `whose protocol is http, and a UDPRoute takes`,
		"ingressRoutes: {a: {route: smee-syslog, match: Host(`a`)}}": `ingressRoutes.a.route is "smee-syslog", whose protocol is syslog`,
	} {
		refuses(t, values, sentence)
	}
	for _, values := range []string{ingress("hegel"), gateway("GRPCRoute", "tink"), gateway("UDPRoute", "dhcp"), gateway("TCPRoute", "tink")} {
		rendersFrom(t, values)
	}
}

// TestTwoNetworksAreTwoInterfaces of a pod, by the name that Multus gives or the one that was written.
func TestTwoNetworksAreTwoInterfaces(t *testing.T) {
	for _, networks := range []string{"[{name: a, interface: net1}, {name: b, interface: net1}]", "[{name: a}, {name: b, interface: net1}]"} {
		refuses(t, "broadcast: {provider: multus, multus: {networks: "+networks+"}}",
			"broadcast.multus.networks[0] and broadcast.multus.networks[1] are both interface net1: set broadcast.multus.networks[1].interface to another")
	}
}

// TestStringsStayStrings where they look like something else.
func TestStringsStayStrings(t *testing.T) {
	out, err := inProcess(release{name: "123"}, from(t, `
priorityClassName: "1e3"
serviceAccount: {create: true, name: "123"}
service: {loadBalancerClass: "true"}
publicIP: 192.0.2.2
podLabels: {a: "true", b: "1"}
files: {volume: {type: pvc, pvc: {storageClassName: "012", size: 4}}}
proxy: {secrets: ["1"], zone: "null"}
relay: {tokenKey: {existingSecret: "7", key: "8"}}
image: {registry: "127.0.0.1:5000", tag: "1.0"}
ingress: {enabled: true, className: "1", hosts: [{host: "1", paths: [{path: "/", route: hegel}]}]}
routes: {"null": {protocol: tcp, port: 1, backends: ["a:1"]}, "true": {protocol: tcp, port: 2, backends: ["a:1"]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range out.documents() {
		var o object
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		strict(t, o.kind(), document)
	}
}

// TestNamesOfServicesAreValid of Services, for every name that Helm takes for a release.
func TestNamesOfServicesAreValid(t *testing.T) {
	long := strings.Repeat("x", 53)
	for _, at := range []struct{ name, values, service string }{
		{"a.b", "", "a-b-stack"}, {"9lives", "", "stack-9lives-stack"}, {"stack.9", "", "stack-9"}, {long, "", ""},
		{strings.Repeat("y", 48), "", ""}, {"a", "fullnameOverride: " + long, long},
	} {
		out, err := inProcess(release{name: at.name}, from(t, at.values))
		if err != nil {
			t.Errorf("%s: %v", at.name, err)
			continue
		}
		var service corev1.Service
		out.object(t, "Service", "", &service)
		if at.service != "" && service.Name != at.service {
			t.Errorf("%s: the Service is %s, want %s", at.name, service.Name, at.service)
		}
		for _, document := range out.documents() {
			var o corev1.ObjectReference
			var meta struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
				t.Fatal(err)
			}
			o.Name = meta.Metadata.Name
			if faults := validation.IsDNS1035Label(o.Name); len(faults) > 0 {
				t.Errorf("%s: %s %q: %v", at.name, meta.Kind, o.Name, faults)
			}
		}
	}
	names := map[string]string{}
	for _, name := range []string{strings.Repeat("z", 52) + "1", strings.Repeat("z", 52) + "2"} {
		out, err := inProcess(release{name: name}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var service corev1.Service
		out.object(t, "Service", "", &service)
		if other, ok := names[service.Name]; ok {
			t.Errorf("%s and %s are both called %s", name, other, service.Name)
		}
		names[service.Name] = name
	}
	refuses(t, "fullnameOverride: "+long+"x", "fullnameOverride")
}

// TestWhatTheClustersVersionLacksIsRefused is refused, by the version that it came with.
func TestWhatTheClustersVersionLacksIsRefused(t *testing.T) {
	for values, versions := range map[string][2]string{
		"broadcast: {watch: true}":                              {"v1.28.9", "v1.29.0-gke.1"},
		"files: {volume: {type: image, image: {reference: a}}}": {"v1.32.9+k3s1", "v1.33.0"},
	} {
		refusesAt(t, release{kubernetes: versions[0]}, values, "needs Kubernetes "+strings.TrimPrefix(versions[1], "v")[:4]+" and this is "+versions[0])
		if _, err := inProcess(release{kubernetes: versions[1]}, from(t, values)); err != nil {
			t.Errorf("%s: %v", versions[1], err)
		}
	}
}

// TestSetsOfFilesAreRead as deep as their fields go, as stack-proxy reads them.
func TestSetsOfFilesAreRead(t *testing.T) {
	proxy := filepath.Join(build(t), "stack-proxy")
	for set, good := range map[string]bool{
		`{name: a, url: "https://a.example"}`: true,
		`{name: a, url: "https://a.example", arch: both, kernelVersion: "6.6", extension: iso, path: p}`:                              true,
		`{name: a, url: "https://a.example", names: ["hook_*"], checksumsDigest: ""}`:                                                 true,
		`{name: a, oci: "registry.example/captain:v1"}`:                                                                               true,
		`{name: a, files: [{url: "https://a.example/b", digest: "sha256:` + strings.Repeat("0", 64) + `", name: c, extract: false}]}`: true,
		`{name: a, urll: "https://a.example"}`:                                                                                        false,
		`{name: a, url: "https://a.example", arch: arm}`:                                                                              false,
		`{name: a, url: "https://a.example", kernelVersion: 6.7}`:                                                                     false,
		`{name: A, url: "https://a.example"}`:                                                                                         false,
		`{name: a, files: [{url: "https://a.example/b", digset: x}]}`:                                                                 false,
		`{name: a, files: [{url: "https://a.example/b", digest: 5}]}`:                                                                 false,
	} {
		_, err := inProcess(release{}, from(t, "files: {fetch: {sets: ["+set+"]}}"))
		if (err == nil) != good {
			t.Errorf("%s: the chart says %v", set, err)
		}
		file := filepath.Join(t.TempDir(), "artifacts.yaml")
		if err := os.WriteFile(file, []byte("volume: /files\nsets: ["+set+"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), proxy, "check")
		cmd.Env = append(os.Environ(), "STACK_PROXY_PRESET=tinkerbell", "STACK_PROXY_ARTIFACTS_FILE="+file,
			"STACK_PROXY_FILES_DIRECTORY=/")
		if out, err := cmd.CombinedOutput(); (err == nil) != good {
			t.Errorf("%s: stack-proxy check says %v\n%s", set, err, out)
		}
	}
}

// TestTheSelectorIsImmutable: no override changes it.
func TestTheSelectorIsImmutable(t *testing.T) {
	for _, values := range []string{"{}", "fullnameOverride: fixed", "commonLabels: {a: b}"} {
		var deployment appsv1.Deployment
		rendersFrom(t, values).object(t, "Deployment", "-proxy", &deployment)
		text, err := json.Marshal(deployment.Spec.Selector.MatchLabels)
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"app.kubernetes.io/component":"proxy","app.kubernetes.io/instance":"stack","app.kubernetes.io/name":"stack"}`; string(text) != want {
			t.Errorf("%s: selects by %s", values, text)
		}
	}
}

// TestGlobalsCountForAllImages, and all objects but the Roles for others' endpoints are in the release's namespace.
func TestGlobalsCountForAllImages(t *testing.T) {
	out := rendersFrom(t, `
global: {imageRegistry: registry.example, imagePullSecrets: [one, {name: two}]}
imagePullSecrets: [{name: two}, {name: three}]
monitoring: {podMonitor: {enabled: true}}
routes: {hegel: {backends: ["service:other/hegel:http"]}}
publicIP: 192.0.2.2
loadBalancer: {enabled: true}
`)
	for _, document := range out.documents() {
		var o struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"Role": "other", "RoleBinding": "other"}[o.Kind]
		if want == "" || slices.Contains([]string{"stack-lb", "stack-boots", "stack-hardware"}, o.Metadata.Name) {
			want = "tinkerbell"
		}
		if strings.HasPrefix(o.Kind, "ClusterRole") {
			want = ""
			if o.Metadata.Name != "tinkerbell-stack-lb" {
				t.Errorf("a release in another namespace could have a %s %s", o.Kind, o.Metadata.Name)
			}
		}
		if o.Metadata.Namespace != want {
			t.Errorf("%s is in %s, want %s", o.Kind, o.Metadata.Namespace, want)
		}
		if want == "other" && o.Metadata.Name != "stack-tinkerbell-endpoints" {
			t.Errorf("another release could have a %s %s in that namespace", o.Kind, o.Metadata.Name)
		}
	}
	var deployment appsv1.Deployment
	out.object(t, "Deployment", "-proxy", &deployment)
	pod := deployment.Spec.Template.Spec
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		if !strings.HasPrefix(c.Image, "registry.example/tinkerbell/stack/") {
			t.Errorf("%s is %s", c.Name, c.Image)
		}
	}
	if got := fmt.Sprint(pod.ImagePullSecrets); got != "[{one} {two} {three}]" {
		t.Errorf("pulls with %s", got)
	}
}
