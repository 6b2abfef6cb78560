package lab_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

func mac(tb testing.TB, text string) net.HardwareAddr {
	tb.Helper()
	addr, err := net.ParseMAC(text)
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}

func machine(tb testing.TB) lab.Machine {
	tb.Helper()
	return lab.Machine{
		Name: "m1", MAC: mac(tb, "52:54:00:00:00:01"), IP: netip.MustParseAddr("192.0.2.101"), Userdata: "#cloud",
	}
}

// pod are the programs of the pod; tests of the lab alone leave them out.
var pod = []string{lab.BroadcastInit, lab.DHCPRelay, lab.StackProxy}

func TestSmoke(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{machine(t)}, Without: append(pod, lab.Tink)})
	t.Log(l.ID(), l.Roles())
}
