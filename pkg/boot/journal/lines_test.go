package journal

import "testing"

// TestIPXELogs is about iPXE, which sends its own lines until it starts the kernel: the system's step begins after it.
func TestIPXELogs(t *testing.T) {
	j := New(Options{})
	steps := func() (names []Step) {
		for _, s := range newest(t, j, first).Steps {
			names = append(names, s.Step)
		}
		return names
	}
	has := func(s Step) bool {
		for _, name := range steps() {
			if name == s {
				return true
			}
		}
		return false
	}
	play(j, film(one.toIPXE(0), one.log(5, "ipxe", "Configuring (net0)... ok"), one.script(5.5), one.kernel(7),
		one.log(7.5, "ipxe", "vmlinuz-x86_64... ok"), one.log(7.6, "", "m1 ipxe: initramfs-x86_64...")), 8)
	if has(Syslog) {
		t.Errorf("the steps are %q: iPXE's lines are taken for the system's", steps())
	}
	if m, _ := j.Machine(first); len(m.Lines) != 3 {
		t.Errorf("%d lines are kept, want 3", len(m.Lines))
	}
	play(j, film(one.log(30, "kernel", "Linux version 6.6")), 31)
	if !has(Syslog) {
		t.Errorf("the steps are %q: the system's line is missing", steps())
	}
}

// TestMissingAutoexecIsNoFault is what a machine that boots as HookOS does was seen to say, while iPXE waited for its second
// address.
func TestMissingAutoexecIsNoFault(t *testing.T) {
	j := New(Options{})
	play(j, film(one.toIPXE(0), one.log(5, "ipxe", "autoexec.ipxe... Not found (https://ipxe.org/2d12618e)")), 12)
	if b := newest(t, j, first); b.Cause != nil {
		t.Errorf("the cause is %+v", b.Cause)
	}
	play(j, film(one.log(13, "ipxe", "auto.ipxe... Not found (https://ipxe.org/2d0c618e)")), 20)
	if b := newest(t, j, first); name(b.Cause) != "loader-error" {
		t.Errorf("the cause is %+v, want loader-error", b.Cause)
	}
}
