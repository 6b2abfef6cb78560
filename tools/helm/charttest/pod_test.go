package charttest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// podOf is the pod that an object is, or makes.
func podOf(t *testing.T, o object) (metav1.ObjectMeta, corev1.PodSpec, bool) {
	t.Helper()
	spec, ok := o["spec"].(map[string]any)
	if !ok {
		return metav1.ObjectMeta{}, corev1.PodSpec{}, false
	}
	var from any = o
	switch o.kind() {
	case "Pod":
	case "Deployment", "DaemonSet":
		from = spec["template"]
	default:
		return metav1.ObjectMeta{}, corev1.PodSpec{}, false
	}
	text, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.PodTemplateSpec
	if err := json.Unmarshal(text, &pod); err != nil {
		t.Fatal(err)
	}
	return pod.ObjectMeta, pod.Spec, true
}

func containers(t *testing.T, o object) []corev1.Container {
	t.Helper()
	_, spec, _ := podOf(t, o)
	return append(spec.InitContainers, spec.Containers...)
}

// TestPodSecurity asks the code of the API server's own admission which checks a pod does not pass. A new violation
// is a new privilege.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		set        []string
		of         string   // kind of the object that fails them; empty: Deployment
		baseline   []string // checks of the level that fail
		restricted []string
	}{
		"init": {
			baseline:   []string{"host namespaces", "non-default capabilities"},
			restricted: []string{"host namespaces", "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"},
		},
		"none": {set: []string{"broadcast.provider=none"}},
		"no relay, many pods": {
			set: []string{
				"relay.enabled=false", "replicas=2", "files.volume.type=pvc", "files.volume.pvc.accessModes={ReadWriteMany}",
			},
		},
		"multus": {
			set:        []string{"broadcast.provider=multus", "broadcast.multus.networks[0].name=prov"},
			baseline:   []string{"non-default capabilities"},
			restricted: []string{"runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"},
		},
		"hostNetwork": {
			set:      []string{"broadcast.provider=hostNetwork", "broadcast.parents={eno1}"},
			baseline: []string{"host namespaces", "hostPort", "non-default capabilities", "probe or lifecycle host"},
			restricted: []string{
				"host namespaces", "hostPort", "probe or lifecycle host", "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities",
			},
		},
		// The pod that serves needs nothing; stack-lb is what needs it.
		"stack-lb": {
			set:      []string{"broadcast.provider=none", "publicIP=192.0.2.2", "loadBalancer.enabled=true"},
			of:       "DaemonSet",
			baseline: []string{"host namespaces", "hostPort", "non-default capabilities", "probe or lifecycle host"},
			restricted: []string{
				"host namespaces", "hostPort", "probe or lifecycle host", "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var args []string
			for _, set := range test.set {
				args = append(args, "--set", set)
			}
			for _, o := range objects(t, render(t, args...)) {
				meta, spec, ok := podOf(t, o)
				if !ok {
					continue
				}
				hostPorts(&spec)
				baseline, restricted := test.baseline, test.restricted
				if o.kind() != cmp.Or(test.of, "Deployment") || strings.HasSuffix(o.name(), "-boots") { // or helm test's pod
					baseline, restricted = nil, nil
				}
				for level, want := range map[api.Level][]string{api.LevelBaseline: baseline, api.LevelRestricted: restricted} {
					var got []string
					for _, result := range evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &meta, &spec) {
						if !result.Allowed {
							got = append(got, result.ForbiddenReason)
						}
					}
					slices.Sort(got)
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("%s, level %s: fails %q, want %q", o.kind(), level, got, want)
					}
				}
			}
		})
	}
}

// hostPorts does what the API server's defaulting does to a pod on the node's network.
func hostPorts(spec *corev1.PodSpec) {
	if !spec.HostNetwork {
		return
	}
	for i := range spec.Containers {
		for j := range spec.Containers[i].Ports {
			spec.Containers[i].Ports[j].HostPort = spec.Containers[i].Ports[j].ContainerPort
		}
	}
}

// TestNotesSayWhatTheNamespaceHasToAdmit: each pod that is not restricted's.
func TestNotesSayWhatTheNamespaceHasToAdmit(t *testing.T) {
	for values, privileged := range map[string]bool{
		"{}":                          true,
		"broadcast: {provider: none}": false,
		"relay: {enabled: false}":     false,
		"{relay: {enabled: false}, loadBalancer: {enabled: true}, publicIP: 192.0.2.2}":               true,
		"broadcast: {provider: hostNetwork, parents: [eno1]}":                                         true,
		"broadcast: {provider: none}\nroutes: {smee-tftp: {tftp: {source: transparent}}}":             true,
		"relay: {enabled: false}\nroutes: {smee-tftp: {enabled: false, tftp: {source: transparent}}}": false,
	} {
		if got := strings.Contains(rendersFrom(t, values).notes(), "pod-security.kubernetes.io/enforce=privileged"); got != privileged {
			t.Errorf("%s: the notes ask for it: %v", values, got)
		}
	}
}
