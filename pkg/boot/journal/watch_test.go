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

func TestWatch(t *testing.T) {
	j := New(Options{})
	changes, stop := j.Watch()
	put(j, one.discover(0, pxe))
	if id := <-changes; id != first {
		t.Errorf("got %q", id)
	}
	// A tick without a change is none; one with a cause is.
	for range 2 {
		put(j, one.discover(2, pxe))
		<-changes
	}
	j.Tick(after(2.5))
	select {
	case id := <-changes:
		t.Errorf("got %q without a change", id)
	default:
	}
	j.Tick(after(3))
	if id := <-changes; id != first {
		t.Errorf("got %q", id)
	}
	put(j, one.lease(30, pxe, "x")[:2]...)
	<-changes
	put(j, two.discover(31, pxe))
	for _, want := range []string{first, second} {
		if id := <-changes; id != want {
			t.Errorf("got %q, want %q", id, want)
		}
	}
	// A slow reader is told that it missed some, once it reads, and then the next ones.
	for i := range watchRoom + 50 {
		put(j, actor{fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&255), ""}.discover(40, pxe))
	}
	for range watchRoom {
		if id := <-changes; id == "" {
			t.Fatal("told too early that something was missed")
		}
	}
	j.Tick(after(40))
	if id := <-changes; id != "" {
		t.Errorf("got %q, want to be told that some were missed", id)
	}
	put(j, two.discover(42, pxe))
	if id := <-changes; id != second {
		t.Errorf("got %q", id)
	}
	stop()
	stop()
	if _, open := <-changes; open {
		t.Error("still open")
	}
	put(j, two.discover(50, pxe))
}

func TestForgottenMachinesAreTold(t *testing.T) {
	j := New(Options{Limits: Limits{Machines: 1}})
	put(j, one.discover(0, pxe))
	changes, stop := j.Watch()
	defer stop()
	put(j, two.lease(1, pxe, "x")...)
	for id := range changes {
		if id == first {
			break
		}
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
	put(j, one.dhcp(0, boot.DHCPRequest, 3, func(e *draft) { e.Client = bytes16(one.address) }))
	if n := len(j.Machines()); n != 0 || j.Forgotten() != 0 {
		t.Errorf("%d machines are known, %d made room", n, j.Forgotten())
	}
}

// One goroutine records, others read and watch; what they got does not change under them.
func TestReadersWhileRecording(t *testing.T) {
	j := New(Options{
		Limits: Limits{Machines: 50}, Changed: func(c Change) { _ = len(c.Boot.Steps) },
		Hardware: func([6]byte) (Hardware, bool) { return Hardware{Known: true, Name: "default/x"}, true },
	})
	done := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			changes, stop := j.Watch()
			defer stop()
			for {
				select {
				case <-done:
					return
				case id := <-changes:
					if m, ok := j.Machine(id); ok {
						for _, b := range m.Boots {
							for _, s := range b.Steps {
								_ = fmt.Sprint(s.Text, len(s.Answers), b.Cause)
							}
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
	want := "[01 booted files 02 booting script 03 stuck dhcp 04 booting initramfs]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if got, want := fmt.Sprint(j.Counts()), "[{booted files 1} {booting script 1} {booting initramfs 1} {stuck dhcp 1}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
