package relay

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/admit"
)

// invented is a DISCOVER of machine number n.
func invented(n int) dhcp.Message {
	m := message(dhcp.OpRequest, byte(dhcp.Discover))
	binary.BigEndian.PutUint32(m[4:], uint32(n))
	binary.BigEndian.PutUint32(m[30:], uint32(n)*2654435761)
	return m
}

// crowd has so many new machines ask at one time that others are refused.
func (b *bench) crowd() {
	for n := range admit.NewcomerBurst {
		_, _ = b.hear(invented(n + 1<<20))
	}
}

// TestServedMachineIsNotHeldBack: DISCOVER to ACK before a flood, and everything during it passes at once. What is
// invented is refused, and takes no place among the requests that are remembered.
func TestServedMachineIsNotHeldBack(t *testing.T) {
	b := newBench(t, func(c *Config) { c.NewcomerRate = 1 })
	for _, kind := range []dhcp.Type{dhcp.Discover, dhcp.Request} {
		m, drop := b.hear(message(dhcp.OpRequest, byte(kind)))
		if drop != None {
			t.Fatal(drop)
		}
		reply := bytes.Clone(m)
		copy(reply[16:], yiaddr[:])
		reply[242] = byte(kind) + 1
		if kind == dhcp.Request {
			reply[242] = byte(dhcp.Ack)
		}
		if _, _, drop := b.answer(reply); drop != None {
			t.Fatal(drop)
		}
	}
	b.crowd()
	pending, got := b.pending.Len(), map[Drop]int{}
	for n := range 2000 {
		_, drop := b.hear(invented(n))
		got[drop]++
	}
	if got[NewcomerLimit] < 1990 || got[None]+got[NewcomerLimit] != 2000 {
		t.Errorf("invented machines: got %v", got)
	}
	if n := b.pending.Len() - pending; n != got[None] {
		t.Errorf("%d more requests are remembered, want %d", n, got[None])
	}
	for range 100 {
		if _, drop := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover))); drop != None {
			t.Fatalf("the served machine: got %v", drop)
		}
	}
}

// TestForgedChaddrDoesNotLockOut: somebody sends a thousand requests a second with a served machine's chaddr, each with
// a new xid. The machine is heard when it repeats its own, and the forger's part stays that of one client.
func TestForgedChaddrDoesNotLockOut(t *testing.T) {
	b := newBench(t, func(c *Config) { c.ClientRate = 10 })
	request := func(xid uint32) dhcp.Message {
		m := message(dhcp.OpRequest, byte(dhcp.Discover))
		binary.BigEndian.PutUint32(m[4:], xid)
		return m
	}
	at := int64(1)
	ask := func(m dhcp.Message) Drop {
		a := b.heard
		_, drop := b.worker.request4(m, &a, b.targets, at)
		return drop
	}
	a := b.heard
	if _, drop := b.worker.request4(request(1), &a, b.targets, at); drop != None {
		t.Fatal(drop)
	}
	ack := request(1)
	ack[19], ack[242] = 50, byte(dhcp.Ack)
	b.gate(0, netip.Addr{}).Answered(a.client, admit.Granted, true, at)
	forged := map[Drop]int{}
	const own = 0xfeedbeef
	for second := range 5 {
		for i := range 1000 {
			at += int64(time.Millisecond)
			forged[ask(request(uint32(1000*second+i+10)))]++
		}
		if drop := ask(request(own)); second > 0 && drop != None {
			t.Errorf("second %d: the machine repeats its request, and got %v", second, drop)
		}
	}
	if got := forged[None]; got < 60 || got > 20+51 {
		t.Errorf("%d forged requests passed in 5 s at 10 a second", got)
	}
}

// TestPodCannotHoldBackRouter: a pod that sends invented machines' requests to the relay crowds neither a VLAN nor the
// machines behind a trusted router.
func TestPodCannotHoldBackRouter(t *testing.T) {
	b := newBench(t, func(c *Config) { c.NewcomerRate = 1 })
	pod := arrival{listener: unicast, source: peer{ip: wide([4]byte{10, 244, 0, 66}), port: 68}}
	router := arrival{listener: unicast, source: peer{ip: wide(theirGiaddr), port: 67}}
	got := map[Drop]int{}
	for n := range 5000 {
		a := pod
		_, drop := b.worker.request4(invented(n), &a, b.targets, 1)
		got[drop]++
	}
	if got[NewcomerLimit] < 2000 {
		t.Errorf("the pod: got %v", got)
	}
	for name, a := range map[string]arrival{"router": router, "VLAN": b.heard} {
		m := invented(9999)
		if name == "router" {
			m = withGiaddr(m, theirGiaddr)
		}
		if _, drop := b.worker.request4(m, &a, b.targets, 1); drop != None {
			t.Errorf("%s: got %v", name, drop)
		}
	}
}

