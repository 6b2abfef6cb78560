package edge_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/ipxedust/binary"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// rootOfIPXE is the SHA-256 of the one authority that iPXE trusts unless its build names another (TRUST=).
const rootOfIPXE = "9faf717b7f8ca2f93c256c79f8ac5591895d66d1ff3bee6397a70d29c65eed1a"

// TestIPXE boots a UEFI machine with the iPXE that Smee serves, which is told to fetch its script, and from there a
// file, by HTTPS from the outer edge. Its trust is set as a build with TRUST= sets it: in the program's bytes.
func TestIPXE(t *testing.T) {
	t.Parallel() // labs do not see each other
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skipf("needs Debian's package dnsmasq-base: %v", err)
	}
	s := newSite(t)
	stock, err := hex.DecodeString(rootOfIPXE)
	if err != nil {
		t.Fatal(err)
	}
	efi := binary.Files["ipxe.efi"]
	if bytes.Count(efi, stock) != 1 {
		t.Skip("this iPXE trusts others than the one that is known here")
	}
	own := sha256.Sum256(s.authority.cert.Raw)
	s.write(t, "disk/EFI/BOOT/BOOTX64.EFI", bytes.Replace(efi, stock, own[:], 1))
	s.write(t, "artifacts/hook.ipxe", []byte("#!ipxe\nimgfetch --name second https://"+filesHost+"/tink-stack/second && poweroff\n"))
	s.write(t, "artifacts/second", bytes.Repeat([]byte("kernel"), 100_000))

	// The site's DHCP server names the script, and a DNS server beside it the edge.
	dns := netip.MustParseAddr("192.0.2.3")
	site, err := s.AddHost("site", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Configure(site, netip.PrefixFrom(dns, lab.LAN.Bits()), lab.GatewayIP); err != nil {
		t.Fatal(err)
	}
	first, last := netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.160")
	if _, err := s.StartDHCPServer("site-dhcp", site, first, last,
		"--dhcp-option=6,"+dns.String(), "--dhcp-boot=https://"+filesHost+"/tink-stack/hook.ipxe"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(lab.Process{
		Name: "site-dns", Role: site, Path: "dnsmasq", Tmpfs: []string{"/run"}, Args: []string{
			"--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--user=root", "--no-hosts", "--no-resolv",
			"--listen-address=" + dns.String(), "--bind-interfaces", "--address=/" + filesHost + "/" + lab.ServiceIP.String(),
		},
	}); err != nil {
		t.Fatal(err)
	}
	m := lab.Machine{
		Name: "ipxe", Firmware: lab.UEFI, MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 4, 2}, IP: netip.MustParseAddr("192.0.2.101"),
	}
	proc, err := machine.BootDisk(s.Lab, m, filepath.Join(s.dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = s.Kill(proc.Name())
		if t.Failed() {
			said, err := os.ReadFile(machine.FirmwareLog(s.Lab, m.Name))
			t.Logf("the firmware says: %s %v", said, err)
		}
	}()
	// A handshake of iPXE's on an emulator takes long, and nothing is printed meanwhile.
	step, watch := progress.Begin(t.Context(), progress.Patience{
		Quiet: 2 * time.Minute, Waited: proc.Starved,
		Signs: []func() string{process.LastLine("the firmware", machine.FirmwareLog(s.Lab, m.Name))},
	})
	defer watch.End()
	select {
	case <-proc.Done(): // switched off: both were fetched
	case <-step.Done():
		t.Fatalf("the machine did not switch itself off: %v", context.Cause(step))
	}
	said, err := os.ReadFile(machine.FirmwareLog(s.Lab, m.Name))
	for _, file := range []string{"hook.ipxe", "second"} {
		if err != nil || !strings.Contains(string(said), "https://"+filesHost+"/tink-stack/"+file+"... ok") {
			t.Errorf("%s was not fetched: %v", file, err)
		}
	}
	if got := s.metric(t, `stack_proxy_http_requests_total{code="200",route="outside-files"}`); got == "" {
		t.Error("the edge counted no answers")
	}
}
