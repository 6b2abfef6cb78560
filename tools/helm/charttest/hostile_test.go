package charttest

import (
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
)

// TestATagIsWhatWasWritten: YAML makes 1.1 of 1.10 and 4.055115e+06 of a commit of digits.
func TestATagIsWhatWasWritten(t *testing.T) {
	for _, tag := range []string{"1.10", "2025", "4055115", "1e5", "0123456"} {
		refuses(t, "image: {tag: "+tag+"}", "quote it")
		out := rendersFrom(t, "image: {tag: '"+tag+"'}")
		var deployment appsv1.Deployment
		out.object(t, "Deployment", "-proxy", &deployment)
		if image := deployment.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(image, ":"+tag) {
			t.Errorf("the image is %s", image)
		}
	}
}

// TestLargeNumbersAreWrittenInDigits: no program and no API takes 1e+06 for a whole number.
func TestLargeNumbersAreWrittenInDigits(t *testing.T) {
	out := rendersFrom(t, `
replicas: 2
podSecurityContext: {fsGroup: 1000650000}
boots: {memory: 1000000, resources: {limits: {memory: 10Ti}}}
routes: {hegel: {limits: {connections: 10000000}}}
extraContainers: [{name: a, image: b, securityContext: {runAsUser: 1000650000}}]
files: {fetch: {sets: [{name: a, url: "http://a.example"}], maxSize: 100000000000}}
`)
	for _, document := range out.documents() {
		if found := regexp.MustCompile(`.*[0-9]e\+[0-9].*`).FindString(document); found != "" {
			t.Error(found)
		}
	}
	refuses(t, "relay: {maxHops: 1.5}", "/relay/maxHops")
}

// TestAnUmbrellaSwitchesItOff by the key that Helm's condition names.
func TestAnUmbrellaSwitchesItOff(t *testing.T) {
	on, off := rendersFrom(t, "enabled: true\nglobal: {storageClass: x, foo: {bar: 1}}"), rendersFrom(t, "enabled: false")
	if len(on.documents()) < 3 || strings.Contains(on.notes(), "global") {
		t.Errorf("%d objects, and the notes say:\n%s", len(on.documents()), on.notes())
	}
	if len(off.documents()) != 0 || !strings.Contains(off.notes(), "enabled is false: nothing was installed") {
		t.Errorf("%d objects, and the notes say:\n%s", len(off.documents()), off.notes())
	}
	refuses(t, `enabled: "yes"`, "/enabled")
}

// TestKeysOfOnesOwnBeginWithX: YAML's anchors need a place.
func TestKeysOfOnesOwnBeginWithX(t *testing.T) {
	out := rendersFrom(t, "x-ip: &ip 192.0.2.10\nx-common: &c {a: b}\npublicIP: *ip\ncommonLabels: {<<: *c}")
	var service corev1.Service
	out.object(t, "Service", "stack", &service)
	if service.Spec.LoadBalancerIP != "192.0.2.10" || service.Labels["a"] != "b" {
		t.Errorf("%+v", service)
	}
	refuses(t, "_anchors: {a: b}", "_anchors is no value of this chart: a key of your own begins with x-")
	refuses(t, ".anchors: {a: b}", "such as x-anchors")
	refuses(t, "service: {x-a: b}", "x-a")
}

// TestTwoPodsAreOnTwoNodes, and a pod that is not ready keeps no node from being drained.
func TestTwoPodsAreOnTwoNodes(t *testing.T) {
	out := rendersFrom(t, "replicas: 2")
	var deployment appsv1.Deployment
	out.object(t, "Deployment", "-proxy", &deployment)
	spread := deployment.Spec.Template.Spec.TopologySpreadConstraints
	if len(spread) != 1 || spread[0].WhenUnsatisfiable != corev1.DoNotSchedule ||
		spread[0].TopologyKey != "kubernetes.io/hostname" || *spread[0].NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor {
		t.Errorf("%+v", spread)
	}
	var budget policyv1.PodDisruptionBudget
	out.object(t, "PodDisruptionBudget", "stack", &budget)
	if policy := budget.Spec.UnhealthyPodEvictionPolicy; policy == nil || *policy != policyv1.AlwaysAllow || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%+v", budget.Spec)
	}
}

