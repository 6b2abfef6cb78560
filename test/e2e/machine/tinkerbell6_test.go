package machine_test

import (
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// TestTinkerbellIPv6 has a newer Tinkerbell answer DHCPv6 itself: it knows the machine by option 79 and makes an address of
// the relay's link-address. TINKERBELL=PATH is its binary; one that has no DHCPv6 is left out.
func TestTinkerbellIPv6(t *testing.T) {
	binary := os.Getenv("TINKERBELL")
	if binary == "" {
		t.Skip("needs TINKERBELL=PATH, the binary of a Tinkerbell with DHCPv6")
	}
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	tinkerbell, err := program.BuildTinkerbell(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	tinkerbell.Server = binary
	m := uefi
	m.NoIPv4, m.IP6 = true, netip.MustParseAddr("2001:db8:1::1:10")
	l := lab.ForTest(t, lab.Options{IPv6: true, Tinkerbell: &tinkerbell, Machines: []lab.Machine{m}})
	events := make(chan observe.Event, 1024)
	sniffer, err := observe.Watch(l, filepath.Join(l.RunDir(), "boot.pcapng"), func(e observe.Event) {
		select {
		case events <- e:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	follow(t, l, m, sniffer, events, []expected{
		{what: "a SOLICIT", match: func(e observe.Event) bool { return e.Name == "SOLICIT" && strings.HasPrefix(e.Detail, "PXEClient:") }},
		{what: "the REPLY", match: func(e observe.Event) bool {
			return e.Name == "REPLY" && strings.HasPrefix(e.Detail, "2001:db8:1:") && strings.Contains(e.Detail, "tftp://[2001:db8:1::2]")
		}},
		{what: "the boot file", match: func(e observe.Event) bool { return e.Kind == observe.TFTP && e.Bytes > 10_000 }},
		{what: "the script", match: func(e observe.Event) bool {
			return e.Kind == observe.HTTP && path.Base(e.Name) == "auto6.ipxe" && e.Bytes > 0
		}},
	}, nil)
	if err := sniffer.Close(); err != nil {
		t.Error(err)
	}
}
