package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := LastLine("the firmware", path)(); got != "" {
		t.Errorf("a file that is not there says %q", got)
	}
	for text, want := range map[string]string{
		"": "", "\r\n\n": "",
		"one\ntwo\n":                         "the firmware printed last: two",
		"\x1b[2J\x1b[01;01H>>Start PXE.....": "the firmware printed last: >>Start PXE",
		"Loading\r\n\x1b[0m\n....\n":         "the firmware printed last: Loading",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := LastLine("the firmware", path)(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// A machine that hangs has not moved by what its watchdog prints of it every 22 seconds.
func TestWatchdogIsNoProgress(t *testing.T) {
	const boots = "[    2.5] virtio_net virtio0 eth0: renamed\n"
	hang := func(at string) string {
		return "[   " + at + ".1] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [init:1]\r\n" +
			"[   " + at + ".1] CPU: 0 PID: 1 Comm: init\r\n" +
			"[   " + at + ".2] RIP: 0010:_raw_spin_lock+0x" + at + "\n[   " + at + ".3]  </TASK>\n"
	}
	stall := "[   61.0] rcu: INFO: rcu_preempt self-detected stall on CPU\n" + "[   61.4] rcu: \t0-....: (5250 ticks this GP)\n"
	path := filepath.Join(t.TempDir(), "log")
	for _, test := range []struct{ text, want string }{
		{boots, "[    2.5] virtio_net virtio0 eth0: renamed"},
		{boots + hang("26"), "[    2.5] virtio_net virtio0 eth0: renamed"},
		{boots + hang("26") + hang("48") + stall, "[    2.5] virtio_net virtio0 eth0: renamed"},
		{boots + hang("26") + "[   29.0] EXT4-fs: mounted\n", "[   29.0] EXT4-fs: mounted"},
		{boots + hang("26") + "init: done\n", "init: done"},
		{"rcu: INFO: rcu_sched detected stalls on CPUs/tasks\n", ""},
	} {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := LastLine("the kernel", path)()
		if want := "the kernel printed last: " + test.want; test.want == "" && got != "" || test.want != "" && got != want {
			t.Errorf("%q: got %q, want %q", test.text, got, want)
		}
	}
}

// However long it goes on.
func TestWatchdogIsNoProgressForHours(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	sign := LastLine("the kernel", path)
	text := "[    2.5] virtio_net virtio0 eth0: renamed\n"
	for second := 26; second < 2600; second += 22 {
		text += fmt.Sprintf("[%5d.1] watchdog: BUG: soft lockup - CPU#0 stuck for %ds! [init:1]\n", second, second)
		for i := range 100 {
			text += fmt.Sprintf("[%5d.2] R%02d: %016x, and more of the same\n", second, i, second*i)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := sign(); got != "the kernel printed last: [    2.5] virtio_net virtio0 eth0: renamed" {
			t.Fatalf("after %d s: got %q", second, got)
		}
	}
}
