package relay

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/admit"
)

var solicit = message6(dhcp6.Solicit)

// invented is a SOLICIT of machine number n, in a slot, and its arrival.
func (b *bench6) invented(slot []byte, n uint32, mac, id bool) ([]byte, arrival) {
	a := b.heard
	m := slot[:headroom6+frame.HeaderLen6+copy(slot[headroom6+frame.HeaderLen6:], solicit)]
	body := m[headroom6+frame.HeaderLen6:]
	binary.BigEndian.PutUint32(body, n&0xffffff|uint32(dhcp6.Solicit)<<24)
	if mac {
		binary.BigEndian.PutUint32(a.mac[2:], n*2654435761)
	}
	if id {
		binary.BigEndian.PutUint32(body[14:], n*2246822519)
	}
	return m, a
}

// TestMillionDUIDsKeepMemoryBounded, and so do a million MAC addresses.
func TestMillionDUIDsKeepMemoryBounded(t *testing.T) {
	b := newBench6(t, func(c *Config) { c.ClientRate, c.TotalRate = 10, 50000 })
	slot := make([]byte, 1024)
	drops := map[Drop]int{}
	flood := func(from, to uint32) {
		for n := from; n < to; n++ {
			m, a := b.invented(slot, n, true, true)
			_, drop := b.worker.request6(m, headroom6+frame.HeaderLen6, &a, b.targets, int64(n)*50_000)
			drops[drop]++
		}
	}
	flood(0, 10_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	flood(10_000, 1_000_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("a million clients took %d bytes", grown)
	}
	if drops[NewcomerLimit] < 900_000 || drops[None] < 1024 {
		t.Errorf("got %v", drops)
	}
}

// TestLimitsPerMACAndDUID: neither one MAC address with a new DUID each time, nor one DUID from a new MAC address each
// time, gets more than one client.
func TestLimitsPerMACAndDUID(t *testing.T) {
	for name, test := range map[string]struct{ mac, id bool }{"one MAC address": {id: true}, "one DUID": {mac: true}} {
		b := newBench6(t, func(c *Config) { c.ClientRate = 10 })
		slot := make([]byte, 1024)
		drops := map[Drop]int{}
		for n := range uint32(1000) {
			m, a := b.invented(slot, n, test.mac, test.id)
			_, drop := b.worker.request6(m, headroom6+frame.HeaderLen6, &a, b.targets, 1)
			drops[drop]++
		}
		if drops[None] != 20 || drops[ClientLimit] != 980 {
			t.Errorf("%s: got %v", name, drops)
		}
	}
}

// TestServedMachineIsNotHeldBack6 by a flood of invented ones: it was given an address. A REPLY that gives none
// is not enough.
func TestServedMachineIsNotHeldBack6(t *testing.T) {
	address := append([]byte{0, 3, 0, 40}, make([]byte, 12)...)
	address = append(append(address, 0, 5, 0, 24), make([]byte, 20)...)
	address = append(address, 0, 0, 1, 0)
	for name, test := range map[string]struct {
		answer  dhcp6.Type
		options []byte
		served  bool
	}{
		"an address": {dhcp6.Reply, address, true},
		"no address": {dhcp6.Reply, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, func(c *Config) { c.NewcomerRate = 1 })
			request, drop := b.fromClient(message6(dhcp6.Request))
			if drop != None {
				t.Fatal(drop)
			}
			if _, drop := reply6(b.worker, answered(request, test.answer, test.options...), serverIP, b.targets, b.now()); drop != None {
				t.Fatal(drop)
			}
			slot := make([]byte, 1024)
			refused := 0
			for n := range uint32(6000) {
				m, a := b.invented(slot, n, true, true)
				if _, drop := b.worker.request6(m, headroom6+frame.HeaderLen6, &a, b.targets, b.now()); drop == NewcomerLimit {
					refused++
				}
			}
			if refused < 2000 {
				t.Errorf("%d of the flood were refused", refused)
			}
			a := b.heard
			_, drop = b.hear(message6(dhcp6.Renew), &a)
			if (drop == None) != test.served {
				t.Errorf("got %v", drop)
			}
		})
	}
}

// TestForgedDUIDDoesNotLockOut: somebody sends a thousand messages a second with a served machine's DUID, from a new
// MAC address each. The machine is heard when it repeats its own.
func TestForgedDUIDDoesNotLockOut(t *testing.T) {
	b := newBench6(t, func(c *Config) { c.ClientRate = 10 })
	tag, _ := b.tagsOf(&b.heard, clientMAC, 0)
	b.gate(0, netip.Addr{}).Answered(tag, admit.Granted, true, 1)
	slot, at, forged := make([]byte, 1024), int64(1), map[Drop]int{}
	ask := func(n uint32, mac bool) Drop {
		m, a := b.invented(slot, n, mac, false)
		_, drop := b.worker.request6(m, headroom6+frame.HeaderLen6, &a, b.targets, at)
		return drop
	}
	const own = 0xfeed
	for second := range uint32(5) {
		for i := range uint32(1000) {
			at += int64(time.Millisecond)
			forged[ask(1000*second+i+10, true)]++
		}
		if drop := ask(own, false); second > 0 && drop != None {
			t.Errorf("second %d: the machine repeats its message, and got %v", second, drop)
		}
	}
	if got := forged[None]; got < 50 || got > 20+51 {
		t.Errorf("%d forged messages passed in 5 s at 10 a second", got)
	}
}

// TestTokenMakesServed: a machine whose request another replica has relayed is served for this one as well.
func TestTokenMakesServed(t *testing.T) {
	key := func(c *Config) { c.TokenKey = []byte("0123456789abcdef") }
	request, _ := newBench6(t, key).fromClient(message6(dhcp6.Request))
	address := append([]byte{0, 3, 0, 40}, make([]byte, 12)...)
	address = append(append(append(address, 0, 5, 0, 24), make([]byte, 20)...), 0, 0, 1, 0)
	b := newBench6(t, key)
	if _, drop := reply6(b.worker, answered(request, dhcp6.Reply, address...), serverIP, b.targets, b.now()); drop != None {
		t.Fatal(drop)
	}
	a := b.heard
	for tag := range uint64(2 * admit.NewcomerBurst) { // a crowd takes what there is for machines that were never served
		b.gate(a.listener, netip.Addr{}).Ask(&admit.Asker{Tag: tag + 1}, b.now())
	}
	if _, drop := b.hear(message6(dhcp6.Renew), &a); drop != None {
		t.Errorf("got %v: the machine is not known", drop)
	}
}

// BenchmarkCrowd6 is a message among 20,000 a second of invented machines.
func BenchmarkCrowd6(tb *testing.B) {
	b := newBench6(tb, func(c *Config) { c.ClientRate, c.TotalRate = 10, 50000 })
	slot, n := make([]byte, 1024), uint32(0)
	tb.ReportAllocs()
	for tb.Loop() {
		n++
		m, a := b.invented(slot, n, true, true)
		_, _ = b.worker.request6(m, headroom6+frame.HeaderLen6, &a, b.targets, int64(n)*50_000)
	}
}
