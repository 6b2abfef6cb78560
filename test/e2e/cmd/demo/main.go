// Command demo boots machines from a provisioning LAN through the pod and shows each step. See "make demo".
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
)

func main() {
	lab.Init()
	program.Main("demo", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) })
}

// demo is one run.
type demo struct {
	repo     string
	dir      string
	firmware []string
	count    int // of each
	ipv6     bool
	classic  bool
	keep     bool
	page     string // address of the live page of boots
	start    time.Time
	mu       sync.Mutex
	out      io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	d := &demo{out: out, start: time.Now()}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	machines := flags.String("machines", "",
		"`list` of machines: bios and uefi (QEMU), uefi-http (HTTP boot, IPv6 alone), go (a client in Go; not with IPv6); "+
			"default: bios,uefi, with IPv6 uefi")
	flags.IntVar(&d.count, "count", 1, "how many machines boot at once; more than one with -machines go alone")
	family := flags.String("family", "4", "`IP family` of the site: 4, or 6 for machines that boot by IPv6 alone")
	flags.BoolVar(&d.classic, "classic", false,
		"boot through Smee, Hegel and what plays Tink Server, in place of Tinkerbell's one binary; with -family 6 and "+
			"-count always")
	flags.BoolVar(&d.keep, "keep", false, "leave the lab up, and say how to enter it and how to take it down")
	flags.StringVar(&d.dir, "out", "", "`directory` for result.json, capture and logs (default: build/demo)")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp // flag has said why
	}
	d.ipv6 = *family == "6"
	if *family != "4" && !d.ipv6 {
		return fmt.Errorf("-family: %q is neither 4 nor 6", *family)
	}
	d.firmware = strings.Split(cmp.Or(*machines, map[bool]string{false: "bios,uefi", true: "uefi"}[d.ipv6]), ",")
	slices.Sort(d.firmware)
	d.firmware = slices.Compact(d.firmware)
	for _, firmware := range d.firmware {
		if !slices.Contains([]string{"bios", "uefi", "uefi-http", "go"}, firmware) {
			return fmt.Errorf("-machines: %q is none of bios, uefi, uefi-http, go", firmware)
		}
		if firmware == "uefi-http" && !d.ipv6 {
			return errors.New("-machines: uefi-http boots by IPv6 alone: -family 6")
		}
	}
	if d.count < 1 || d.count > 1 && !slices.Equal(d.firmware, []string{"go"}) {
		return fmt.Errorf("-count: %d is for -machines go alone, from 1 on: real firmware boots one of a kind", d.count)
	}
	if d.ipv6 && slices.Contains(d.firmware, "go") {
		return errors.New("-family 6: the machine in Go has no IPv6, bios and uefi have")
	}
	var err error
	if d.repo, err = program.Repo(); err != nil {
		return err
	}
	if d.dir == "" {
		d.dir = filepath.Join(d.repo, "build", "demo")
	}
	if d.dir, err = filepath.Abs(d.dir); err != nil {
		return err
	}
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := lab.Preflight(); err != nil {
		return err
	}
	if d.count > 1 {
		return d.storm(ctx)
	}
	services := lab.Options{Logf: d.say, IPv6: d.ipv6}
	if !d.classic && !d.ipv6 { // Tinkerbell v0.25.0 has no DHCPv6
		tinkerbell, err := program.BuildTinkerbell(ctx, d.say)
		if err != nil {
			return err
		}
		d.say("Tinkerbell %s", tinkerbell.Version)
		services.Tinkerbell = &tinkerbell
	}
	media, err := d.prepare(ctx)
	if err != nil {
		return err
	}
	return d.show(ctx, media, services)
}

