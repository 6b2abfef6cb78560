package machine_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// test is a machine and what it is to be told.
type test struct {
	machine  lab.Machine
	bootFile string // as Smee offers it to the firmware
	offer    string // how Smee's OFFERs begin
	ack      string // how the ACK of its address begins
	// steps are what it is to be seen to do in place of loading Smee's script; after, which may be nil, is called then.
	steps []expected
	after func(*testing.T, *lab.Lab, lab.Machine)
}

var site = netip.MustParseAddr("192.0.2.3") // the site's own DHCP server

// TestProxyMode switches firmware on where the site's own DHCP server gives addresses and no boot options, and Smee
// says by proxyDHCP what to boot, through our relay. Smee has no port 4011: the boot file must come out of its offer.
func TestProxyMode(t *testing.T) {
	offer, ack := "0.0.0.0 from "+lab.ServiceIP.String()+", ", "192.0.2.150 from "+site.String()+", "
	other := "192.0.2.151 from " + site.String() + ", "
	boot(t, lab.Options{Args: map[string][]string{lab.Smee: {"-dhcp-mode", "proxy"}}}, []test{
		// QEMU's ROM is an iPXE of its own, which is told to load Smee's.
		{machine: bios, bootFile: "tftp://192.0.2.2:69/" + bios.MAC.String() + "/undionly.kpxe", offer: offer, ack: ack},
		{machine: uefi, bootFile: "ipxe.efi", offer: offer, ack: other},
	}, func(t *testing.T, l *lab.Lab) {
		if _, err := exec.LookPath("dnsmasq"); err != nil {
			t.Skipf("needs Debian's package dnsmasq-base: %v", err)
		}
		_, err := l.AddDHCPServer("site-dhcp", site, netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.151"),
			"--dhcp-host="+bios.MAC.String()+",192.0.2.150", "--dhcp-host="+uefi.MAC.String()+",192.0.2.151")
		if err != nil {
			t.Fatal(err)
		}
	})
}

var (
	bios = lab.Machine{
		Name: "bios", Firmware: lab.BIOS,
		MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 3, 1}, IP: netip.MustParseAddr("192.0.2.101"),
	}
	uefi = lab.Machine{
		Name: "uefi", Firmware: lab.UEFI,
		MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 3, 2}, IP: netip.MustParseAddr("192.0.2.102"),
	}
)

