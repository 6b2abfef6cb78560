package hookos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/hookos"
	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

const (
	host  = "192.0.2.4" // the registry
	port  = 5000
	agent = "tinkerbell/tink-agent:v0.25.0"
	write = "actions/image2disk:v1"
	again = "actions/reboot:v1"
)

// template is a workflow as the documents of Tinkerbell have it, but for the actions' names.
const template = `version: "0.1"
name: install
global_timeout: 1800
tasks:
  - name: os-installation
    worker: "{{.device_1}}"
    volumes: ["/dev:/dev", "/dev/console:/dev/console"]
    actions:
      - {name: write, image: %[1]q, timeout: 900, environment: {IMG_URL: %[2]q, DEST_DISK: /dev/vda}}
      - {name: reboot, image: %[3]q, timeout: 300, volumes: ["/worker:/worker"]}
`

// TestMachineInstallsByDocker has a UEFI machine boot an installer that is HookOS in its parts: Debian's dockerd runs
// Tinkerbell's agent with its docker runtime, the agent runs the workflow's actions from a registry's images, what they print
// comes to Smee by Docker's own syslog driver, and the machine restarts from the disk that they wrote.
func TestMachineInstallsByDocker(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it boots a machine")
	}
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	if missing := hookos.Missing(); missing != "" {
		t.Skip("needs Debian's docker.io, iptables and mtools: there is no " + missing)
	}
	tinkerbell, err := program.BuildTinkerbell(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := program.Repo()
	if err != nil {
		t.Fatal(err)
	}
	e2e, files, work := filepath.Join(repo, "test", "e2e"), t.TempDir(), t.TempDir()
	if err := os.Chmod(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		hookos.Write(t.Context(), e2e, files, t.Logf), program.For(t.Context(), "amd64", e2e, work, "./hookos/action"),
	); err != nil {
		t.Fatal(err)
	}
	m := lab.Machine{
		Name: "hookos", Firmware: lab.UEFI, MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 6, 1}, IP: netip.MustParseAddr("192.0.2.121"),
	}
	registry := netip.AddrPortFrom(netip.MustParseAddr(host), port)
	l := lab.ForTest(t, lab.Options{
		Tinkerbell: &tinkerbell, Artifacts: files, Machines: []lab.Machine{m},
		Args: map[string][]string{lab.Tinkerbell: {"--ipxe-http-script-extra-kernel-args", machine.KernelArgs +
			" tink_worker_image=" + registry.String() + "/" + agent + " insecure_registries=" + registry.String()}},
	})
	serve(t, l, registry, tinkerbell.Agent, filepath.Join(work, "action"))
	order(t, l, m, registry)
	disk := filepath.Join(work, "disk")
	if err := errors.Join(os.WriteFile(disk, nil, 0o644), os.Truncate(disk, 256<<20)); err != nil {
		t.Fatal(err)
	}
	follow(t, l, m, disk)

	var workflow struct{ Status struct{ State string } }
	if err := l.Get(t.Context(), "workflows", "install", &workflow); err != nil || workflow.Status.State != "SUCCESS" {
		t.Errorf("the workflow is %q, %v", workflow.Status.State, err)
	}
	if err := sameBytes(disk, filepath.Join(files, machine.ArtifactFile)); err != nil {
		t.Error(err)
	}
	for _, said := range []string{"using Docker runtime", "are on /dev/vda"} { // by the agent, by the action
		if err := lab.Line(t.Context(), l.LogPath(lab.Tinkerbell), func(line string) bool {
			return strings.Contains(line, "syslog message received") && strings.Contains(line, m.IP.String()) &&
				strings.Contains(line, said)
		}); err != nil {
			t.Errorf("Smee's log has no line of the machine with %q: %v", said, err)
		}
	}
	if err := journey.Booted(t.Context(), l, 1, m.MAC.String()); err != nil {
		t.Error(err)
	}
}

func serve(t *testing.T, l *lab.Lab, registry netip.AddrPort, tinkAgent, action string) {
	t.Helper()
	role, err := l.AddHost("registry", net.HardwareAddr{0x52, 0x54, 0, 0, 6, 9})
	if err == nil {
		err = l.Configure(role, netip.PrefixFrom(registry.Addr(), 24), lab.NodeIP)
	}
	if err != nil {
		t.Fatal(err)
	}
	server, err := hookos.Serve(l, role, registry,
		hookos.Image{Name: agent, Program: tinkAgent},
		hookos.Image{Name: write, Program: action, Args: []string{"image2disk"}},
		hookos.Image{Name: again, Program: action, Args: []string{"reboot"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
}

func order(t *testing.T, l *lab.Lab, m lab.Machine, registry netip.AddrPort) {
	t.Helper()
	image := "http://" + netip.AddrPortFrom(lab.ServiceIP, lab.TinkerbellFilesPort).String() + "/" + machine.ArtifactFile
	text := fmt.Sprintf(template, registry.String()+"/"+write, image, registry.String()+"/"+again)
	for _, o := range []struct{ resource, kind string }{{"templates", "Template"}, {"workflows", "Workflow"}} {
		spec := map[string]any{"data": text}
		if o.kind == "Workflow" {
			spec = map[string]any{
				"templateRef": "install", "hardwareRef": m.Name, "hardwareMap": map[string]any{"device_1": m.MAC.String()},
			}
		}
		if err := l.Create(t.Context(), o.resource, lab.Object(o.kind, "install", spec)); err != nil {
			t.Fatal(err)
		}
	}
}

// follow switches the machine on, and waits until it has gone through all steps and switched itself off.
func follow(t *testing.T, l *lab.Lab, m lab.Machine, disk string) {
	t.Helper()
	reports := make(chan installer.Report, 16)
	started := time.Now()
	proc, err := machine.BootInstaller(l, m, disk, func(r installer.Report) { reports <- r })
	if err != nil {
		t.Fatal(err)
	}
	patience := progress.Patience{Quiet: 3 * time.Minute, Waited: proc.Starved, Signs: []func() string{
		process.LastLine("the firmware", machine.FirmwareLog(l, m.Name)), process.LastLine("the system", proc.LogPath()),
	}}
	for _, step := range []string{
		installer.StepDocker, installer.StepAgent, installer.StepRestart, installer.StepInstalled, installer.StepPowerOff,
	} {
		ctx, watch := progress.Begin(t.Context(), patience)
		select {
		case r := <-reports:
			t.Logf("%6.2f s %s: %s", time.Since(started).Seconds(), r.Step, r.Detail)
			if !r.OK || r.Step != step {
				t.Fatalf("%s is reported, want %s", r.Step, step)
			}
		case <-proc.Done():
			t.Fatalf("%s: %v: see %s", step, machine.ErrDied, proc.LogPath())
		case <-ctx.Done():
			t.Fatalf("%s: %v", step, context.Cause(ctx))
		}
		watch.End()
	}
	if err := proc.Wait(); err != nil {
		t.Errorf("the machine is not off: %v", err)
	}
}

// sameBytes wants a disk to begin with an image.
func sameBytes(disk, image string) error {
	want, err := os.ReadFile(image)
	if err != nil {
		return err
	}
	got, err := os.ReadFile(disk)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(got, want) {
		return errors.New("the disk does not hold the image")
	}
	return nil
}