// lock keeps two demos from writing to the same directory.
func (d *demo) lock() (unlock func(), err error) {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, fmt.Errorf("failed to make output directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(d.dir, ".lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("failed to lock output directory: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("another demo is writing to %s: wait for it, or use -out", d.dir)
	}
	if err := os.Remove(filepath.Join(d.dir, "result.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("failed to remove the last result: %w", err)
	}
	return func() { _ = file.Close() }, nil
}

func (d *demo) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%6.1f s  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// prepare gets what the machines boot, and falls back to the Go machine where there is no firmware to be had.
func (d *demo) prepare(ctx context.Context) (machine.Media, error) {
	if err := d.packages(ctx); err != nil {
		return machine.Media{}, err
	}
	var boots *kernel.Kernel
	cache := filepath.Join(d.repo, "build", "cache")
	if !slices.Equal(d.firmware, []string{"go"}) {
		fetched, err := kernel.Fetch(ctx, filepath.Join(cache, "kernel"), kernel.Machine, d.say)
		if err != nil {
			return machine.Media{}, err
		}
		boots = &fetched
	}
	d.say("building the installer that the machines boot")
	dir := "media"
	if boots == nil {
		dir = "media-go" // no kernel in it that could boot
	}
	media, err := machine.PrepareMedia(ctx, filepath.Join(d.repo, "test", "e2e"), filepath.Join(cache, dir), boots)
	if err == nil && boots != nil {
		d.say("kernel %s, initramfs of %.1f MiB", boots.Version, float64(media.InitramfsSize)/(1<<20))
	}
	return media, err
}

// missing lists the packages of firmware, and of the DHCPv6 server.
func (d *demo) missing() []string {
	missing := machine.Missing()
	if _, err := exec.LookPath("dnsmasq"); err != nil && d.ipv6 {
		missing = append(missing, "dnsmasq-base")
	}
	return missing
}

// packages has what QEMU needs installed.
func (d *demo) packages(ctx context.Context) error {
	if slices.Equal(d.firmware, []string{"go"}) || len(d.missing()) == 0 {
		return nil
	}
	d.say("real firmware needs what is missing here: %s", strings.Join(d.missing(), ", "))
	cmd := exec.CommandContext(ctx, filepath.Join(d.repo, "scripts", "deps"), "demo")
	cmd.Stdout, cmd.Stderr = d.out, d.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("failed to install packages: %w", err)
	}
	missing := d.missing()
	if _, err := exec.LookPath("apt-get"); err == nil && len(missing) > 0 {
		return fmt.Errorf("failed to install packages: %s not there yet", strings.Join(missing, ", "))
	}
	if len(missing) > 0 && d.ipv6 {
		return fmt.Errorf("failed to install what a boot by IPv6 needs: %s not there", strings.Join(missing, ", "))
	}
	if len(missing) > 0 {
		d.say("going on with the PXE client in Go, which needs none of %s", strings.Join(missing, ", "))
		d.firmware = []string{"go"}
	}
	return nil
}

// show has the machines travel and tells about it.
func (d *demo) show(ctx context.Context, media machine.Media, services lab.Options) error {
	var power time.Time
	j, err := journey.Run(ctx, journey.Options{
		Firmware: d.firmware, Media: media, Dir: d.dir,
		Lab: services,
		Ready: func(l *lab.Lab) error {
			if err := d.publish(l); err != nil {
				return err
			}
			d.say("the lab is up; switching on: %s", strings.Join(d.firmware, ", "))
			fmt.Fprintf(d.out, "\n  since power-on\n")
			power = time.Now()
			return nil
		},
		Passed: func(name string, step journey.Step) {
			d.mu.Lock()
			defer d.mu.Unlock()
			state := step.Detail
			if !step.OK {
				state = "FAILED: " + state
			}
			fmt.Fprintf(d.out, "%6.1f s  %-5s %-10s %s\n", step.Seconds, name, step.Name, state)
		},
	})
	if err != nil {
		return err
	}
	d.summary(j, power)
	if !power.IsZero() {
		d.boots(ctx, j)
		if installed := j.Installed(); len(installed) > 0 {
			if err = journey.Booted(ctx, j.Lab, len(installed), installed...); err == nil {
				fmt.Fprintln(d.out, "The page says of all installed machines that they are booted.")
			}
		}
	}
	err = errors.Join(err, d.end(ctx, j))
	if writeErr := program.WriteJSON(filepath.Join(d.dir, "result.json"), j.Result); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	if failure := j.Result.Failure(); failure != "" {
		return errors.New(failure)
	}
	if err == nil && !j.Result.OK {
		err = errors.New("a step did not pass")
	}
	return err
}

// publish makes the pod's page of boots an address of this machine's own.
func (d *demo) publish(l *lab.Lab) error {
	admin := netip.AddrPortFrom(lab.PodIP, lab.BootsAdminPort)
	addr, err := l.Forward(lab.RolePod, admin.String(), admin.Port())
	if err != nil {
		return err
	}
	d.page = "http://" + addr + "/boots"
	d.say("the boots, live, in a browser of this machine: %s", d.page)
	return nil
}

// boots shows what the pod knows of the boots beside what the sniffer saw.
func (d *demo) boots(ctx context.Context, j *journey.Journey) {
	boots, err := j.Boots(ctx)
	if err == nil {
		fmt.Fprintln(d.out)
		err = journey.WriteBoots(d.out, boots)
	}
	if err != nil {
		fmt.Fprintln(d.out, err)
		return
	}
	differ := false
	for _, b := range boots {
		for _, difference := range b.Differences() {
			differ = true
			fmt.Fprintln(d.out, "They differ:", difference)
		}
	}
	if !differ {
		fmt.Fprintln(d.out, "The pod saw what the sniffer saw.")
	}
}

// end takes the lab down, or leaves it up.
func (d *demo) end(ctx context.Context, j *journey.Journey) error {
	if !d.keep || j.Lab == nil || ctx.Err() != nil {
		return j.Close()
	}
	l := j.Lab
	if err := j.Detach(); err != nil {
		return err
	}
	d.guide(l)
	return nil
}

// stay leaves a lab up.
func (d *demo) stay(l *lab.Lab) error {
	if err := l.Detach(); err != nil {
		return err
	}
	d.guide(l)
	return nil
}

// guide says how to enter a lab that stays.
func (d *demo) guide(l *lab.Lab) {
	fmt.Fprintf(d.out, "\nThe lab stays up. To enter it:\n")
	for _, role := range l.Roles() {
		fmt.Fprintf(d.out, "  %-10s nsenter --net=%s\n", role, l.NamespacePath(role))
	}
	fmt.Fprintf(d.out, "The boots, live:\n  %s\n", d.page)
	fmt.Fprintf(d.out, "To take it down:\n  (cd %s && go run ./cmd/lab down %s)\n",
		filepath.Join(d.repo, "test", "e2e"), l.ID())
}

func (d *demo) summary(j *journey.Journey, power time.Time) {
	fmt.Fprintln(d.out)
	if err := j.Result.Table(d.out); err != nil {
		fmt.Fprintln(d.out, err)
	}
	fmt.Fprintf(d.out, "\nresult   %s\n", filepath.Join(d.dir, "result.json"))
	if !power.IsZero() {
		fmt.Fprintf(d.out, "capture  %s (networks: lan, pods)\n", j.Capture)
	}
	fmt.Fprintf(d.out, "logs     %s\n", filepath.Join(d.dir, "logs"))
	for _, m := range j.Result.Machines {
		if m.Workflow != "" {
			fmt.Fprintf(d.out, "workflow of %s: %s, by Tinkerbell %s\n", m.Name, m.Workflow, j.Result.Tinkerbell)
		}
	}
	if j.Result.OK {
		fmt.Fprintf(d.out, "\nOK: all machines installed, in %.1f s\n", time.Since(d.start).Seconds())
	}
}