// TestAMissingSmeeTakesNothingElseOffTheService: what the pod can do it does, and helm install --wait ends.
func TestAMissingSmeeTakesNothingElseOffTheService(t *testing.T) {
	for values, want := range map[string]string{"publicIP: 192.0.2.10": "true", "probes: {requireBackends: true}": ""} {
		out := rendersFrom(t, values)
		var deployment appsv1.Deployment
		out.object(t, "Deployment", "-proxy", &deployment)
		if got := variable(&deployment, "dhcp-relay", "DHCP_RELAY_SERVERS_OPTIONAL"); got != want {
			t.Errorf("%s: it is %q", values, got)
		}
		if notes := out.notes(); !strings.Contains(notes, "Until smee.tinkerbell.svc.cluster.local. resolves, no DHCP request is passed on") ||
			strings.Contains(notes, "--wait") != (want == "") {
			t.Errorf("%s: the notes say:\n%s", values, notes)
		}
	}
}

// TestNotesSayWhyNobodyAnswers: the address that does not come, and what the policy of node ports means.
func TestNotesSayWhyNobodyAnswers(t *testing.T) {
	for values, want := range map[string][2]string{
		"publicIP: 192.0.2.10":                                    {"EXTERNAL-IP stays <pending>", ""},
		"publicIP: 192.0.2.10\nloadBalancer: {enabled: true}":     {"", "EXTERNAL-IP"},
		"publicIP: 192.0.2.10\nservice: {loadBalancerClass: a/b}": {"", "EXTERNAL-IP"},
		"service: {type: NodePort}":                               {"node ports answer on a node that has a pod", "EXTERNAL-IP"},
		"preset: classic":                                         {"whose charts Tinkerbell has deprecated", ""},
		"nodeSelector: {a/b: c, d: 'true'}":                       {"stays Pending: kubectl get nodes -l a/b=c,d=true\n", ""},
		"nodeSelector: {}":                                        {"", "Pending: kubectl"},
		"preset: tinkerbell":                                      {"", "deprecated"},
	} {
		notes := rendersFrom(t, values).notes()
		if !strings.Contains(notes, want[0]) || want[1] != "" && strings.Contains(notes, want[1]) {
			t.Errorf("%s: the notes say:\n%s", values, notes)
		}
	}
	for _, lonely := range []string{"broadcast: {provider: none}", "relay: {enabled: false}"} {
		refuses(t, "publicIP: 192.0.2.10\nservice: {enabled: false}\n"+lonely, "nothing leads to this pod")
	}
	for _, address := range []string{"192.0.2.010", "192.0.2.10/24", "' 192.0.2.10'", "3221225994", "tink.example.org", "'fe80::1%eth0'"} {
		refuses(t, "publicIP: "+address, "/publicIP")
	}
	refuses(t, "publicIP: 0.0.0.0", "no address of anything")
}

// TestTheFilesThatMachinesLoadAreAskedFor by helm test, where it is known what they are.
func TestTheFilesThatMachinesLoadAreAskedFor(t *testing.T) {
	fetch := func(set string) string {
		return `files: {fetch: {sets: [{name: hook, url: "https://example.org/hook"` + set + `}]}}`
	}
	const at = "files=http://stack:8080/"
	for values, want := range map[string]string{
		fetch(", arch: both"):                at + "vmlinuz-x86_64?file " + at + "vmlinuz-aarch64?file",
		fetch(", arch: aarch64, path: hook"): at + "hook/vmlinuz-aarch64?file",
		fetch(""):                            at + "vmlinuz-x86_64?file",
		fetch(", extension: iso"):            at,
		"publicIP: 192.0.2.10":               at,
	} {
		var pod corev1.Pod
		rendersFrom(t, values).object(t, "Pod", "-test", &pod)
		var asked []string
		for _, check := range strings.Fields(pod.Spec.Containers[0].Args[1]) {
			if strings.HasPrefix(check, "files=") {
				asked = append(asked, check)
			}
		}
		if got := strings.Join(asked, " "); got != want {
			t.Errorf("%s: %s", values, got)
		}
	}
}

