//go:build linux

// Command init is all there is in the initramfs that the lab's machines boot: it loads the network driver, asks for
// an address by DHCP, plays the installer and switches the machine off; or, where the kernel's command line names the
// agent's image, it is HookOS with Docker; or it is the system that was installed. It reports on the serial console.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/first"
	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// How long nothing may move, in an emulator on a busy machine, until the driver has made the interface, and while the
// machine waits for its address.
const linkPatience, leasePatience = time.Minute, 30 * time.Second

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: I play the first process of a machine and switch it off: refusing to run as another")
		os.Exit(2)
	}
	if err := install(context.Background()); err != nil {
		fmt.Println("\ninit:", err)
	} else {
		report(installer.Report{Step: installer.StepPowerOff, OK: true, Detail: "asked the kernel to switch off"})
	}
	fmt.Println("\ninit:", first.PowerOff())
	select {}
}

// report writes a line at the beginning of a line, whatever the kernel wrote before.
func report(r installer.Report) { fmt.Print("\n" + r.Line() + "\n") }

func install(ctx context.Context) error {
	if err := first.Mount(); err != nil {
		return err
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("failed to read kernel command line: %w", err)
	}
	if slices.Contains(strings.Fields(string(cmdline)), installer.InstalledArg) {
		report(installer.Report{Step: installer.StepInstalled, OK: true, Detail: "the disk's own system runs"})
		return nil
	}
	config, err := installer.ParseCommandLine(string(cmdline))
	if err != nil {
		return err
	}
	// Without duplicate address detection there is a link-local address at once.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0); err != nil {
		return fmt.Errorf("failed to switch duplicate address detection off: %w", err)
	}
	if err := first.LoadModules(); err != nil {
		return err
	}
	ifname, err := waitForLink(ctx, config.HWAddr)
	if err != nil {
		return err
	}
	lease, err := address(ctx, ifname, config.IPv6())
	if err != nil {
		return err
	}
	fmt.Printf("\ninit: %s is %s, %s\n", ifname, lease.Addr, lease.Hostname)
	config.Addr, config.Hostname = lease.Addr.Addr(), lease.Hostname
	config.Dial = new(net.Dialer).DialContext
	config.Report = report
	config.Start = start
	if config.WorkerImage != "" {
		return installer.HookOS(ctx, config)
	}
	return installer.Run(ctx, config)
}

// start starts a program that prints on the console, too.
func start(path string, args []string, output io.Writer) (end func() error, err error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout = io.MultiWriter(os.Stdout, output)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(cmd.Process.Kill(), cmd.Wait()) }, nil
}

// waitForLink waits until the driver has made the interface that the machine booted from.
func waitForLink(ctx context.Context, mac net.HardwareAddr) (name string, err error) {
	err = progress.Until(ctx, progress.Patience{Quiet: linkPatience}, 10*time.Millisecond, func(context.Context) error {
		links, err := net.Interfaces()
		for _, link := range links {
			if link.HardwareAddr.String() == mac.String() {
				name = link.Name
				return nil
			}
		}
		return errors.Join(fmt.Errorf("%d interfaces, none of them has it", len(links)), err)
	})
	if err != nil {
		return "", fmt.Errorf("failed to find interface with address %s: %w", mac, err)
	}
	return name, nil
}

// address asks for an address in the family of the services.
func address(ctx context.Context, ifname string, ipv6 bool) (netboot.Lease, error) {
	if err := netboot.Flush(ifname); err != nil {
		return netboot.Lease{}, err
	}
	ctx, watch := progress.Begin(ctx, progress.Patience{Quiet: leasePatience})
	defer watch.End()
	if ipv6 {
		lease, err := netboot.Lease6(ctx, ifname, watch.Moved)
		if err != nil {
			return lease, fmt.Errorf("failed to get an address by DHCPv6: %w", err)
		}
		return lease, netboot.Configure(ifname, lease)
	}
	client, err := netboot.OpenDHCP(ifname)
	if err != nil {
		return netboot.Lease{}, err
	}
	defer func() { _ = client.Close() }()
	lease, err := client.Lease(ctx, netboot.Ask{Stage: netboot.System, Moved: watch.Moved})
	if err != nil {
		return netboot.Lease{}, fmt.Errorf("failed to get an address by DHCP: %w", err)
	}
	return lease, netboot.Configure(ifname, lease)
}