// TestInfiniBandClientsAreTwo: they show no hardware address and are known by their client identifiers, by which their
// replies find them too, though servers need not echo those (RFC 2131; RFC 6842 came later).
func TestInfiniBandClientsAreTwo(t *testing.T) {
	b := newBench(t, nil)
	seen := map[uint64]bool{0: true}
	for n := range 3 {
		m := message(dhcp.OpRequest, byte(dhcp.Discover))
		m[1], m[2] = dhcp.HTypeInfiniBand, 0
		clear(m[28:44])
		end := bytes.LastIndexByte(m, dhcp.OptionEnd)
		m = append(m[:end:end], dhcp.OptionClientID, 4, 0xff, 0, 0, byte(n), dhcp.OptionEnd)
		a := b.heard
		if _, drop := b.worker.request4(append(make(dhcp.Message, 0, mmsg.SlotLen), m...), &a, b.targets, b.now()); drop != None {
			t.Fatal(drop)
		}
		if seen[a.client] {
			t.Errorf("client %d is another", n)
		}
		seen[a.client] = true
	}
	m := message(dhcp.OpRequest, byte(dhcp.Discover))
	m[2] = 0
	if got := b.clientOf(new(keyOf(m)), m, 0, [16]byte{}); got != 0 {
		t.Errorf("a client that shows nothing is known as %x", got)
	}
}

// TestCrowdAllocatesNothing for a request that is refused, or sent.
func TestCrowdAllocatesNothing(t *testing.T) {
	b := newBench(t, func(c *Config) { c.NewcomerRate = 1000 })
	b.crowd()
	slot, n, now := make([]byte, mmsg.SlotLen), 0, b.now()
	drops := map[Drop]int{None: 0, NewcomerLimit: 0}
	got := testing.AllocsPerRun(20000, func() {
		n++
		now += 50_000 // 20,000 a second
		m := slot[:copy(slot, message0)]
		binary.BigEndian.PutUint32(m[4:], uint32(n))
		binary.BigEndian.PutUint32(m[30:], uint32(n)*2654435761)
		a := b.heard
		_, drop := b.worker.request4(m, &a, b.targets, now)
		drops[drop]++
	})
	if got != 0 {
		t.Errorf("got %v allocations", got)
	}
	if drops[None] < 500 || drops[NewcomerLimit] < 10000 {
		t.Errorf("got %v", drops)
	}
	if diff := cmp.Diff(2, len(drops)); diff != "" {
		t.Error(drops)
	}
}

var message0 = message(dhcp.OpRequest, byte(dhcp.Discover))

// BenchmarkCrowd is a request among 20,000 a second of invented machines.
func BenchmarkCrowd(tb *testing.B) {
	b := newBench(tb, nil)
	b.crowd()
	slot, n, now := make([]byte, mmsg.SlotLen), 0, b.now()
	tb.ReportAllocs()
	for tb.Loop() {
		n++
		now += 50_000
		m := slot[:copy(slot, message0)]
		binary.BigEndian.PutUint32(m[4:], uint32(n))
		binary.BigEndian.PutUint32(m[30:], uint32(n)*2654435761)
		a := b.heard
		_, _ = b.worker.request4(m, &a, b.targets, now)
	}
}

// TestPodCannotStarveMachine: neither by the machine's chaddr nor by so many requests that the total is spent; nor can
// a machine of another VLAN.
func TestPodCannotStarveMachine(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.ClientRate, c.TotalRate = 10, 100
		c.Listeners = append(c.Listeners, Listener{Name: "macvlan1"})
	})
	allow := func(n int, a arrival) admit.Refusal {
		k := key{xid: uint32(n), sender: [16]byte{2, byte(n >> 8), byte(n), 1}, id: 6}
		tag := b.clientOf(&k, nil, a.listener, a.source.ip)
		return b.limits.Allow(&admit.Asker{Tag: tag, Unicast: a.listener == unicast}, true, 1)
	}
	machine, neighbour := arrival{listener: 0}, arrival{listener: 1}
	pod := arrival{listener: unicast, source: peer{ip: wide([4]byte{10, 244, 0, 66}), port: 68}}
	for i := range 1000 {
		allow(1, pod)
		allow(i, pod)
	}
	for range 30 {
		allow(1, neighbour)
	}
	if got := allow(1, machine); got != admit.Admitted {
		t.Errorf("the machine on the VLAN: %v", got)
	}
	if got := allow(1, pod); got != admit.Client {
		t.Errorf("the pod: %v", got)
	}
	other := arrival{listener: unicast, source: peer{ip: wide([4]byte{10, 244, 0, 67}), port: 68}}
	if got := allow(1, other); got != admit.Total {
		t.Errorf("one more pod: %v", got)
	}
}
