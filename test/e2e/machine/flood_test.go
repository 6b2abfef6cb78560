package machine_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	bench "github.com/tinkerbell/stack/test/e2e/bench/relay"
	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestFloodKeepsNoMachineFromBooting has 20,000 DISCOVERs a second of invented machines sent to the LAN, with real Smee
// behind the relay. Machines that nobody has seen before boot: one in Go, and BIOS firmware with iPXE, which takes at most
// twice the time that another one took before the flood. The invented ones know no bounds but the relay's.
//
// The machines' ports are isolated from the flooder's, as a switch does it with protected ports: QEMU's network card loses
// packets by itself at a thousand broadcasts a second, and this is about the relay. FLOOD_RATE sets another rate, and
// FLOOD_PORTS=shared leaves the ports as they are.
func TestFloodKeepsNoMachineFromBooting(t *testing.T) {
	rate := 20000
	if set, err := strconv.Atoi(os.Getenv("FLOOD_RATE")); err == nil {
		rate = set
	}
	goMachine, before := bios, bios
	goMachine.Name, goMachine.IP = "go", netip.MustParseAddr("192.0.2.104")
	goMachine.MAC = net.HardwareAddr{0x52, 0x54, 0, 0, 3, 4}
	before.Name, before.IP = "before", netip.MustParseAddr("192.0.2.105")
	before.MAC = net.HardwareAddr{0x52, 0x54, 0, 0, 3, 5}
	l := lab.ForTest(t, lab.Options{
		Machines: []lab.Machine{bios, goMachine, before}, Without: []string{lab.Hegel},
		Env: map[string][]string{lab.DHCPRelay: {"DHCP_RELAY_LOG_LEVEL=warn"}},
	})
	firmware := len(machine.Missing()) == 0 && !testing.Short()
	var calm time.Duration
	if firmware {
		calm = powerOn(t, l, before)
	}
	sent := flood(t, l, rate)
	requests := relayMetric(t, l, `dhcp_relay_server_requests_total{server=".*"}`)
	started := time.Now()

	if err := bootInGo(t, l, goMachine); err != nil {
		t.Errorf("the machine in Go did not boot: %v", err)
	}
	t.Logf("the machine in Go had its script after %.1f s", time.Since(started).Seconds())
	if firmware {
		flooded := powerOn(t, l, bios)
		t.Logf("firmware had its script after %.1f s, and after %.1f s in the flood", calm.Seconds(), flooded.Seconds())
		if flooded > 2*calm {
			t.Errorf("got %.2f times the time without a flood, want 2 at most", flooded.Seconds()/calm.Seconds())
		}
	}

	elapsed := time.Since(started).Seconds()
	requests = relayMetric(t, l, `dhcp_relay_server_requests_total{server=".*"}`) - requests
	held := relayMetric(t, l, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="newcomer-limit"}`)
	lost := relayMetric(t, l, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="overflow"}`)
	got := sent()
	t.Logf("of %d invented requests the relay held back %.0f, the kernel lost %.0f; Smee got %.0f in all", got, held, lost, requests)
	if most := 100*elapsed + 300; requests > most { // the allowance was spent before; real machines send some tens
		t.Errorf("Smee got %.0f requests in %.1f s, want %.0f at most", requests, elapsed, most)
	}
	if held == 0 {
		t.Error("the relay held nothing back: there was no flood")
	}
	if !firmware {
		t.Skip("firmware is left out: it needs the Debian packages " + strings.Join(machine.Missing(), ", ") + ", and no -short")
	}
}

