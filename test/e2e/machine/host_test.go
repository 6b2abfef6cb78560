package machine_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestHostBootsAMachine is docs/start-one-host.md: the units of docs/examples/host run on a host of the LAN, as a user and
// with the capabilities that they ask systemd for, Tinkerbell v0.25.0 is elsewhere, and the machine of
// docs/examples/machine.yaml boots from the host and runs its workflow.
func TestHostBootsAMachine(t *testing.T) {
	tinkerbell, err := program.BuildTinkerbell(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	media, err := machine.PrepareMedia(t.Context(), repo+"/test/e2e", filepath.Join(repo, "build", "cache", "media-host"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := media.AddAgent(tinkerbell.Agent); err != nil {
		t.Fatal(err)
	}
	const host = "192.0.2.3"
	osie := "http://" + host + ":7173"
	l := lab.ForTest(t, lab.Options{
		Tinkerbell: &tinkerbell, Without: []string{lab.BroadcastInit, lab.DHCPRelay, lab.StackProxy, lab.StackBoots},
		Args: map[string][]string{lab.Tinkerbell: { // of the page; the later one of each counts
			"--public-ipv4=" + host, "--trusted-proxies=" + host + "/32", "--ipxe-http-script-osie-url=" + osie,
			"--dhcp-ip-for-packet=" + host, "--dhcp-tftp-ip=" + host, "--dhcp-syslog-ip=" + host,
			"--ipxe-script-tink-server-addr-port=" + host + ":42113",
			"--ipxe-http-script-extra-kernel-args=" + machine.KernelArgs + " metadata=http://" + host + ":7080 agent=" +
				osie + "/" + machine.AgentFile,
		}},
	})
	role, err := l.AddHost("edge", net.HardwareAddr{0x52, 0x54, 0, 0, 9, 9})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Configure(role, netip.MustParsePrefix(host+"/24"), lab.NodeIP); err != nil {
		t.Fatal(err)
	}
	site := strings.NewReplacer("192.0.2.2", host, "198.51.100.10", lab.SmeeIP.String(), "eth1", "eth0")
	for _, unit := range []string{"stack-boots", "stack-proxy", "dhcp-relay"} {
		startUnit(t, l, role, repo, unit, site, media.Dir)
	}
	m := create(t, l, repo, site, media)
	client := machine.Client{
		Lab: l, Machine: m, Media: media, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Report: func(r installer.Report) { t.Logf("%s %v %s", r.Step, r.OK, r.Detail) },
	}
	if err := client.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Status struct{ State string }
	}
	if err := l.Get(t.Context(), "workflows", "machine-1", &workflow); err != nil || workflow.Status.State != "SUCCESS" {
		t.Errorf("the workflow is %q, %v", workflow.Status.State, err)
	}
	shown := func(ctx context.Context) error { // the relay may have waited to tell stack-boots of it
		boots, err := l.Page(ctx, role, "http://127.0.0.1:9070/api/v1/boots")
		if err == nil && !strings.Contains(boots, m.MAC.String()) {
			err = errors.New("it is not in " + boots)
		}
		return err
	}
	patience := progress.Patience{Quiet: 20 * time.Second}
	if err := progress.Until(t.Context(), patience, 250*time.Millisecond, shown); err != nil {
		t.Errorf("stack-boots does not show the machine: %v", err)
	}
}

// startUnit runs what a unit says, with the settings of the host's stack.env, which win over the unit's.
func startUnit(t *testing.T, l *lab.Lab, role, repo, unit string, site *strings.Replacer, files string) {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(repo, "docs/examples/host", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	text := read(unit + ".service")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o644); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	if err := os.Chmod(state, 0o777); err != nil {
		t.Fatal(err)
	}
	security := &lab.Security{
		UID: 65532, Ambient: true, Mounts: map[string]string{"/run/credentials": filepath.Dir(key), "/srv": files},
		Shared: map[string]string{"/var/lib/" + unit: state},
	}
	capabilities := map[string]int{"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE}
	for name, number := range capabilities {
		if regexp.MustCompile(`(?m)^AmbientCapabilities=.*\b` + name + `\b`).MatchString(text) {
			security.Capabilities = append(security.Capabilities, number)
		}
	}
	settings := map[string]string{}
	set := func(assignments ...string) {
		for _, assignment := range assignments {
			name, value, _ := strings.Cut(assignment, "=")
			settings[name] = value
		}
	}
	for _, line := range regexp.MustCompile(`(?m)^Environment=(.*)$`).FindAllStringSubmatch(text, -1) {
		set(strings.Fields(strings.ReplaceAll(line[1], "/%n", ""))...)
	}
	set(regexp.MustCompile(`(?m)^[A-Z_]+=.*$`).FindAllString(site.Replace(read("stack.env")), -1)...)
	if unit == "stack-proxy" { // what it would fetch is in the lab's directory
		set("STACK_PROXY_FILES_DIRECTORY=/srv")
		delete(settings, "STACK_PROXY_ARTIFACTS_FILE")
	}
	var env []string
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	bin := filepath.Join(repo, "build", "bin", "lab")
	if err := program.Build(t.Context(), repo, bin, []string{"./cmd/" + unit}); err != nil {
		t.Fatal(err)
	}
	proc, err := l.Start(lab.Process{
		Name: "unit-" + unit, Role: role, Path: filepath.Join(bin, unit), Env: env, Security: security, Watch: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	admin := regexp.MustCompile(`_ADMIN_ADDRESS=(\S+)`).FindStringSubmatch(text)[1]
	ready := func(ctx context.Context) error {
		_, err := l.Page(ctx, role, "http://"+admin+"/readyz")
		return err
	}
	if err := l.WaitReady(t.Context(), proc, ready); err != nil {
		t.Fatal(err)
	}
}

// create gives Tinkerbell the objects of docs/examples/machine.yaml, which its own definitions judge, with an image of the
// lab's.
func create(t *testing.T, l *lab.Lab, repo string, site *strings.Replacer, media machine.Media) lab.Machine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repo, "docs/examples/machine.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.NewReplacer(
		"image.raw.gz", machine.ArtifactFile, "name: machine-1}", "name: machine-1, namespace: "+lab.Namespace+"}",
		"name: install}", "name: install, namespace: "+lab.Namespace+"}",
		`COMPRESSED: "true"`, "IMG_SHA512: "+media.ArtifactSHA512+"\n              WORKFLOW: machine-1",
	).Replace(site.Replace(string(text))))
	var m lab.Machine
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object struct {
			Kind string
			Spec struct {
				Interfaces []struct {
					DHCP struct {
						MAC, Hostname string
						IP            struct{ Address string }
					}
				}
			}
		}
		var whole map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(document), &whole); err != nil {
			t.Fatal(err)
		}
		plural := map[string]string{"Hardware": "hardware", "Template": "templates", "Workflow": "workflows"}[object.Kind]
		if err := l.Create(t.Context(), plural, whole); err != nil {
			t.Fatalf("%s: %v", object.Kind, err)
		}
		if object.Kind == "Hardware" {
			dhcp := object.Spec.Interfaces[0].DHCP
			m = lab.Machine{Name: dhcp.Hostname, IP: netip.MustParseAddr(dhcp.IP.Address), Firmware: lab.UEFI}
			if m.MAC, err = net.ParseMAC(dhcp.MAC); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m
}
