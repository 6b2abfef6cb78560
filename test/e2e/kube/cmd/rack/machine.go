//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// machine is one machine of the rack.
type machine struct {
	*rack
	watch *progress.Watch
	name  string
	mac   net.HardwareAddr
	ip    netip.Addr
	stage string // of the boot that is under way
}

// quietStage is how long nothing may come in a stage before the machine is switched on again.
const quietStage = 15 * time.Second

// insist boots until the workflow has been run.
func (m *machine) insist(ctx context.Context) error {
	for {
		tinkerbell, err := m.boot(ctx)
		switch {
		case err == nil:
			m.say(m.name, "ended", "by "+tinkerbell)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %s: %w", m.name, m.stage, err)
		}
		// Firmware and iPXE begin anew by themselves; a system whose services are gone is switched off and on.
		how := "began anew"
		if m.stage == "install" {
			how = "was switched off"
		}
		m.say(m.name, how, m.stage+": "+err.Error())
		if err := m.pass(ctx, m.stage); err != nil {
			return err
		}
	}
}

// pass begins a stage.
func (m *machine) pass(ctx context.Context, stage string) error {
	m.stage = stage
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(m.pause):
		return nil
	}
}

// boot is a boot from power-on to the end of the workflow. It says which Tinkerbell it was by.
func (m *machine) boot(ctx context.Context) (tinkerbell string, err error) {
	client := &http.Client{Transport: &http.Transport{DialContext: m.dial, DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	var lease netboot.Lease
	var script netboot.Script
	var config installer.Config
	for _, stage := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"discover", func(ctx context.Context) (err error) { lease, err = m.lease(ctx, netboot.PXE); return err }},
		{"loader", func(ctx context.Context) error { return m.loader(ctx, lease) }},
		{"ipxe", func(ctx context.Context) (err error) { lease, err = m.lease(ctx, netboot.IPXE); return err }},
		{"script", func(ctx context.Context) error {
			text, err := m.get(ctx, client, lease.BootFile)
			if err != nil {
				return err
			}
			if script, err = netboot.ParseScript(string(text)); err != nil {
				return err
			}
			config, err = installer.ParseCommandLine(script.Args)
			return err
		}},
		{"kernel", func(ctx context.Context) error { _, err := m.get(ctx, client, script.Kernel); return err }},
		{"initramfs", func(ctx context.Context) error { _, err := m.get(ctx, client, script.Initrd); return err }},
		{"system", func(ctx context.Context) (err error) { lease, err = m.lease(ctx, netboot.System); return err }},
	} {
		if err := m.pass(ctx, stage.name); err != nil {
			return "", err
		}
		within, watch := progress.Begin(ctx, progress.Patience{Quiet: quietStage})
		err := watch.Why(within, stage.do(within))
		watch.End()
		if err != nil {
			return "", err
		}
		m.watch.Moved(m.name + " " + stage.name)
	}
	if err := m.pass(ctx, "install"); err != nil {
		return "", err
	}
	tinkerbell = "the classic services"
	if strings.Contains(script.Kernel, ":7173/") { // the OS files' port beside the one binary
		tinkerbell = "the one binary"
		service, _, err := net.SplitHostPort(config.Tink)
		if err != nil {
			return "", err
		}
		config.Metadata, config.Agent = "http://"+net.JoinHostPort(service, "7080"), m.agent
	}
	config.Addr, config.Hostname, config.Dial, config.Start = m.ip, lease.Hostname, m.dial, start
	config.Report = func(r installer.Report) { m.watch.Moved(m.name + " " + r.Step) }
	return tinkerbell, installer.Run(ctx, config)
}

// lease asks for the machine's address.
func (m *machine) lease(ctx context.Context, stage netboot.Stage) (netboot.Lease, error) {
	client := m.segment.Client(m.mac)
	defer func() { _ = client.Close() }()
	ask := netboot.Ask{Stage: stage, Arch: iana.EFI_X86_64}
	copy(ask.UUID[10:], m.mac)
	lease, err := client.Lease(ctx, ask)
	if err == nil && lease.Addr.Addr() != m.ip {
		err = fmt.Errorf("the lease is for %s, not %s", lease.Addr.Addr(), m.ip)
	}
	return lease, err
}

func (m *machine) loader(ctx context.Context, lease netboot.Lease) error {
	if !lease.Next.IsValid() || lease.BootFile == "" {
		return errors.New("the lease names no boot file")
	}
	conn, err := m.dial(ctx, "udp", netip.AddrPortFrom(lease.Next, 69).String())
	if err != nil {
		return fmt.Errorf("failed to reach 69/udp: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_, err = netboot.ReadFile(ctx, conn, lease.BootFile)
	return err
}

// get reads a document whole.
func (m *machine) get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("failed to ask for %q: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("failed to read %s after %d bytes: %w", url, len(text), err)
	}
	return text, nil
}

// dial connects from the machine's address; the agent's program is on this host.
func (m *machine) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	switch {
	case strings.HasPrefix(addr, "127."):
	case network == "udp":
		dialer.LocalAddr = &net.UDPAddr{IP: m.ip.AsSlice()}
	default:
		dialer.LocalAddr = &net.TCPAddr{IP: m.ip.AsSlice()}
	}
	return dialer.DialContext(ctx, network, addr)
}

// start starts the agent.
func start(path string, args []string, output io.Writer) (end func() error, err error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start the agent: %w", err)
	}
	return func() error { return errors.Join(cmd.Process.Kill(), cmd.Wait()) }, nil
}
