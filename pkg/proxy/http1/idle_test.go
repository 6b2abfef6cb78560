package http1

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// upstreamFor is a connection with nothing but its key.
func upstreamFor(key Key) *upstream { return &upstream{idleSlot: idleSlot{key: key}} }

var (
	endpointA = netip.MustParseAddrPort("192.0.2.1:80")
	endpointB = netip.MustParseAddrPort("192.0.2.2:80")
	begin     = time.Now()
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestIdleKeys(t *testing.T) {
	one := PerClient(endpointA, addr("198.51.100.1"))
	for name, test := range map[string]struct {
		key  Key
		same bool // as one
		kept bool
	}{
		"same client":             {PerClient(endpointA, addr("198.51.100.1")), true, true},
		"mapped into IPv6":        {PerClient(endpointA, addr("::ffff:198.51.100.1")), true, true},
		"another client":          {PerClient(endpointA, addr("198.51.100.2")), false, true},
		"another endpoint":        {PerClient(endpointB, addr("198.51.100.1")), false, true},
		"unknown client":          {PerClient(endpointA, netip.Addr{}), false, false},
		"none":                    {Key{}, false, false},
		"same /64, two addresses": {PerClient(endpointA, addr("2001:db8::1")), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if same := test.key == one; same != test.same {
				t.Errorf("the same key: %v, want %v", same, test.same)
			}
			p := newIdleConns(IdleLimits{Total: 1, PerKey: 1, Age: time.Second})
			c := upstreamFor(test.key)
			surplus := p.put(c, begin)
			if kept := surplus == nil; kept != test.kept || !kept && surplus != c || (c.of != nil) != test.kept {
				t.Errorf("kept: %v, want %v", kept, test.kept)
			}
			if taken := p.take(one, begin) != nil; taken != (test.same && test.kept) {
				t.Errorf("taken for another key: %v", taken)
			}
		})
	}
	if PerClient(endpointA, addr("2001:db8::1")) == PerClient(endpointA, addr("2001:db8::2")) {
		t.Error("two addresses of a /64 have one key")
	}
	if PerClient(endpointA, addr("fe80::1%eth0")) != PerClient(endpointA, addr("fe80::1")) {
		t.Error("a zone makes another key")
	}
}

// The one used last is taken first, the one idle for longest goes first.
func TestIdleOrder(t *testing.T) {
	p := newIdleConns(IdleLimits{Total: 3, PerKey: 2, Age: time.Minute})
	a, b := PerClient(endpointA, addr("198.51.100.1")), PerClient(endpointA, addr("198.51.100.2"))
	var all []*upstream
	for i, key := range []Key{a, a, b, b} {
		c := upstreamFor(key)
		all = append(all, c)
		surplus := p.put(c, begin.Add(time.Duration(i)*time.Second))
		if want := i == 3; (surplus != nil) != want || want && surplus != all[0] {
			t.Errorf("connection %d put %p out", i, surplus)
		}
	}
	third := upstreamFor(b)
	if surplus := p.put(third, begin.Add(4*time.Second)); surplus != all[2] {
		t.Errorf("a client with as many as it may have: %p goes, want its own oldest", surplus)
	}
	if c := p.take(b, begin.Add(5*time.Second)); c != third {
		t.Errorf("took %p, want the one used last", c)
	}
	if c := p.expired(begin.Add(time.Minute)); c != nil {
		t.Errorf("%p is too old too early", c)
	}
	if c := p.take(a, begin.Add(time.Minute+time.Second)); c != nil {
		t.Errorf("took %p, which is too old", c)
	}
	if c := p.expired(begin.Add(time.Minute + time.Second)); c != all[1] {
		t.Errorf("%p is too old, want the oldest", c)
	}
	p.remove(all[1]) // is not there
	if got := p.removeAll(endpointA); len(got) != 1 || got[0] != all[3] || p.all.Len() != 0 {
		t.Errorf("an endpoint had %v, %d are left", got, p.all.Len())
	}
	p.put(all[0], begin)
	if got := p.close(); len(got) != 1 || len(p.byKey) != 0 {
		t.Errorf("closed with %v", got)
	}
	if surplus := p.put(all[0], begin); surplus != all[0] {
		t.Error("a closed pool keeps a connection")
	}
}

// FuzzIdleConns does what the bytes say to a pool and to a slice that is searched from end to end.
func FuzzIdleConns(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 16, 1, 32, 0, 48, 9, 64, 1, 0, 3, 80, 0})
	random := rand.New(rand.NewPCG(1, 2))
	for range 8 {
		seed := make([]byte, 512)
		for i := 0; i < len(seed); i += 4 {
			binary.LittleEndian.PutUint32(seed[i:], random.Uint32())
		}
		f.Add(seed)
	}
	keys := []Key{
		{}, PerClient(endpointA, addr("198.51.100.1")),
		PerClient(endpointA, addr("198.51.100.2")), PerClient(endpointB, addr("198.51.100.1")),
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		limits := IdleLimits{Total: 5, PerKey: 3, Age: 10 * time.Second}
		p, m := newIdleConns(limits), idleModel{limits: limits}
		var loose []*upstream
		now := begin
		for i := 0; i+1 < len(steps); i += 2 {
			key := keys[int(steps[i+1])%len(keys)]
			var got, want []*upstream
			switch steps[i] >> 4 % 6 {
			case 0, 1:
				c := upstreamFor(key)
				if n := len(loose); n > 0 && steps[i]&1 == 0 {
					c, loose = loose[n-1], loose[:n-1]
				}
				got, want = only(p.put(c, now)), m.put(c, now)
			case 2:
				got, want = only(p.take(key, now)), m.take(key, now)
				loose = append(loose, got...)
			case 3:
				now = now.Add(time.Duration(steps[i+1]%8) * time.Second)
			case 4:
				got, want = only(p.expired(now)), m.expired(now)
			case 5:
				if steps[i]&1 == 0 {
					got, want = p.removeAll(key.endpoint), m.removeAll(key.endpoint)
				} else if len(m.idle) > 0 {
					c := m.idle[int(steps[i+1])%len(m.idle)].conn
					p.remove(c)
					m.remove(c)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: got %v, want %v", i, got, want)
			}
			if p.all.Len() != len(m.idle) || len(p.byKey) != m.keys() || len(p.byKey)+len(p.spare) > limits.Total {
				t.Fatalf("step %d: %d connections of %d keys, want %d of %d", i, p.all.Len(), len(p.byKey), len(m.idle), m.keys())
			}
		}
		if got := p.close(); len(got) != len(m.idle) {
			t.Errorf("closed with %d connections, want %d", len(got), len(m.idle))
		}
	})
}

