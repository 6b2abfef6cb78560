package journal

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// forged is a DISCOVER of a MAC that is nobody's.
func forged(n uint64, at float64) *boot.Event {
	e := &boot.Event{Kind: boot.DHCPRequest, DHCP: 1, At: after(at).UnixNano(), MAC: [6]byte{0x02}, HasArch: true, Arch: 7}
	binary.BigEndian.PutUint32(e.MAC[2:], uint32(n))
	e.UUID[0], e.UUID[15] = byte(n), byte(n>>8)
	boot.SetText(e, boot.VendorClass, 64, "PXEClient:Arch:00007:UNDI:003000")
	return e
}

// A million random MACs take the places of each other, and of no machine that boots; the memory stays bounded.
func TestMillionForgedMACsPushOutNobody(t *testing.T) {
	n := uint64(1_000_000)
	if testing.Short() || racing {
		n = 50_000
	}
	j := New(Options{})
	for i, a := range []actor{one, two, three} { // answered, with an address, on their way
		put(j, a.lease(float64(i), pxe, "ipxe.efi")[:2+i]...)
	}
	late := actor{"52:54:00:5e:00:09", "192.0.2.109"}
	var most runtime.MemStats
	highest := uint64(0)
	for i := range n {
		j.Record(forged(i, 5+float64(i)*1e-5))
		if i == n/2 {
			put(j, late.toIPXE(5+float64(i)*1e-5)...)
		}
		if i%100_000 == 99_999 {
			runtime.GC()
			runtime.ReadMemStats(&most)
			highest = max(highest, most.HeapAlloc)
		}
	}
	check(t, j)
	for _, a := range []actor{one, two, three, late} {
		if _, ok := j.Machine(a.mac); !ok {
			t.Errorf("%s was pushed out", a.mac)
		}
	}
	if len(j.ids) != 10_000 {
		t.Errorf("got %d machines", len(j.ids))
	}
	if highest > 80<<20 {
		t.Errorf("%d MiB of heap", highest>>20)
	}
}

// Where all machines boot, another one that only asks finds no place, and one that is answered does.
func TestPlacesOfMachinesThatBoot(t *testing.T) {
	j := New(Options{Limits: Limits{Machines: 16}})
	actors := make([]actor, 40)
	for i := range actors {
		actors[i] = actor{fmt.Sprintf("52:54:00:5e:01:%02x", i), fmt.Sprintf("192.0.2.%d", i+1)}
	}
	for i, a := range actors[:16] {
		play(j, a.lease(float64(i), pxe, "ipxe.efi"), 0)
	}
	for i := range uint64(1000) {
		j.Record(forged(i, 20))
	}
	for _, a := range actors[:16] {
		if _, ok := j.Machine(a.mac); !ok {
			t.Errorf("%s was pushed out by a DISCOVER", a.mac)
		}
	}
	// The system of the oldest runs: others may have its place.
	play(j, film(actors[0].toAgent(21), actors[0].agent(60, 25, boot.Done)), 0)
	for i, a := range actors[1:16] {
		play(j, film(a.tftp(61+float64(i), 1, "ipxe.efi")), 0)
	}
	play(j, film(actors[20].lease(90, pxe, "ipxe.efi")), 0)
	if _, ok := j.Machine(actors[20].mac); !ok {
		t.Error("a machine that boots found no place though another has booted")
	}
	if _, ok := j.Machine(actors[0].mac); ok {
		t.Error("the machine that has booted is still there")
	}
	check(t, j)
}

// stuffed records, for a machine, all that a machine can have: every text as long as it gets, all of them different.
func stuffed(j *Journal, n int, at float64) {
	a := actor{fmt.Sprintf("52:54:00:%02x:%02x:%02x", n>>16, n>>8&255, n&255), netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).String()}
	long := func(s string, length int) string { return s + strings.Repeat("x", length-len(s)) }
	for b := range 6 {
		begin := at + float64(b)*1000
		put(j, a.toAgent(begin)...)
		for i := range 220 {
			file := long(fmt.Sprintf("/%d/%d/%d", n, b, i), maxFile)
			put(j, a.get(begin+40+float64(i)/10, 0.1, files, 8080, file, with(boot.Agent, "Go")))
		}
	}
	for i := range 60 {
		put(j, a.log(at+6000+float64(i)/10, "kernel", long(fmt.Sprintf("%d %d", n, i), maxText)))
	}
}

// heap is how much live memory there is.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// measured fills a journal and returns what it takes of memory, in bytes.
func measured(t testing.TB, fill func(*Journal)) (uint64, *Journal) {
	t.Helper()
	before := heap()
	j := New(Options{})
	fill(j)
	taken := heap() - before
	check(t, j)
	runtime.KeepAlive(j)
	return taken, j
}

