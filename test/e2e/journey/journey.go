package journey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// Firmware that is not only a name of [lab.Machine]'s.
const (
	firmwareGo   = "go"        // a machine in Go
	firmwareHTTP = "uefi-http" // OVMF that boots by HTTP, by IPv6 alone
)

// Options say which machines boot, and where logs and captures are written.
type Options struct {
	// Firmware of each machine: "bios", "uefi", "uefi-http" or "go". It is also the machine's name.
	Firmware []string
	// Media is what the machines boot and install.
	Media machine.Media
	// Dir receives the capture file and, in "logs", the logs of everything.
	Dir string
	// Scale stretches the times allowed. Default 1.
	Scale float64
	// Passed is called with each step as it is passed or fails. It may be nil.
	Passed func(machine string, step Step)
	// Before is called by the Go machine before it begins with something, see [machine.Client]. It may be nil.
	Before func(l *lab.Lab, what string)
	// Ready is called when the lab is up and before the machines are switched on. It may be nil.
	Ready func(*lab.Lab) error
	// Lab adds to the lab's options.
	Lab lab.Options
}

// Journey is a lab with machines in it.
type Journey struct {
	Lab    *lab.Lab // nil where it did not come up
	Result Result
	// Capture is the file with what passed on the networks.
	Capture string

	opts       Options
	travellers []*traveller
	sniffer    *observe.Sniffer
	wait       sync.WaitGroup
	mu         sync.Mutex
	trouble    map[string]observe.Event // by machine: the last answer that said no
	boots      observe.Boot
}

// Run brings a lab up and has all machines travel at once. Whatever fails on the way is in the result; the error is
// about what is not a step. The caller ends with [Journey.Close].
func Run(ctx context.Context, opts Options) (*Journey, error) {
	if opts.Passed == nil {
		opts.Passed = func(string, Step) {}
	}
	if opts.Scale == 0 {
		opts.Scale = 1
	}
	j := &Journey{
		opts: opts, Capture: filepath.Join(opts.Dir, "demo.pcapng"), trouble: map[string]observe.Event{},
		boots: observe.Boot{Only6: opts.Lab.IPv6},
	}
	if err := j.invite(); err != nil {
		return j, err
	}
	if err := j.up(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// Nothing can start: every machine fails at what it would have needed first.
		for _, t := range j.travellers {
			t.start = time.Now()
			t.put(mark{ok: false, detail: err.Error()})
			j.Result.Machines = append(j.Result.Machines, t.travel(context.WithoutCancel(ctx)))
		}
		return j, nil
	}
	j.travel(ctx)
	return j, nil
}

// Close ends the capture and takes the lab down.
func (j *Journey) Close() error {
	if j.Lab == nil {
		return nil
	}
	return errors.Join(j.sniffer.Close(), j.Lab.Down())
}

// Detach ends the capture and leaves the lab running.
func (j *Journey) Detach() error {
	return errors.Join(j.sniffer.Close(), j.Lab.Detach())
}

// invite makes the machines.
func (j *Journey) invite() error {
	for i, firmware := range j.opts.Firmware {
		m := lab.Machine{
			Name:     firmware,
			MAC:      net.HardwareAddr{0x52, 0x54, 0x00, 0x5e, 0x00, byte(i + 1)},
			IP:       netip.AddrFrom4([4]byte{192, 0, 2, byte(101 + i)}),
			IP6:      address6(i),
			Userdata: "#cloud-config for " + firmware,
		}
		if firmware == firmwareGo && j.opts.Lab.IPv6 {
			return errors.New("failed to make machine: the machine in Go has no IPv6, firmware has")
		}
		m.NoIPv4 = j.opts.Lab.IPv6
		switch firmware {
		case "bios", firmwareGo:
		case "uefi":
			m.Firmware = lab.UEFI
		case firmwareHTTP:
			if !j.opts.Lab.IPv6 {
				return errors.New("failed to make machine: the lab's HTTP boot is by IPv6 alone")
			}
			m.Firmware, m.HTTPBoot = lab.UEFI, true
		default:
			return fmt.Errorf("failed to make machine: firmware %q is none of bios, uefi, uefi-http, go", firmware)
		}
		t := newTraveller(m, firmware, stagesOf(firmware, j.modern(), j.opts.Lab.IPv6))
		t.passed, t.scale = j.opts.Passed, j.opts.Scale
		t.hint = func(s stage, since time.Time) string { return j.hint(t, s, since) }
		t.signs = func(s stage) []func() string { return j.signs(t, s) }
		j.travellers = append(j.travellers, t)
	}
	return nil
}