// flood sends DISCOVERs of invented machines until sent is called, which returns how many. It returns when the allowance
// for new machines is spent.
func flood(t *testing.T, l *lab.Lab, rate int) (sent func() int) {
	t.Helper()
	role, err := l.AddHost("flood", net.HardwareAddr{2, 0, 0, 0, 9, 9})
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	var result bench.Result
	go func() {
		ended <- l.Do(role, func() (err error) {
			result, err = bench.Generate(bench.Load{Interface: "eth0", Rate: rate, Duration: 3 * time.Minute, Stop: stop})
			return err
		})
	}()
	const held = `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="newcomer-limit"}`
	patience := progress.Patience{Quiet: 30 * time.Second}
	err = progress.Until(t.Context(), patience, 100*time.Millisecond, func(context.Context) error {
		if relayMetric(t, l, held) == 0 {
			return errors.New("the flood is not held back")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		return result.Sent
	}
}

func isolate(l *lab.Lab) error {
	if os.Getenv("FLOOD_PORTS") == "shared" {
		return nil
	}
	return l.IsolatePorts()
}

// powerOn switches firmware on and returns how long it took to have Smee's script.
func powerOn(t *testing.T, l *lab.Lab, m lab.Machine) time.Duration {
	t.Helper()
	started := time.Now()
	proc, err := machine.Boot(l, m, func(installer.Report) {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, watch := progress.Begin(t.Context(), firmwarePatience(l, proc, m))
	defer watch.End()
	if err := isolate(l); err != nil {
		t.Fatal(err)
	}
	err = lab.Tail(ctx, l.LogPath(lab.Smee), func(line string) bool {
		return !strings.Contains(line, `"method":"GET","uri":"/`+m.MAC.String()+`/auto.ipxe"`)
	})
	took := time.Since(started)
	if err != nil || ctx.Err() != nil {
		said, _ := os.ReadFile(machine.FirmwareLog(l, m.Name))
		t.Errorf("%s did not boot in %.0f s: %v; its firmware says: %s", m.Name, took.Seconds(), err, said)
	}
	if err := l.Kill(proc.Name()); err != nil {
		t.Error(err)
	}
	return took
}

// bootInGo goes from the first DISCOVER to Smee's script.
func bootInGo(t *testing.T, l *lab.Lab, m lab.Machine) error {
	t.Helper()
	ctx, watch := progress.Begin(t.Context(), progress.Patience{Quiet: time.Minute})
	defer watch.End()
	role, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		return err
	}
	if err := isolate(l); err != nil {
		return err
	}
	lease := func(stage netboot.Stage) (lease netboot.Lease, err error) {
		var client *netboot.DHCP
		if err := l.Do(role, func() (err error) { client, err = netboot.OpenDHCP("eth0"); return err }); err != nil {
			return lease, err
		}
		defer client.Close()
		if lease, err = client.Lease(ctx, netboot.Ask{Stage: stage, Arch: iana.INTEL_X86PC, Moved: watch.Moved}); err != nil {
			return lease, err
		}
		return lease, l.Do(role, func() error { return netboot.Configure("eth0", lease) })
	}
	first, err := lease(netboot.PXE)
	if err != nil {
		return err
	}
	conn, err := l.Dial(role)(ctx, "udp", netip.AddrPortFrom(first.Next, 69).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	content, err := netboot.ReadFileFunc(ctx, conn, first.BootFile, watch.Bytes)
	if err != nil {
		return err
	}
	if len(content) < 10000 {
		return fmt.Errorf("got a boot file of %d bytes", len(content))
	}
	if err := l.Do(role, func() error { return netboot.Flush("eth0") }); err != nil {
		return err
	}
	second, err := lease(netboot.IPXE)
	if err != nil {
		return err
	}
	if filepath.Base(second.BootFile) != "auto.ipxe" {
		return fmt.Errorf("got %q to boot", second.BootFile)
	}
	_, err = l.Page(ctx, role, second.BootFile)
	return err
}

// relayMetric is the sum of the relay's metrics whose names with labels match.
func relayMetric(t *testing.T, l *lab.Lab, pattern string) (sum float64) {
	t.Helper()
	page, err := l.Page(t.Context(), lab.RolePod, "http://"+netip.AddrPortFrom(lab.PodIP, 9067).String()+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	name, labels, _ := strings.Cut(pattern, "{")
	for _, line := range regexp.MustCompile(`(?m)^`+name+`\{`+labels+` .*$`).FindAllString(page, -1) {
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}
