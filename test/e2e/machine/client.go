package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// hostLink is the interface of a host in the lab.
const hostLink = "eth0"

// Client is a machine in Go: what PXE firmware, iPXE and the installer do on the wire, one after the other, in a
// network namespace of its own on the LAN. What it boots it downloads and does not run.
type Client struct {
	Lab     *lab.Lab
	Machine lab.Machine
	Media   Media
	// Broadcast sets the flag of RFC 2131 section 4.1 in every DHCP message.
	Broadcast bool
	// Timeout is how long nothing may move: no answer, no new block, no byte of a download. Default 15 s.
	Timeout time.Duration
	Report  func(installer.Report)
	Logger  *slog.Logger
	// Before is called before the machine begins with "discover", "tftp", "script", "kernel", "initramfs" and
	// "install". It may be nil.
	Before func(what string)
	// UserClass is what its iPXE calls itself. Default "Tinkerbell".
	UserClass string
	// Server is the only DHCP server whose offers the machine takes, where it is valid.
	Server netip.Addr
	// BadLoader has the firmware refuse the boot file that it got: it begins anew, as after Secure Boot's no.
	BadLoader bool
	// AsksAgain has the firmware ask for an address twice more where the boot file cannot be had.
	AsksAgain bool

	role string
}

// Run boots, installs and switches off. The error says what was waited for.
func (c *Client) Run(ctx context.Context) error {
	if c.Timeout == 0 {
		c.Timeout = 15 * time.Second
	}
	var err error
	if c.role, err = c.Lab.AddHost(c.Machine.Name, c.Machine.MAC); err != nil {
		return err
	}
	if c.Before == nil {
		c.Before = func(string) {}
	}
	args, err := c.boot(ctx)
	if err != nil {
		return err
	}
	config, err := installer.ParseCommandLine(args)
	if err != nil {
		return err
	}
	c.Before("install")
	lease, err := c.lease(ctx, netboot.System)
	if err != nil {
		return err
	}
	config.Addr, config.Hostname = lease.Addr.Addr(), lease.Hostname
	config.Dial = c.Lab.Dial(c.role)
	config.Report = c.Report
	config.Attempts = c.Timeout / 2
	config.Start = func(path string, args []string, output io.Writer) (end func() error, err error) {
		agent := lab.Process{Name: c.Machine.Name + "-agent", Role: c.role, Path: path, Args: args, Stdout: output}
		if _, err := c.Lab.Start(agent); err != nil {
			return nil, err
		}
		return func() error { return c.Lab.Kill(agent.Name) }, nil
	}
	if err := installer.Run(ctx, config); err != nil {
		return err
	}
	if err := c.Lab.Do(c.role, func() error { return netboot.Flush(hostLink) }); err != nil {
		return err
	}
	c.Report(installer.Report{Step: installer.StepPowerOff, OK: true, Detail: "gave its address up"})
	return nil
}

// watch begins something on the wire.
func (c *Client) watch(ctx context.Context) (context.Context, *progress.Watch) {
	return progress.Begin(ctx, progress.Patience{Quiet: c.Timeout})
}

// boot goes from power-on to the kernel's command line.
func (c *Client) boot(ctx context.Context) (args string, err error) {
	c.Before("discover")
	lease, err := c.lease(ctx, netboot.PXE)
	if err != nil {
		return "", err
	}
	c.Before("tftp")
	err = c.tftp(ctx, lease)
	for i := 0; i < 2 && err != nil && c.AsksAgain; i++ {
		if lease, err = c.lease(ctx, netboot.PXE); err == nil {
			err = c.tftp(ctx, lease)
		}
	}
	if err != nil {
		return "", err
	}
	if c.BadLoader {
		if _, err := c.lease(ctx, netboot.PXE); err != nil {
			return "", err
		}
		return "", errors.New("the firmware does not start the boot file")
	}
	c.Before("script")
	if lease, err = c.lease(ctx, netboot.IPXE); err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: c.Lab.Dial(c.role)}}
	defer client.CloseIdleConnections()
	text, err := c.download(ctx, client, lease.BootFile, 1<<20)
	if err != nil {
		return "", err
	}
	script, err := netboot.ParseScript(string(text))
	if err != nil {
		return "", err
	}
	c.Logger.InfoContext(ctx, "script", "kernel", script.Kernel, "initrd", script.Initrd, "args", script.Args)
	for _, file := range []struct{ what, url string }{{"kernel", script.Kernel}, {"initramfs", script.Initrd}} {
		c.Before(file.what)
		if _, err := c.download(ctx, client, file.url, 1<<30); err != nil {
			return "", err
		}
	}
	return script.Args, nil
}

// lease asks for an address and takes it on. Whatever asks has none before, as the stages of a boot do not tell
// each other.
func (c *Client) lease(ctx context.Context, stage netboot.Stage) (lease netboot.Lease, err error) {
	ctx, watch := c.watch(ctx)
	defer watch.End()
	var client *netboot.DHCP
	err = c.Lab.Do(c.role, func() error {
		if err := netboot.Flush(hostLink); err != nil {
			return err
		}
		client, err = netboot.OpenDHCP(hostLink)
		return err
	})
	if err != nil {
		return lease, err
	}
	defer func() { _ = client.Close() }()
	ask := netboot.Ask{
		Stage: stage, Arch: iana.INTEL_X86PC, Broadcast: c.Broadcast, UserClass: c.UserClass, Server: c.Server,
		Moved: watch.Moved,
	}
	if c.Machine.Firmware == lab.UEFI {
		ask.Arch = iana.EFI_X86_64
	}
	copy(ask.UUID[10:], c.Machine.MAC)
	if lease, err = client.Lease(ctx, ask); err != nil {
		return lease, fmt.Errorf("failed to get an address by DHCP: %w", err)
	}
	c.Logger.InfoContext(ctx, "lease", "stage", int(stage), "addr", lease.Addr.String(), "server", lease.Server.String(),
		"next", lease.Next.String(), "boot_file", lease.BootFile, "hostname", lease.Hostname)
	return lease, c.Lab.Do(c.role, func() error { return netboot.Configure(hostLink, lease) })
}

func (c *Client) tftp(ctx context.Context, lease netboot.Lease) error {
	ctx, watch := c.watch(ctx)
	defer watch.End()
	if !lease.Next.IsValid() || lease.BootFile == "" {
		return errors.New("the lease names no boot file")
	}
	conn, err := c.Lab.Dial(c.role)(ctx, "udp", netip.AddrPortFrom(lease.Next, 69).String())
	if err != nil {
		return fmt.Errorf("failed to reach 69/udp: %w", err)
	}
	defer func() { _ = conn.Close() }()
	content, err := netboot.ReadFileFunc(ctx, conn, lease.BootFile, watch.Bytes)
	if err != nil {
		return err
	}
	c.Logger.InfoContext(ctx, "boot file", "name", lease.BootFile, "bytes", len(content))
	return nil
}

// download reads a document of at most some bytes and checks that it is whole.
func (c *Client) download(ctx context.Context, client *http.Client, url string, most int64) ([]byte, error) {
	ctx, watch := c.watch(ctx)
	defer watch.End()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to ask for %q: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to download: %w", watch.Why(ctx, err))
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(watch.Reader(response.Body), most))
	if err != nil {
		return nil, fmt.Errorf("failed to download %s after %d bytes: %w", url, len(body), watch.Why(ctx, err))
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("failed to download %s: %s: %.200s", url, response.Status, body)
	}
	c.Logger.InfoContext(ctx, "download", "url", url, "bytes", len(body))
	return body, nil
}
