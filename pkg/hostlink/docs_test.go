package hostlink

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// samples are the faults as somebody may meet them.
func samples(t *testing.T) []error {
	t.Helper()
	h := &Host{proc: fakeProc(t, map[string]string{"wireless": wifi})}
	ether := func(name, kind string) Link {
		return Link{Name: name, Kind: kind, Index: 2, ethernet: true, lowerNS: -1, Up: true, Carrier: true, Chosen: "name"}
	}
	eth1, wlan, lo, down := ether("eth1", "device"), ether("wlp3s0", "device"), Link{}, ether("eth1", "device")
	lo.Name, lo.Chosen, down.Up = "lo", "name", false
	child := ether("ipvlan0", "ipvlan")
	child.lower = 2
	layer3 := child
	layer3.Name, layer3.layer3 = "ipvl0", true
	cut := Link{Name: "eth1", MAC: net.HardwareAddr{0, 0x50, 0x56, 1, 2, 3}}
	unfiltered := &Host{filterErr: unix.EPROTONOSUPPORT}
	macvlan, ipvlan := Spec{Name: "macvlan0"}, Spec{Name: "ipvlan0", Kind: IPvlan}
	stable := Spec{Name: "macvlan0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	all := []error{
		noCapability(65532, nil),
		noHostAccess(unix.EACCES),
		noProcess(1, unix.ENOENT),
		sameNamespace(1),
		noParent("eth9", []Link{eth1, ether("bond0", "bond")}),
		ambiguous("192.0.2.0/24", []Link{eth1, ether("eth2", "device")}),
		noRoute(),
		h.check(down, Macvlan),
		h.check(lo, Macvlan),
		owned(eth1, ether("br0", "bridge")),
		owned(eth1, ether("bond0", "bond")),
		occupied(eth1, Macvlan, []Link{child}),
		refused(unix.EBUSY, macvlan, eth1),
		occupied(eth1, IPvlan, []Link{layer3}),
		h.check(wlan, Macvlan),
		nameTaken("macvlan0", "veth"),
		refused(unix.EOPNOTSUPP, ipvlan, eth1),
		refused(unix.EADDRINUSE, stable, eth1),
		unfiltered.isolate("macvlan0", false),
		noTraffic("macvlan0", "eth1", 12, 3*time.Second),
		noTraffic("macvlan0", "eth1", 0, 3*time.Second),
		noDHCP("macvlan0", "eth1", 7, 3*time.Second),
	}
	for _, err := range []error{
		fmt.Errorf("failed to name listener macvlan0: %w", unix.EEXIST),
		fmt.Errorf("failed to make macvlan macvlan0 on eth1: %w", unix.EPERM),
		fmt.Errorf("failed to make macvlan macvlan0 on eth1: %w", unix.ENOMEM),
		fmt.Errorf("failed to ask for strict rtnetlink (Linux 4.20 or newer is needed): %w", unix.ENOPROTOOPT),
		fmt.Errorf("failed to make macvlan macvlan0 on eth1: %w", unix.EINVAL),
	} {
		all = append(all, explain(err))
	}
	all = append(all, busy())
	for _, warning := range h.warnings(cut, Macvlan) {
		all = append(all, warning)
	}
	return all
}

// TestDocs holds the documents to the code: every cause is explained, and every sample is what is logged.
// With UPDATE_DOCS=1 it writes the samples.
func TestDocs(t *testing.T) {
	const manual, path = "../../docs/broadcast-init.md", "../../docs/reference/broadcast-init.md"
	const begin, end = "<!-- samples -->\n", "<!-- end of samples -->\n"
	causesText, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	sampled := map[Cause]bool{}
	for _, sample := range samples(t) {
		fault, ok := sample.(*Fault)
		if !ok {
			t.Fatalf("got %v, want a fault", sample)
		}
		sampled[fault.Cause] = true
		want.WriteString("- `" + fault.Cause.String() + "`: " + fault.Error() + "\n")
	}
	for cause, name := range causes {
		if !strings.Contains(string(causesText), "| `"+name+"` |") {
			t.Errorf("%s has no row in %s", name, manual)
		}
		if !sampled[cause] {
			t.Errorf("%s has no sample in %s", name, path)
		}
	}
	before, rest, found := strings.Cut(string(text), begin)
	got, after, found2 := strings.Cut(rest, end)
	if !found || !found2 {
		t.Fatalf("%s has no place for the samples", path)
	}
	if got == want.String() {
		return
	}
	if os.Getenv("UPDATE_DOCS") == "" {
		t.Fatalf("the samples in %s are not what is logged: run UPDATE_DOCS=1 go test ./pkg/hostlink -run TestDocs", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
