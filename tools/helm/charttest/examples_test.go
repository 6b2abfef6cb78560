package charttest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// TestExamplesSayWhatWasRead: each names the versions of its platform that it was written by.
func TestExamplesSayWhatWasRead(t *testing.T) {
	entries, err := os.ReadDir(chart + "/examples")
	if err != nil {
		t.Fatal(err)
	}
	read := regexp.MustCompile(`(?m)^# (Read: \S|Written by |Not values of this chart)`)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(chart, "examples", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if !read.Match(text) {
			t.Errorf("%s does not say which versions were read", entry.Name())
		}
	}
}

// TestExamplesFillTheirVolumes: no example serves OS files from a volume that stays empty.
func TestExamplesFillTheirVolumes(t *testing.T) {
	files, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "argocd-application.yaml") || strings.HasSuffix(file, "tinkerbell-chart.yaml") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := rendersFrom(t, string(text))
		var routes corev1.ConfigMap
		out.object(t, "ConfigMap", "-routes", &routes)
		if strings.Contains(routes.Data["routes.yaml"], "protocol: files") && routes.Data["artifacts.yaml"] == "" {
			t.Errorf("%s serves OS files and does not say where they come from", filepath.Base(file))
		}
		if strings.Contains(out.notes(), "empty directory") {
			t.Errorf("%s: the notes say that the volume is empty", filepath.Base(file))
		}
	}
}

// TestTinkerbellsOwnValuesAreNotOurs: its example is refused here, with what to set.
func TestTinkerbellsOwnValuesAreNotOurs(t *testing.T) {
	text, err := os.ReadFile(chart + "/examples/tinkerbell-chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, string(text), "artifactsFileServer, deployment, optional are values of Tinkerbell's own chart")
}

// TestExamplesBringWhatTheirPlatformLacks: that of the modern Tinkerbell, whose own load balancer is off beside it, has one
// and two pods; and a claim is for several nodes where there are several pods, and for one node where there is one.
func TestExamplesBringWhatTheirPlatformLacks(t *testing.T) {
	files, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	claims := 0
	for _, file := range files {
		name := filepath.Base(file)
		if name == "argocd-application.yaml" || name == "tinkerbell-chart.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := rendersFrom(t, string(text))
		var deployment appsv1.Deployment
		out.object(t, "Deployment", "-proxy", &deployment)
		several := *deployment.Spec.Replicas > 1
		if name == "tinkerbell.yaml" {
			var balancer appsv1.DaemonSet
			out.object(t, "DaemonSet", "-lb", &balancer)
			if !several || strings.Contains(out.notes(), "EXTERNAL-IP") {
				t.Errorf("%s: several pods: %v; the notes say:\n%s", name, several, out.notes())
			}
		}
		for _, document := range out.documents() {
			if !strings.Contains(document, "kind: PersistentVolumeClaim\n") {
				continue
			}
			claims++
			if strings.Contains(document, "ReadWriteMany") != several {
				t.Errorf("%s, several pods: %v:\n%s", name, several, document)
			}
		}
	}
	if claims == 0 {
		t.Error("no example has a claim")
	}
}