// TestFormerValuesOfBootsAndOfNodePorts render as the former chart did, or are refused with one sentence.
func TestFormerValuesOfBootsAndOfNodePorts(t *testing.T) {
	out := rendersFrom(t, "boots: {remoteIp: 192.0.2.12, tinkServer: {ip: 192.0.2.11}}\nstack: {loadBalancerIP: 192.0.2.11}")
	var routes corev1.ConfigMap
	out.object(t, "ConfigMap", "-routes", &routes)
	var deployment appsv1.Deployment
	out.object(t, "Deployment", "-proxy", &deployment)
	if text := routes.Data["routes.yaml"]; strings.Contains(text, "smee.") || !strings.Contains(text, "boots.tinkerbell.svc.cluster.local.:80\n") ||
		!strings.Contains(text, "- 80\n") {
		t.Errorf("%s", text)
	}
	if got := variable(&deployment, "dhcp-relay", "DHCP_RELAY_SERVERS"); got != "boots.tinkerbell.svc.cluster.local." {
		t.Errorf("the relay asks %s", got)
	}
	// 0.2, whose Boots hears machines itself on the node's network; and "helm get values --all", which has its resources.
	out = rendersFrom(t, "boots: {image: a, hostNetwork: true, logLevel: debug, resources: {limits: {memory: 128Mi}}}\nstack: {loadBalancerIP: 192.0.2.11}")
	out.object(t, "ConfigMap", "-routes", &routes)
	out.object(t, "Deployment", "-proxy", &deployment)
	if variable(&deployment, "dhcp-relay", "DHCP_RELAY_SERVERS") != "" || strings.Contains(routes.Data["routes.yaml"], "boots.tinkerbell") {
		t.Errorf("Boots is asked beside itself:\n%s", routes.Data["routes.yaml"])
	}
	var ours appsv1.Deployment
	out.object(t, "Deployment", "-boots", &ours)
	if limit := ours.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String(); limit != "256Mi" {
		t.Errorf("stack-boots has Boots' memory, %s", limit)
	}
	var service corev1.Service
	rendersFrom(t, "stack: {service: {type: NodePort}}").object(t, "Service", "tink-stack", &service)
	if service.Spec.Type != corev1.ServiceTypeNodePort || service.Spec.LoadBalancerClass != nil || service.Spec.LoadBalancerIP != "" ||
		service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster {
		t.Errorf("%+v", service.Spec)
	}
	const old = "values of EKS Anywhere's own chart of 2022 and 2023, with Boots and Envoy, are not taken here"
	refuses(t, "boots: {deploy: true}\ncreateNamespace: false\nenvoy: {deploy: false}\nhegel: {port: {hostPortEnabled: false}}\nnamespace: eksa-system\n"+
		"kubevip: {deploy: false}\ntinkController: {image: a}\ntinkServer: {args: []}", "createNamespace, envoy, kubevip, namespace, tinkController, tinkServer: "+old)
}

// TestTheNodesPortsAreTakenOnce: on the node's network the next pod cannot come before the last one has gone.
func TestTheNodesPortsAreTakenOnce(t *testing.T) {
	for strategy, good := range map[string]bool{
		"{type: Recreate}": true, "{type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}": true,
		"{type: RollingUpdate}": false, "{type: RollingUpdate, rollingUpdate: {maxSurge: 1}}": false,
	} {
		if values := onNode + "updateStrategy: " + strategy; good {
			rendersFrom(t, values)
		} else {
			refuses(t, values, "set updateStrategy.rollingUpdate.maxSurge to 0")
		}
	}
	if notes := rendersFrom(t, "replicas: 2\nfiles: {volume: {type: existingClaim, existingClaim: os}}").notes(); !strings.Contains(notes, "mount claim os") {
		t.Errorf("the notes say:\n%s", notes)
	}
}

// TestExternalIPsAreTheServices, which public installers patch in.
func TestExternalIPsAreTheServices(t *testing.T) {
	var service corev1.Service
	rendersFrom(t, "service: {externalIPs: [192.0.2.3, '2001:db8::3']}").object(t, "Service", "stack", &service)
	if len(service.Spec.ExternalIPs) != 2 {
		t.Errorf("%+v", service.Spec)
	}
}
