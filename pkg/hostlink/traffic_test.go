package hostlink

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
)

// TestHearingVouchesForDHCPAlone: neither silence nor other frames prove that a listener hears machines; a request
// does.
func TestHearingVouchesForDHCPAlone(t *testing.T) {
	for _, kind := range []Kind{Macvlan, IPvlan} {
		t.Run(kind.String(), func(t *testing.T) {
			n := newNode(t)
			n.lan.Addr(t, "lan0", "192.0.2.9/24")
			h := n.open(t)
			listener, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0", Kind: kind})
			if fault, ok := errors.AsType[*Fault](err); ok && fault.Cause == NoKind {
				t.Skip("needs a kernel with ipvlan (test/e2e/kernels has such)")
			}
			if err != nil {
				t.Fatal(err)
			}
			const short = 50 * time.Millisecond
			_, err = h.AwaitTraffic(t.Context(), listener, short)
			wantCause(t, err, NoTraffic)
			t.Log(err)
			broadcastTo(t, n.lan, 68, "hello")
			_, err = h.AwaitTraffic(t.Context(), listener, short)
			wantCause(t, err, NoDHCP)
			t.Log(err)
			n.hears(t, h, listener)
		})
	}
}

// hears has machines ask until a listener is said to hear them.
func (n *node) hears(t *testing.T, h *Host, listener Listener) {
	t.Helper()
	var heard bool
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		heard, err = h.AwaitTraffic(t.Context(), listener, patience)
	}()
	testwait.Until(t, "a request is heard", func() bool {
		broadcast(t, n.lan, "hello")
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	if err != nil || !heard {
		t.Errorf("got %v, %v; want a request heard", heard, err)
	}
}

// TestHearingWithoutNftables: where requests cannot be counted, nothing is vouched for.
func TestHearingWithoutNftables(t *testing.T) {
	n := newNode(t)
	n.lan.Addr(t, "lan0", "192.0.2.9/24")
	h := n.open(t)
	h.filterErr = unix.EPROTONOSUPPORT
	listener, err := h.Ensure(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	broadcast(t, n.lan, "hello")
	if heard, err := h.AwaitTraffic(t.Context(), listener, patience); err != nil || heard {
		t.Errorf("got %v, %v; want nothing said", heard, err)
	}
}

// TestWarnings judges parents that hypervisors and access points stand behind.
func TestWarnings(t *testing.T) {
	h := &Host{}
	parent := Link{Name: "prov0", MAC: net.HardwareAddr{0, 0x50, 0x56, 1, 2, 3}, Carrier: true, Up: true}
	warnings := h.warnings(parent, Macvlan)
	if len(warnings) != 1 || warnings[0].Cause != MACFilter || !strings.Contains(warnings[0].Do, "forged transmits") {
		t.Errorf("got %v, want a word about forged transmits", warnings)
	}
	if got := h.warnings(parent, IPvlan); len(got) != 0 {
		t.Errorf("got %v, want none for an ipvlan", got)
	}
	parent.Carrier, parent.MAC = false, net.HardwareAddr{0, 0x15, 0x5d, 1, 2, 3}
	warnings = h.warnings(parent, Macvlan)
	if len(warnings) != 2 || warnings[0].Cause != NoCarrier || !strings.Contains(warnings[1].What, "Hyper-V") {
		t.Errorf("got %v, want no link, and Hyper-V", warnings)
	}
	parent = Link{Name: "wlan0", Kind: "device", Carrier: true, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	if warnings = h.warnings(parent, Macvlan); len(warnings) != 1 || warnings[0].Cause != Wireless {
		t.Errorf("got %v, want a word about wireless", warnings)
	}
}

// TestNoCarrier makes a listener on a parent whose far end is down: it is of no use yet, and can be made.
func TestNoCarrier(t *testing.T) {
	n := newNode(t)
	if err := n.lan.Links().LinkSetDown(n.lan.Link(t, "lan0")); err != nil {
		t.Fatal(err)
	}
	h := n.open(t)
	plan, err := h.Plan(Spec{Name: "macvlan0", Parent: "prov0"})
	if err != nil {
		t.Fatal(err)
	}
	if len(plan.Warnings) != 1 || plan.Warnings[0].Cause != NoCarrier {
		t.Errorf("got warnings %v, want no carrier", plan.Warnings)
	}
	if _, err := h.apply(plan); err != nil {
		t.Error(err)
	}
}
