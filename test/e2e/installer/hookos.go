//go:build linux

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// The steps of a machine that runs HookOS's programs.
const (
	StepDocker    = "docker"    // dockerd answers
	StepAgent     = "agent"     // the agent's container runs
	StepRestart   = "restart"   // an action has asked for it
	StepInstalled = "installed" // the disk's own system runs
)

// InstalledArg is on the kernel's command line of the system that was written to the disk.
const InstalledArg = "installed"

// HookOS does what HookOS v0.11's hook-docker and hook-bootkit do: it starts Docker, and in it the agent's image, as
// the kernel's command line says, and restarts the machine once an action has made /worker/reboot.
func HookOS(ctx context.Context, c Config) error {
	h := &hookOS{Config: c, api: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dockerSocket)
		},
	}}}
	for _, step := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{{StepDocker, h.docker}, {StepAgent, h.agent}, {StepRestart, h.reboot}} {
		detail, err := step.do(ctx)
		if err != nil {
			c.Report(Report{Step: step.name, Detail: err.Error()})
			return fmt.Errorf("%s: %w", step.name, err)
		}
		c.Report(Report{Step: step.name, OK: true, Detail: detail})
	}
	time.Sleep(5 * time.Second) // the agent tells that its last action has ended
	unix.Sync()
	return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

const (
	dockerSocket = "/var/run/docker.sock"
	dockerConfig = "/etc/docker/daemon.json"
	rebootFile   = "/worker/reboot"
	// hookQuiet is how long nothing may move in a step, on a processor that is emulated.
	hookQuiet = 3 * time.Minute
)

type hookOS struct {
	Config
	api   *http.Client
	ended chan error // of dockerd
}

// docker starts dockerd and waits until it answers.
func (h *hookOS) docker(ctx context.Context) (string, error) {
	for at, kind := range map[string]string{"/run": "tmpfs", "/var/lib/docker": "tmpfs", "/sys/fs/cgroup": "cgroup2"} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return "", err
		}
		if err := unix.Mount(kind, at, kind, 0, ""); err != nil {
			return "", fmt.Errorf("failed to mount %s: %w", at, err)
		}
	}
	config, err := json.Marshal(map[string]any{
		"debug": true, "log-driver": "syslog", "log-opts": map[string]string{"syslog-address": "udp://" + h.Syslog},
		"insecure-registries": h.Registries,
	})
	if err != nil {
		return "", err
	}
	for _, err := range []error{
		os.Symlink("/run", "/var/run"), os.MkdirAll("/worker", 0o755), os.MkdirAll("/etc/docker", 0o755),
		os.WriteFile(dockerConfig, config, 0o644), os.WriteFile("/etc/resolv.conf", nil, 0o644),
	} {
		if err != nil {
			return "", err
		}
	}
	cmd := exec.Command("/usr/sbin/dockerd")
	// The root file system cannot be left by pivot_root, as that of a container can in which HookOS runs dockerd.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DOCKER_RAMDISK=true"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("failed to start dockerd: %w", err)
	}
	h.ended = make(chan error, 1)
	go func() { h.ended <- cmd.Wait() }() // as long as the machine runs
	var version struct{ Version string }
	err = h.until(ctx, func(ctx context.Context) error { return h.ask(ctx, http.MethodGet, "/version", nil, &version) })
	return "dockerd " + version.Version + " answers", err
}

// agent pulls the agent's image and starts it, with what HookOS tells it.
func (h *hookOS) agent(ctx context.Context) (string, error) {
	colon := strings.LastIndexByte(h.WorkerImage, ':')
	if colon <= strings.LastIndexByte(h.WorkerImage, '/') {
		return "", fmt.Errorf("tink_worker_image has no tag: %s", h.WorkerImage)
	}
	from := url.Values{"fromImage": {h.WorkerImage[:colon]}, "tag": {h.WorkerImage[colon+1:]}}
	err := h.until(ctx, func(ctx context.Context) error {
		return h.ask(ctx, http.MethodPost, "/images/create?"+from.Encode(), nil, nil)
	})
	if err != nil {
		return "", err
	}
	var made struct{ ID string }
	err = h.ask(ctx, http.MethodPost, "/containers/create", map[string]any{
		"Image": h.WorkerImage,
		"Env": []string{
			"TINKERBELL_GRPC_AUTHORITY=" + h.Tink, "TINKERBELL_TLS=" + h.TLS, "TINKERBELL_INSECURE_TLS=" + h.InsecureTLS,
			"WORKER_ID=" + h.WorkerID, "ID=" + h.WorkerID,
		},
		"HostConfig": map[string]any{
			"Binds":       []string{"/worker:/worker", dockerSocket + ":" + dockerSocket},
			"NetworkMode": "host", "Privileged": true,
		},
	}, &made)
	if err != nil {
		return "", err
	}
	return h.WorkerImage, h.ask(ctx, http.MethodPost, "/containers/"+made.ID+"/start", nil, nil)
}

// reboot waits for the file by which an action asks for it, as long as the workflow takes.
func (h *hookOS) reboot(ctx context.Context) (string, error) {
	for {
		if _, err := os.Stat(rebootFile); err == nil {
			return rebootFile + " is there", nil
		}
		select {
		case err := <-h.ended:
			return "", fmt.Errorf("dockerd ended: %w", err)
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (h *hookOS) until(ctx context.Context, do func(context.Context) error) error {
	patience := progress.Patience{Quiet: hookQuiet}
	return progress.Until(ctx, patience, 250*time.Millisecond, func(ctx context.Context) error {
		select {
		case err := <-h.ended:
			return progress.Final(fmt.Errorf("dockerd ended: %w", err))
		default:
			return do(ctx)
		}
	})
}

// ask makes a call of the Docker Engine API. What it says line by line may tell of an error after the status has said
// 200.
func (h *hookOS) ask(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.api.Do(request)
	if err != nil {
		return fmt.Errorf("failed to ask Docker: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("failed to read Docker's answer: %w", err)
	case response.StatusCode >= http.StatusMultipleChoices || bytes.Contains(said, []byte(`"errorDetail"`)):
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(said))
	case out == nil:
		return nil
	}
	return json.Unmarshal(said, out)
}