// fills are ways to fill a journal to its bounds.
var fills = []struct {
	name string
	fill func(*Journal)
}{
	{"machines that only ask", func(j *Journal) {
		for i := range uint64(30_000) {
			j.Record(forged(i, float64(i)*1e-3))
		}
	}},
	{"machines with all that one can have", func(j *Journal) {
		for n := range 220 {
			stuffed(j, n, float64(n))
		}
	}},
	{"machines with usual boots", func(j *Journal) {
		for n := range 10_500 {
			a := actor{fmt.Sprintf("52:54:00:%02x:%02x:%02x", n>>16, n>>8&255, n&255), netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}).String()}
			put(j, film(a.toAgent(float64(n)/100), a.agent(float64(n)/100+60, 20, boot.Done))...)
			put(j, a.toAgent(float64(n)/100+1000)...)
		}
	}},
	{"addresses that send lines", func(j *Journal) {
		for n := range 6_000 {
			a := actor{"", netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}).String()}
			for i := range 60 {
				put(j, a.log(float64(i), "tag", strings.Repeat("y", maxText)))
			}
		}
	}},
}

// The journal stays below 64 MiB of real memory, whatever fills it.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() || racing {
		t.Skip("needs no -short and no -race: it is about memory")
	}
	for _, c := range fills {
		t.Run(c.name, func(t *testing.T) {
			taken, j := measured(t, c.fill)
			t.Logf("%.1f MiB for %d machines; estimated %.1f MiB", float64(taken)/(1<<20), len(j.ids), float64(j.bytes)/(1<<20))
			if taken > 64<<20 {
				t.Errorf("%d MiB", taken>>20)
			}
		})
	}
}

// Random events, among them many that fit together, break nothing and no bound.
func TestRandomEvents(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	j := New(Options{Limits: Limits{Machines: 20, Boots: 3, Messages: 30, Lines: 5, Bytes: 60_000}, Changed: func(Change) {}})
	n := 200_000
	if testing.Short() {
		n = 20_000
	}
	at := start
	for i := range n {
		at = at.Add(time.Duration(r.Int64N(int64(2 * time.Second))))
		e := random(r)
		e.At = at.UnixNano()
		j.Record(e)
		if i%7 == 0 {
			j.Tick(at)
		}
		if i%997 == 0 {
			check(t, j)
			j.Machines()
			for id := range j.ids {
				j.Machine(id)
			}
		}
	}
	check(t, j)
}

// random is an event of one of a few machines.
func random(r *rand.Rand) *boot.Event {
	e := &boot.Event{
		Kind: boot.Kind(1 + r.IntN(6)), Outcome: boot.Outcome(r.IntN(7)), DHCP: uint8(r.IntN(12)), V6: r.IntN(4) == 0,
		Took: time.Duration(r.Int64N(int64(time.Minute))), HasArch: r.IntN(2) == 0, Arch: uint16(r.IntN(45)),
		Status: []uint16{0, 0, 0, 200, 200, 206, 404, 403, 500, 502, 1, 2, 3, 7}[r.IntN(14)], Resent: uint32(r.IntN(3)),
		Bytes: uint64(r.IntN(3)) * 1000, Expected: uint64(r.IntN(3)) * 1000, AskedPort: []uint16{69, 7171, 42113, 50061}[r.IntN(4)],
		Lease: uint32(r.IntN(100)),
	}
	address := func() [16]byte {
		if r.IntN(3) == 0 {
			return [16]byte{}
		}
		return boot.Bytes4([4]byte{192, 0, 2, byte(r.IntN(60))})
	}
	if r.IntN(3) > 0 {
		e.MAC = [6]byte{2, 0, 0, 0, 0, byte(r.IntN(40))}
	}
	if r.IntN(3) == 0 {
		e.UUID = [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, byte(r.IntN(10))}
	}
	e.Client, e.Given, e.Requested, e.Server, e.Endpoint, e.Relay = address(), address(), address(), address(), address(), address()
	pick := func(f boot.Field, from ...string) { boot.SetText(e, f, 200, from[r.IntN(len(from))]) }
	pick(boot.VendorClass, "", "PXEClient:Arch:00007", "HTTPClient", "U-Boot", "udhcp")
	pick(boot.UserClass, "", "iPXE", "Tinkerbell")
	pick(boot.HostName, "", "node", "\x1b[2J")
	pick(boot.File, "", "ipxe.efi", "/02:00:00:00:00:07/auto.ipxe", "/vmlinuz", "/initramfs", "/x.iso", "/image.gz", "a.sha512",
		"/2009-04-04/meta-data", "/p.WorkflowService/ReportActionStatus", "netboot-not-allowed", "snp-arm64.efi", "pxelinux.cfg/default",
		strings.Repeat("long/", 50), "\xff\xfe")
	pick(boot.Agent, "", "iPXE/1", "UefiHttpBoot/1.0", "kernel")
	pick(boot.Message, "", "not found", "aborted")
	pick(boot.Method, "GET", "HEAD")
	pick(boot.Where, "tink", "smee")
	pick(boot.Reason, "", "client_error", "no-server", "other-host", "unsolicited", "reply-from-client", "client_gone")
	return e
}