func (j *Journey) up(ctx context.Context) error {
	logs := filepath.Join(j.opts.Dir, "logs")
	if err := os.RemoveAll(logs); err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	opts := j.opts.Lab
	opts.RunDir, opts.Artifacts = logs, j.opts.Media.Dir
	for _, t := range j.travellers {
		opts.Machines = append(opts.Machines, t.machine)
	}
	kernel := machine.KernelArgs
	if j.modern() {
		if err := j.opts.Media.AddAgent(opts.Tinkerbell.Agent); err != nil {
			return err
		}
		kernel += " metadata=http://" + netip.AddrPortFrom(opts.Service(), lab.TinkerbellHTTPPort).String() +
			" agent=" + j.fileURL(machine.AgentFile)
	} else {
		standIn, err := j.standIn(ctx, logs)
		if err != nil {
			return err
		}
		opts.Tink = standIn
	}
	args := map[string][]string{
		lab.Smee:       {"-extra-kernel-args", kernel},
		lab.Tinkerbell: {"--ipxe-http-script-extra-kernel-args", kernel},
	}
	for name, more := range opts.Args {
		args[name] = append(args[name], more...)
	}
	opts.Args = args
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return err
	}
	j.sniffer, err = observe.Watch(l, j.Capture, j.event)
	if err != nil {
		return errors.Join(err, l.Down())
	}
	j.Lab = l
	if j.modern() {
		if err := j.order(ctx); err != nil {
			return err
		}
	}
	if j.opts.Ready != nil {
		return j.opts.Ready(l)
	}
	return nil
}

// standIn builds what plays Tink Server and writes a workflow for each machine.
func (j *Journey) standIn(ctx context.Context, dir string) (lab.Command, error) {
	path, err := program.Command(ctx, "tink-standin")
	if err != nil {
		return lab.Command{}, err
	}
	workflows := map[string][]tink.Workflow{}
	for _, t := range j.travellers {
		worker := t.machine.MAC.String() // what Smee puts on the kernel's command line
		workflows[worker] = []tink.Workflow{{ID: workflowOf(t.machine), Actions: []tink.Action{{
			TaskName: "os-installation", Name: "stream-image", Image: "image2disk", Timeout: 600, WorkerID: worker,
			Environment: []string{
				"IMG_URL=" + j.fileURL(machine.ArtifactFile),
				"IMG_SHA512=" + j.opts.Media.ArtifactSHA512,
				"DEST_DISK=/dev/sda",
			},
		}}}}
	}
	file := filepath.Join(dir, "workflows.json")
	if err := program.WriteJSON(file, workflows); err != nil {
		return lab.Command{}, err
	}
	listen := netip.AddrPortFrom(lab.TinkIP, 42113).String()
	return lab.Command{Path: path, Args: []string{"-listen", listen, "-workflows", file}}, nil
}

// modern reports whether the services are the modern Tinkerbell.
func (j *Journey) modern() bool { return j.opts.Lab.Tinkerbell != nil }

// fileURL is where machines get a file of the media.
func (j *Journey) fileURL(name string) string {
	return "http://" + netip.AddrPortFrom(j.opts.Lab.Service(), j.opts.Lab.FilesPort()).String() + "/" + name
}

// address6 is the IPv6 address of a machine by its number.
func address6(i int) netip.Addr {
	addr := lab.LAN6.Masked().Addr().As16()
	addr[14], addr[15] = 1, byte(16*i) // the first of a range
	return netip.AddrFrom16(addr)
}

func workflowOf(m lab.Machine) string { return "install-" + m.Name }

