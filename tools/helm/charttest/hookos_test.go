package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestKernelVersionsAreTakenAsPeopleWriteThem: without quotes 5.10 is the number 5.1 in YAML.
func TestKernelVersionsAreTakenAsPeopleWriteThem(t *testing.T) {
	set := func(kernel string) string {
		return `files: {fetch: {sets: [{name: hook, url: "https://example.org/hook", kernelVersion: ` + kernel + `}]}}`
	}
	for written, want := range map[string]string{
		"5.10": `kernelVersion: "5.10"`, `"5.10"`: `kernelVersion: "5.10"`, "6.6": `kernelVersion: "6.6"`,
		`"6.6"`: `kernelVersion: "6.6"`, "both": "kernelVersion: both",
	} {
		var routes corev1.ConfigMap
		rendersFrom(t, set(written)).object(t, "ConfigMap", "-routes", &routes)
		if !strings.Contains(routes.Data["artifacts.yaml"], want+"\n") {
			t.Errorf("%s became\n%s", written, routes.Data["artifacts.yaml"])
		}
	}
	for _, written := range []string{"6.12", `"6.12"`, "latest"} {
		refuses(t, set(written), `set it to "5.10", "6.6" or both`)
	}
}