func only(c *upstream) []*upstream {
	if c == nil {
		return nil
	}
	return []*upstream{c}
}

// model is what a pool should do.
type idleModel struct {
	limits IdleLimits
	idle   []idleEntry // the one idle for longest comes first
}

type idleEntry struct {
	conn  *upstream
	since time.Time
}

func (m *idleModel) remove(c *upstream) {
	m.idle = slices.DeleteFunc(m.idle, func(e idleEntry) bool { return e.conn == c })
}

func (m *idleModel) keys() int {
	all := map[Key]bool{}
	for _, e := range m.idle {
		all[e.conn.key] = true
	}
	return len(all)
}

func (m *idleModel) put(c *upstream, now time.Time) (surplus []*upstream) {
	if c.key == (Key{}) {
		return []*upstream{c}
	}
	same := slices.DeleteFunc(slices.Clone(m.idle), func(e idleEntry) bool { return e.conn.key != c.key })
	if len(same) == m.limits.PerKey {
		surplus = []*upstream{same[0].conn}
	} else if len(m.idle) == m.limits.Total {
		surplus = []*upstream{m.idle[0].conn}
	}
	for _, s := range surplus {
		m.remove(s)
	}
	m.idle = append(m.idle, idleEntry{c, now})
	return surplus
}

func (m *idleModel) take(key Key, now time.Time) []*upstream {
	for _, e := range slices.Backward(m.idle) {
		if e.conn.key == key {
			if now.Sub(e.since) >= m.limits.Age {
				return nil
			}
			m.remove(e.conn)
			return []*upstream{e.conn}
		}
	}
	return nil
}

func (m *idleModel) expired(now time.Time) []*upstream {
	if len(m.idle) == 0 || now.Sub(m.idle[0].since) < m.limits.Age {
		return nil
	}
	c := m.idle[0].conn
	m.remove(c)
	return []*upstream{c}
}

func (m *idleModel) removeAll(endpoint netip.AddrPort) (all []*upstream) {
	for _, e := range m.idle {
		if e.conn.key.endpoint == endpoint {
			all = append(all, e.conn)
		}
	}
	for _, c := range all {
		m.remove(c)
	}
	return all
}

// To take and put a connection allocates nothing, with one client and with a thousand.
func TestIdleAllocations(t *testing.T) {
	for _, clients := range []int{1, 1000} {
		p := newIdleConns(IdleLimits{Total: 256, PerKey: 128, Age: time.Minute})
		conns := make([]*upstream, clients)
		for i := range conns {
			conns[i] = upstreamFor(client(i))
			p.put(conns[i], begin)
		}
		i := 0
		n := testing.AllocsPerRun(10*clients, func() {
			i = (i + 1) % clients
			if c := p.take(client(i), begin); c != nil {
				p.put(c, begin)
			} else {
				p.put(conns[i], begin)
			}
		})
		if n > 0 {
			t.Errorf("%v allocations with %d clients", n, clients)
		}
	}
}

func client(i int) Key {
	var a [16]byte
	binary.BigEndian.PutUint64(a[:], 0x20010db8<<32)
	binary.BigEndian.PutUint64(a[8:], uint64(i))
	return PerClient(endpointA, netip.AddrFrom16(a))
}

// Clients that come once, and ever others, do not make a pool grow.
func TestIdleMemoryIsBounded(t *testing.T) {
	p := newIdleConns(IdleLimits{Total: 256, PerKey: 128, Age: time.Minute})
	for i := range 100_000 {
		p.put(upstreamFor(client(i)), begin)
	}
	if p.all.Len() != 256 || len(p.byKey) != 256 || len(p.spare) > 1 {
		t.Errorf("%d connections of %d clients are kept, %d places are spare", p.all.Len(), len(p.byKey), len(p.spare))
	}
}

func BenchmarkIdleTakeAndPut(b *testing.B) {
	for _, clients := range []int{1, 200, 1000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			p := newIdleConns(IdleLimits{Total: 256, PerKey: 128, Age: time.Minute})
			keys, conns := make([]Key, clients), make([]*upstream, clients)
			for i := range conns {
				keys[i] = client(i)
				conns[i] = upstreamFor(keys[i])
				p.put(conns[i], begin)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % clients {
				if c := p.take(keys[i], begin); c != nil {
					p.put(c, begin)
				} else {
					p.put(conns[i], begin)
				}
			}
		})
	}
}
