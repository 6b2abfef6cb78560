package journal

import (
	"testing"

	"github.com/tinkerbell/stack/pkg/boot"
)

// A machine that failed stays so, also across a restart, until a person acknowledges it, or until it boots again.
func TestAcknowledged(t *testing.T) {
	know := one.dhcp(5000, boot.Acknowledged, 0)
	stuck := one.lease(0, pxe, "ipxe.efi")
	j := New(Options{})
	play(j, stuck, 5000)
	if b := newest(t, j, first); b.State != StateFailed || !b.Known.IsZero() {
		t.Fatalf("it is %s", b.State)
	}
	again := New(Options{}) // as a history is replayed: no time passes between events
	put(again, stuck...)
	for _, j := range []*Journal{j, again} {
		put(j, know)
		wait(j, 5001, 5003)
		b := newest(t, j, first)
		if b.State != Quiet || b.Cause == nil || !b.Known.Equal(after(5000)) || b.IsStuck() {
			t.Errorf("acknowledged: %s, %+v", b.State, b.Cause)
		}
		play(j, one.lease(6000, pxe, "ipxe.efi"), 12000)
		if b := newest(t, j, first); b.State != StateFailed || !b.Known.IsZero() {
			t.Errorf("the next boot is %s", b.State)
		}
		put(j, two.dhcp(12001, boot.Acknowledged, 0)) // nobody
		if n := len(j.Machines()); n != 1 {
			t.Errorf("%d machines", n)
		}
	}
}