// travel switches the machines on and waits for all of them.
func (j *Journey) travel(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	background, stop := context.WithCancel(ctx)
	j.wait.Go(func() { j.followSmee(background) })
	if j.modern() {
		for _, t := range j.travellers {
			j.wait.Go(func() { j.followWorkflow(background, t) })
		}
	}
	j.wait.Go(func() {
		for {
			select {
			case err := <-j.Lab.Failed():
				for _, t := range j.travellers {
					t.put(mark{detail: firstLine(err)})
				}
			case <-background.Done():
				return
			}
		}
	})
	results := make([]MachineResult, len(j.travellers))
	var all sync.WaitGroup
	for i, t := range j.travellers {
		t.start = time.Now()
		all.Go(func() {
			j.start(ctx, t)
			results[i] = t.travel(ctx)
		})
	}
	all.Wait()
	stop()
	cancel()
	j.wait.Wait()
	j.Result = Result{OK: true, Machines: results}
	if j.modern() {
		j.Result.Tinkerbell = j.opts.Lab.Tinkerbell.Version
	}
	for i, m := range results {
		results[i].Workflow = j.travellers[i].workflow
		j.Result.OK = j.Result.OK && m.OK
	}
}

// start checks the pod's listener and switches a machine on.
func (j *Journey) start(ctx context.Context, t *traveller) {
	detail, err := listener(j.Lab)
	if err != nil {
		t.put(mark{step: StepInterface, detail: err.Error()})
		return
	}
	t.put(mark{step: StepInterface, ok: true, detail: detail})
	if t.firmware == firmwareGo {
		j.wait.Go(func() { j.runClient(ctx, t) })
		return
	}
	off := make(chan struct{}, 1)
	proc, err := machine.Boot(j.Lab, t.machine, func(r installer.Report) {
		if r.Step == StepPowerOff {
			select {
			case off <- struct{}{}:
			default:
			}
			return // it counts when it is off
		}
		t.put(j.markOf(t, r))
	})
	if err != nil {
		t.put(mark{step: StepDiscover, detail: err.Error()})
		return
	}
	t.waited = proc.Starved
	j.wait.Go(func() {
		select {
		case <-proc.Done():
		case <-ctx.Done():
			_ = j.Lab.Kill(proc.Name()) // the others are done, too
			return
		}
		err := proc.Wait()
		select {
		case <-off:
			if err == nil {
				t.put(mark{step: StepPowerOff, ok: true, detail: "the machine is off"})
				return
			}
		default:
		}
		t.put(mark{detail: machine.ErrDied.Error() + ": " + proc.LogPath() + " and " +
			machine.FirmwareLog(j.Lab, t.machine.Name) + " hold what it printed"})
	})
}

func (j *Journey) runClient(ctx context.Context, t *traveller) {
	path := j.Lab.LogPath(t.machine.Name)
	file, err := os.Create(path)
	if err != nil {
		t.put(mark{detail: err.Error()})
		return
	}
	defer func() { _ = file.Close() }()
	client := &machine.Client{
		Lab: j.Lab, Machine: t.machine, Timeout: time.Duration(float64(10*time.Second) * t.scale),
		Logger: slog.New(slog.NewJSONHandler(file, nil)),
		Report: func(r installer.Report) {
			fmt.Fprintln(file, r.Line())
			t.put(j.markOf(t, r))
		},
	}
	if j.opts.Before != nil {
		client.Before = func(what string) { j.opts.Before(j.Lab, what) }
	}
	if err := client.Run(ctx); err != nil {
		fmt.Fprintln(file, err)
		time.Sleep(200 * time.Millisecond) // what the wire and Smee's log show of its success comes first
		t.put(mark{detail: j.because(err)})
	}
}

// markOf compares what an installer reports with what the lab gave the services for its machine.
func (j *Journey) markOf(t *traveller, r installer.Report) mark {
	m := mark{step: r.Step, ok: r.OK, detail: r.Detail}
	if !r.OK {
		m.detail = j.because(errors.New(r.Detail))
		return m
	}
	refuse := func(what, got, want string) {
		if got != want {
			m.ok, m.detail = false, fmt.Sprintf("%s is %q, should be %q", what, got, want)
		}
	}
	switch r.Step {
	case StepSyslog:
		return mark{step: "sent"} // it counts when Smee has it
	case StepMetadata:
		refuse("the metadata's hostname", r.Data["hostname"], t.machine.Name)
		addrs := j.opts.Lab.Addrs(t.machine)
		own := slices.IndexFunc(addrs, func(addr netip.Addr) bool { return addr.String() == r.Data["public-ipv4"] })
		refuse("the metadata's address", r.Data["public-ipv4"], addrs[max(own, 0)].String())
		refuse("the metadata's instance-id", r.Data["instance-id"], t.machine.MAC.String())
	case StepGRPC:
		refuse("workflow", r.Data["workflow"], workflowOf(t.machine))
	}
	return m
}