// boot makes a lab and switches machines on until each has Smee's script. Prepare may be nil.
func boot(t *testing.T, options lab.Options, tests []test, prepare func(*testing.T, *lab.Lab)) {
	t.Helper()
	t.Parallel() // labs do not see each other
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	if testing.Short() {
		t.Skip("-short: it boots machines")
	}
	options.Without = []string{lab.Hegel}
	events := map[string]chan observe.Event{}
	for _, test := range tests {
		options.Machines = append(options.Machines, test.machine)
		events[test.machine.MAC.String()] = make(chan observe.Event, 1024)
	}
	l := lab.ForTest(t, options)
	if prepare != nil {
		prepare(t, l)
	}
	capture := filepath.Join(l.RunDir(), "boot.pcapng")
	sniffer, err := observe.Watch(l, capture, func(e observe.Event) {
		select {
		case events[e.Machine] <- e:
		default: // not a machine's, or nobody waits any more
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("firmware", func(t *testing.T) { // waits for its parallel tests, before the lab goes
		for _, test := range tests {
			t.Run(test.machine.Name, func(t *testing.T) {
				t.Parallel()
				test.run(t, l, sniffer, events[test.machine.MAC.String()])
			})
		}
	})
	if err := sniffer.Close(); err != nil {
		t.Fatal(err)
	}
	checkPorts(t, capture)
}

// checkPorts wants DHCP in a capture, and none on port 4011, where a PXE client asks boot servers: Smee
// tells it not to (PXE 2.1: option 43, sub-option 6, bit 3).
func checkPorts(t *testing.T, capture string) {
	t.Helper()
	file, err := os.Open(capture)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	frames, err := observe.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	count := map[uint16]int{}
	for _, frame := range frames {
		// Frames are cut, and then do not parse.
		whole := slices.Concat(frame.Frame, make([]byte, max(0, frame.Length-len(frame.Frame))))
		if p, ok := observe.ParsePacket(whole); ok {
			count[p.To.Port()]++
		}
	}
	if count[67] == 0 || count[4011] != 0 {
		t.Errorf("got %d packets to port 67 and %d to port 4011, want some and none", count[67], count[4011])
	}
}

func (test test) run(t *testing.T, l *lab.Lab, sniffer *observe.Sniffer, events <-chan observe.Event) {
	file := path.Base(test.bootFile)
	is := func(e observe.Event, kind, begins, ends string) bool {
		return e.Kind == observe.DHCP && e.Name == kind &&
			strings.HasPrefix(e.Detail, begins) && strings.HasSuffix(e.Detail, ends)
	}
	if len(test.steps) > 0 {
		follow(t, l, test.machine, sniffer, events, test.steps, test.after)
		return
	}
	askFor(t, l, file)
	follow(t, l, test.machine, sniffer, events, []expected{
		{what: "a DISCOVER", match: func(e observe.Event) bool { return is(e, "DISCOVER", "PXEClient:", "") }},
		{what: "Smee's OFFER", match: func(e observe.Event) bool { return is(e, "OFFER", test.offer, ", boot file "+test.bootFile) }},
		{what: "the ACK of its address", match: func(e observe.Event) bool { return is(e, "ACK", test.ack, "") }},
		{what: "the boot file by TFTP", match: func(e observe.Event) bool {
			return e.Kind == observe.TFTP && e.Bytes > 0 && path.Base(e.Name) == file
		}},
		{what: "Smee's OFFER to the boot file", match: func(e observe.Event) bool {
			return is(e, "OFFER", test.offer, "/"+test.machine.MAC.String()+"/auto.ipxe")
		}},
		{what: "the script by HTTP", match: func(e observe.Event) bool {
			return e.Kind == observe.HTTP && path.Base(e.Name) == "auto.ipxe" && e.Bytes > 0
		}},
	}, nil)
	served := regexp.MustCompile(`"tftp transfer ended".*"loader":"` + regexp.QuoteMeta(file) + `@.*"outcome":"completed"`)
	if err := lab.Line(t.Context(), l.LogPath(lab.StackProxy), func(line string) bool {
		return served.MatchString(line) && !strings.Contains(line, `"client":"127.0.0.1:`)
	}); err != nil {
		t.Errorf("the firmware's %s did not come from memory: %v", file, err)
	}
}

// askFor asks stack-proxy for a loader until the test's end, so that it is kept and no firmware waits for Smee's.
func askFor(t *testing.T, l *lab.Lab, file string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	read := func() error {
		conn, err := l.Dial(lab.RolePod)(ctx, "udp", "127.0.0.1:69")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = netboot.ReadFileFunc(ctx, conn, file, func(int) {})
		return err
	}
	asking.Go(func() {
		for ctx.Err() == nil {
			_ = read()
			select {
			case <-ctx.Done():
			case <-time.After(3 * time.Second):
			}
		}
	})
	t.Cleanup(func() {
		stop()
		asking.Wait()
	})
	if err := lab.Line(ctx, l.LogPath(lab.StackProxy), func(line string) bool {
		return strings.Contains(line, `"loader kept"`) && strings.Contains(line, `"`+file+`@`)
	}); err != nil {
		t.Fatalf("%s is not kept: %v", file, err)
	}
}

// expected is what a machine is to be seen to do next.
type expected struct {
	what  string
	match func(observe.Event) bool
	// says is what the firmware, or the kernel's stub, is to print, in place of an event.
	says string
}

// follow switches a machine on and waits for one thing after the other.
func follow(
	t *testing.T, l *lab.Lab, m lab.Machine, sniffer *observe.Sniffer, events <-chan observe.Event, steps []expected,
	after func(*testing.T, *lab.Lab, lab.Machine),
) {
	t.Helper()
	proc, err := machine.Boot(l, m, func(installer.Report) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Kill(proc.Name()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			said, err := os.ReadFile(machine.FirmwareLog(l, m.Name))
			t.Logf("the firmware says: %s %v", said, err)
		}
	}()
	started := time.Now()
	var seen []string
	patience := firmwarePatience(l, proc, m)
	await := func(step expected) {
		ctx, watch := progress.Begin(t.Context(), patience)
		defer watch.End()
		for {
			if step.says != "" {
				if said, _ := os.ReadFile(machine.FirmwareLog(l, m.Name)); strings.Contains(string(said), step.says) {
					t.Logf("%6.2f s %s, %s: %s", time.Since(started).Seconds(), m.Name, step.what, step.says)
					return
				}
			}
			select {
			case <-time.After(100 * time.Millisecond): // what it prints is no event
			case e := <-events:
				seen = append(seen, e.Kind.String()+" "+e.Name+" "+e.Detail)
				if step.match != nil && step.match(e) {
					t.Logf("%6.2f s %s, %s: %s %s", time.Since(started).Seconds(), m.Name, step.what, e.Name, e.Detail)
					return
				}
			case <-proc.Done():
				t.Fatalf("%s: %v; seen: %s", step.what, machine.ErrDied, strings.Join(seen, "; "))
			case <-ctx.Done():
				t.Fatalf("%s: %v; seen: %s", step.what, context.Cause(ctx), strings.Join(seen, "; "))
			}
		}
	}
	for _, step := range steps {
		await(step)
		// What firmware prints on the network's behalf it prints again and again.
		patience.Signs = []func() string{func() string { return sniffer.Reached(m.MAC.String()) }}
	}
	if after != nil {
		after(t, l, m)
	}
}

// firmwarePatience is how long firmware may print nothing new, until it is on the network.
func firmwarePatience(l *lab.Lab, proc *lab.Proc, m lab.Machine) progress.Patience {
	return progress.Patience{
		Quiet: time.Minute, Waited: proc.Starved,
		Signs: []func() string{process.LastLine("the firmware", machine.FirmwareLog(l, m.Name))},
	}
}
