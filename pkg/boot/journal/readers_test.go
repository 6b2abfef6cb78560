package journal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// The version is another one after each event and each tick that changes something, and the same one after others.
func TestVersion(t *testing.T) {
	j := New(Options{})
	tick := func(at float64) func() { return func() { j.Tick(after(at)) } }
	asks := func(at float64) func() { return func() { put(j, one.discover(at, pxe)) } }
	for i, step := range []struct {
		do      func()
		changes bool
	}{
		{asks(0), true}, {asks(2), true}, {asks(2), true}, {tick(2.5), false}, {tick(3), true}, {tick(3.5), false},
		{func() { put(j, one.lease(30, pxe, "x")[:2]...) }, true}, {func() { put(j, two.discover(31, pxe)) }, true},
	} {
		before := j.Version()
		if step.do(); (j.Version() != before) != step.changes {
			t.Errorf("%d: version %d after %d", i, j.Version(), before)
		}
	}
}

func TestForgottenMachinesAreTold(t *testing.T) {
	j := New(Options{Limits: Limits{Machines: 1}})
	put(j, one.discover(0, pxe))
	before := j.Version()
	put(j, two.lease(1, pxe, "x")...)
	if j.Version() == before {
		t.Error("nothing has changed")
	}
	if _, ok := j.Machine(first); ok {
		t.Error("it is still there")
	}
	if n := j.Forgotten(); n != 1 {
		t.Errorf("%d machines made room, want 1", n)
	}
}

// A system that renews its lease is no machine that boots, and makes room for none.
func TestRenewalsForgetNobody(t *testing.T) {
	j := New(Options{})
	renewed := func(e *draft) { e.Client = bytes16(one.address) }
	put(j, one.dhcp(0, boot.DHCPRequest, 3, renewed), one.reply(0.1, 5, ""))
	put(j, one.dhcp(5, boot.DHCPRequest, 3, renewed), one.reply(5.1, 5, "undionly.kpxe", renewed))
	j.Tick(after(20))
	if n := len(j.Machines()); n != 0 || j.Forgotten() != 0 {
		t.Errorf("%d machines are known, %d made room", n, j.Forgotten())
	}
}

// One goroutine records, others read; what they got does not change under them.
func TestReadersWhileRecording(t *testing.T) {
	j := New(Options{
		Limits: Limits{Machines: 50}, Changed: func(c Change) { _ = len(c.Boot.Steps) },
		Hardware: func([6]byte) (Hardware, bool) { return Hardware{Known: true, Name: "default/x"}, true },
	})
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			for seen := uint64(0); ; seen = j.Version() {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				if seen == j.Version() {
					continue
				}
				for k, m := range j.Machines() {
					if k == i {
						m, _ = j.Machine(m.ID)
					}
					for _, b := range m.Boots {
						for _, s := range b.Steps {
							_ = fmt.Sprint(s.Text, len(s.Answers), b.Cause)
						}
					}
				}
				if i == 0 {
					_ = fmt.Sprint(j.Machines(), j.Counts())
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(3, 4))
	at := start
	for range 3000 {
		at = at.Add(time.Duration(r.Int64N(int64(time.Second))))
		e := random(r)
		e.At = at.UnixNano()
		j.Record(e)
		j.Tick(at)
	}
	close(done)
	readers.Wait()
	check(t, j)
}

func TestMachinesAndCounts(t *testing.T) {
	j := New(Options{Pod: "proxy-0"})
	actors := []actor{one, two, three, {"52:54:00:5e:00:04", "192.0.2.104"}}
	put(j, film(actors[0].toAgent(0), actors[0].get(40, 1, files, 8080, "/image.gz", with(boot.Agent, "Go")),
		actors[0].agent(45, 10, boot.Done))...) // booted
	put(j, film(actors[1].toScript(60))...)
	put(j, actors[2].asks(50)...)
	put(j, actors[3].toKernel(62)...)
	j.Tick(after(72))
	var got []string
	for _, m := range j.Machines() {
		got = append(got, fmt.Sprintf("%s %s %s", m.ID[15:], m.Boots[0].State, m.Boots[0].At))
		if m.Pod != "proxy-0" || len(m.Boots) != 1 || m.Boots[0].Steps[0].Answers != nil {
			t.Errorf("got %+v", m)
		}
	}
	slices.Sort(got)
	want := "[01 installed files 02 booting script 03 stuck dhcp 04 booting initramfs]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if got, want := fmt.Sprint(j.Counts()), "[{booting script 1} {booting initramfs 1} {installed files 1} {stuck dhcp 1}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
