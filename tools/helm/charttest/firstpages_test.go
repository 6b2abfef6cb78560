package charttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// What the first pages write for what is the reader's own.
const (
	address = "192.0.2.2"
	old     = "192.0.2.81" // which its Tinkerbell names besides
	modern  = "oci://ghcr.io/tinkerbell/charts/tinkerbell"
	classic = "oci://ghcr.io/tinkerbell/charts/stack"
	eksa    = "oci://public.ecr.aws/eks-anywhere/tinkerbell/stack"
)

// TestFirstPagesAreFollowed types every command of the five first pages, in order, and looks at what is there when the
// machine is switched on, and after the way back: one Service has the address, the stack's and then the former one.
// docs/start-one-host.md has its boot in test/e2e/machine.
func TestFirstPagesAreFollowed(t *testing.T) {
	t.Parallel()
	ours := filepath.Join(t.TempDir(), "tinkerbell.yaml")
	write(t, ours, "publicIP: "+address+"\ntrustedProxies: [10.244.0.0/24]\nartifactsFileServer: http://192.0.2.3:7173\n"+
		"deployment: {envs: {globals: {publicIpv4: "+old+"}, smee: {dhcpIPForPacket: "+old+", dhcpTftpIP: "+old+"}}}\n")
	for name, test := range map[string]struct {
		change  []string // what the reader has otherwise than the page
		release string   // that is there before, and the chart and values that it is of
		chart   string
		values  string
		after   string // whose release is the stack
	}{
		"start-tinkerbell":   {release: "tinkerbell", chart: modern, values: ours, after: "stack"},
		"former-chart":       {release: "tink-stack", chart: classic, values: "testdata/former/0.6.yaml", after: "edge"},
		"start-eks-anywhere": {release: "stack", chart: eksa, values: "testdata/former/eks-anywhere.yaml", after: "edge"},
		"start-talos-argocd": {
			change: []string{"192.168.0.225", address, "192.168.0.0/24", "192.0.2.0/24"}, after: "stack",
		},
		"start-one-host": { // Tinkerbell is there already, and its Service goes
			change: []string{"helm install", "helm template"}, release: "tinkerbell", chart: modern, values: ours,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if test.release != "" {
				values, err := os.ReadFile(test.values)
				if err != nil {
					t.Fatal(err)
				}
				values = bytes.ReplaceAll(values, []byte("192.0.2.11"), []byte(address))
				rendered, err := s.render(test.release, test.chart, []string{"-f", test.values})
				if err != nil {
					t.Fatal(err)
				}
				s.Releases[test.release] = installed{Chart: test.chart, Values: string(values)}
				if err := s.replace(test.release, rendered, false); err != nil {
					t.Fatal(err)
				}
			}
			booted, back := s.follow(t, filepath.Join(root, "docs", name+".md"), test.change)
			booted.has(t, test.after)
			back.has(t, test.release)
			if test.after == "stack" && test.chart != classic {
				booted.tinkerbellFits(t)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func newSite(t *testing.T) *site {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/tinkerbell/tinkerbell")
	download.Dir = filepath.Join(root, "test/e2e/tinkerbell")
	out, err := download.Output()
	var module struct{ Dir string }
	if err = errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		t.Fatalf("failed to find Tinkerbell's own chart: %v\n%s", err, out)
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	return &site{
		Tools: filepath.Dir(tool(t, "helm")), Programs: build(t), Root: absolute, file: filepath.Join(t.TempDir(), "site.json"),
		Charts: map[string]string{
			modern:  filepath.Join(module.Dir, "helm/tinkerbell"),
			classic: "", eksa: "",
		},
		Releases: map[string]installed{}, Objects: map[string]thing{},
	}
}

// follow types the commands of a page, and returns the site when the machine boots and after the way back.
func (s *site) follow(t *testing.T, page string, change []string) (booted, back *site) {
	t.Helper()
	home := filepath.Dir(s.file)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range standIns() {
		link := filepath.Join(home, "bin", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(self, link)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	way, return_, found := strings.Cut(string(text), "\n## Back")
	if !found { // EKS Anywhere's goes on with the former chart's
		former, err := os.ReadFile(filepath.Join(filepath.Dir(page), "former-chart.md"))
		if err != nil {
			t.Fatal(err)
		}
		_, steps, _ := strings.Cut(string(former), "\n## 2.")
		steps, return_, found = strings.Cut(steps, "\n## Back")
		way = strings.Replace(string(text), "](former-chart.md#2-the-images-and-the-chart)", "\n"+steps, 1)
		found = found && strings.Contains(string(text), "](former-chart.md#back)")
	}
	if !found {
		t.Fatal("the page has no way back")
	}
	script := ""
	for i, part := range []string{way, return_} {
		for _, block := range fenced.FindAllStringSubmatch(part, -1) {
			if block[1] == "sh" {
				script += block[2]
			}
		}
		if i == 0 {
			script += "checkpoint\n"
		}
	}
	if err := errors.Join(s.save(s.file), os.MkdirAll(home+"/work/cluster/apps", 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-xeo", "pipefail", "-c", strings.NewReplacer(change...).Replace(script))
	cmd.Dir = home + "/work"
	cmd.Env = append(os.Environ(), "SITE="+s.file, "PATH="+home+"/bin:"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return read(t, s.file+".booted"), read(t, s.file)
}

func read(t *testing.T, file string) *site {
	t.Helper()
	var s site
	text, err := os.ReadFile(file)
	if err = errors.Join(err, json.Unmarshal(text, &s)); err != nil {
		t.Fatal(err)
	}
	return &s
}

// has holds that one Service has the address, and that it is a release's; without a release none has it.
func (s *site) has(t *testing.T, release string) {
	t.Helper()
	var owners []string
	for key, o := range s.Objects {
		var service corev1.Service
		if !strings.HasPrefix(key, "service/") {
			continue
		}
		if err := yaml.Unmarshal([]byte(o.Text), &service); err != nil {
			t.Fatal(err)
		}
		asks := service.Spec.LoadBalancerIP + "," + service.Annotations["lbipam.cilium.io/ips"]
		if service.Spec.Type == corev1.ServiceTypeLoadBalancer && slices.Contains(strings.Split(asks, ","), address) {
			owners = append(owners, o.Release)
		}
	}
	if got := strings.Join(owners, ", "); got != release {
		t.Errorf("Services with the address are of %q, want %q", got, release)
	}
}

// tinkerbellFits holds that Tinkerbell's own chart made what stands behind the stack: no listener, the stack's address, OS
// files that the stack's Service has, and the pods' network believed.
func (s *site) tinkerbellFits(t *testing.T) {
	t.Helper()
	deployment := s.Objects["deployment/tinkerbell"].Text
	for _, want := range []string{
		`TINKERBELL_IPXE_HTTP_SCRIPT_OSIE_URL\s+value: "?http://` + address + `:7173`,
		`TINKERBELL_TRUSTED_PROXIES\s+value: "10\.244\.0\.0/`, `TINKERBELL_PUBLIC_IPV4\s+value: "?` + address,
	} {
		if !regexp.MustCompile(want).MatchString(deployment) {
			t.Errorf("Tinkerbell's Deployment does not have %s:\n%s", want, deployment)
		}
	}
	if strings.Contains(deployment, old) {
		t.Errorf("Tinkerbell still has an address of its own, %s:\n%s", old, deployment)
	}
	if strings.Contains(deployment, "initContainers") {
		t.Error("Tinkerbell listens for broadcasts, too")
	}
	if service := s.Objects["service/stack"].Text; !strings.Contains(service, "port: 7173") {
		t.Errorf("the stack's Service has no OS files:\n%s", service)
	}
}
