package idle

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// conn is a connection with nothing but its slot.
type conn struct {
	Slot[*conn]
	name int
}

func connFor(key Key) *conn { return &conn{Slot: NewSlot[*conn](key)} }

var (
	endpointA = netip.MustParseAddrPort("192.0.2.1:80")
	endpointB = netip.MustParseAddrPort("192.0.2.2:80")
	begin     = time.Now()
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestKeys(t *testing.T) {
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
			p := New[*conn](Limits{Total: 1, PerKey: 1, Age: time.Second})
			c := connFor(test.key)
			surplus, closed := p.Put(c, begin)
			if kept := !closed; kept != test.kept || closed && surplus != c || (c.group != 0) != test.kept {
				t.Errorf("kept: %v, want %v", kept, test.kept)
			}
			if _, ok := p.Take(one, begin); ok != (test.same && test.kept) {
				t.Errorf("taken for another key: %v", ok)
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
func TestOrder(t *testing.T) {
	p := New[*conn](Limits{Total: 3, PerKey: 2, Age: time.Minute})
	a, b := PerClient(endpointA, addr("198.51.100.1")), PerClient(endpointA, addr("198.51.100.2"))
	var all []*conn
	for i, key := range []Key{a, a, b, b} {
		c := connFor(key)
		all = append(all, c)
		surplus, ok := p.Put(c, begin.Add(time.Duration(i)*time.Second))
		if want := i == 3; ok != want || ok && surplus != all[0] {
			t.Errorf("connection %d put %v out (%v)", i, surplus, ok)
		}
	}
	third := connFor(b)
	if surplus, ok := p.Put(third, begin.Add(4*time.Second)); !ok || surplus != all[2] {
		t.Errorf("a client with as many as it may have: %v goes (%v), want its own oldest", surplus, ok)
	}
	if c, ok := p.Take(b, begin.Add(5*time.Second)); !ok || c != third {
		t.Errorf("took %v (%v), want the one used last", c, ok)
	}
	if c, ok := p.Expired(begin.Add(time.Minute)); ok {
		t.Errorf("%v is too old too early", c)
	}
	if c, ok := p.Take(a, begin.Add(time.Minute+time.Second)); ok {
		t.Errorf("took %v, which is too old", c)
	}
	if c, ok := p.Expired(begin.Add(time.Minute + time.Second)); !ok || c != all[1] {
		t.Errorf("%v is too old (%v), want the oldest", c, ok)
	}
	if p.Remove(all[1]) {
		t.Error("removed what is not there")
	}
	if got := p.RemoveAll(endpointA); len(got) != 1 || got[0] != all[3] || p.Len() != 0 {
		t.Errorf("an endpoint had %v, %d are left", got, p.Len())
	}
	p.Put(all[0], begin)
	if got := p.Close(); len(got) != 1 || p.used() != 0 {
		t.Errorf("closed with %v", got)
	}
	if surplus, ok := p.Put(all[0], begin); !ok || surplus != all[0] {
		t.Error("a closed pool keeps a connection")
	}
}

// FuzzPool does what the bytes say to a pool and to a slice that is searched from end to end.
func FuzzPool(f *testing.F) {
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
		limits := Limits{Total: 5, PerKey: 3, Age: 10 * time.Second}
		p, m := New[*conn](limits), model{limits: limits}
		var loose []*conn
		now := begin
		for i := 0; i+1 < len(steps); i += 2 {
			key := keys[int(steps[i+1])%len(keys)]
			var got, want []*conn
			switch steps[i] >> 4 % 6 {
			case 0, 1:
				c := connFor(key)
				c.name = i
				if n := len(loose); n > 0 && steps[i]&1 == 0 {
					c, loose = loose[n-1], loose[:n-1]
				}
				got, want = only(p.Put(c, now)), m.put(c, now)
			case 2:
				got, want = only(p.Take(key, now)), m.take(key, now)
				loose = append(loose, got...)
			case 3:
				now = now.Add(time.Duration(steps[i+1]%8) * time.Second)
			case 4:
				got, want = only(p.Expired(now)), m.expired(now)
			case 5:
				if steps[i]&1 == 0 {
					got, want = p.RemoveAll(key.Endpoint()), m.removeAll(key.Endpoint())
				} else if len(m.idle) > 0 {
					c := m.idle[int(steps[i+1])%len(m.idle)].conn
					if !p.Remove(c) {
						t.Fatal("a connection is not there")
					}
					m.remove(c)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: got %v, want %v", i, got, want)
			}
			if p.Len() != len(m.idle) || p.used() != m.keys() || len(p.groups) > limits.Total+1 {
				t.Fatalf("step %d: %d connections of %d keys, want %d of %d", i, p.Len(), p.used(), len(m.idle), m.keys())
			}
		}
		if got := p.Close(); len(got) != len(m.idle) {
			t.Errorf("closed with %d connections, want %d", len(got), len(m.idle))
		}
	})
}

// used is how many groups of a pool have connections, as found by its buckets.
func (p *Pool[C]) used() (n int) {
	for _, at := range p.buckets {
		for ; at != 0; at = p.groups[at].next {
			n++
		}
	}
	return n
}

func only(c *conn, ok bool) []*conn {
	if !ok {
		return nil
	}
	return []*conn{c}
}

// model is what a pool should do.
type model struct {
	limits Limits
	idle   []entry // the one idle for longest comes first
}

type entry struct {
	conn  *conn
	since time.Time
}

func (m *model) remove(c *conn) {
	m.idle = slices.DeleteFunc(m.idle, func(e entry) bool { return e.conn == c })
}

func (m *model) keys() int {
	all := map[Key]bool{}
	for _, e := range m.idle {
		all[e.conn.Key()] = true
	}
	return len(all)
}

func (m *model) put(c *conn, now time.Time) (surplus []*conn) {
	if c.Key() == (Key{}) {
		return []*conn{c}
	}
	same := slices.DeleteFunc(slices.Clone(m.idle), func(e entry) bool { return e.conn.Key() != c.Key() })
	if len(same) == m.limits.PerKey {
		surplus = []*conn{same[0].conn}
	} else if len(m.idle) == m.limits.Total {
		surplus = []*conn{m.idle[0].conn}
	}
	for _, s := range surplus {
		m.remove(s)
	}
	m.idle = append(m.idle, entry{c, now})
	return surplus
}

func (m *model) take(key Key, now time.Time) []*conn {
	for _, e := range slices.Backward(m.idle) {
		if e.conn.Key() == key {
			if now.Sub(e.since) >= m.limits.Age {
				return nil
			}
			m.remove(e.conn)
			return []*conn{e.conn}
		}
	}
	return nil
}

func (m *model) expired(now time.Time) []*conn {
	if len(m.idle) == 0 || now.Sub(m.idle[0].since) < m.limits.Age {
		return nil
	}
	c := m.idle[0].conn
	m.remove(c)
	return []*conn{c}
}

func (m *model) removeAll(endpoint netip.AddrPort) (all []*conn) {
	for _, e := range m.idle {
		if e.conn.Key().Endpoint() == endpoint {
			all = append(all, e.conn)
		}
	}
	for _, c := range all {
		m.remove(c)
	}
	return all
}

// To take and put a connection allocates nothing, with one client and with a thousand.
func TestAllocations(t *testing.T) {
	for _, clients := range []int{1, 1000} {
		p := New[*conn](Limits{Total: 256, PerKey: 128, Age: time.Minute})
		conns := make([]*conn, clients)
		for i := range conns {
			conns[i] = connFor(client(i))
			p.Put(conns[i], begin)
		}
		i := 0
		n := testing.AllocsPerRun(10*clients, func() {
			i = (i + 1) % clients
			if c, ok := p.Take(client(i), begin); ok {
				p.Put(c, begin)
			} else {
				p.Put(conns[i], begin)
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
func TestMemoryIsBounded(t *testing.T) {
	p := New[*conn](Limits{Total: 256, PerKey: 128, Age: time.Minute})
	for i := range 100_000 {
		p.Put(connFor(client(i)), begin)
	}
	if p.Len() != 256 || p.used() != 256 || len(p.groups) != 257 {
		t.Errorf("%d connections of %d clients are kept in %d places", p.Len(), p.used(), len(p.groups))
	}
}

func BenchmarkTakeAndPut(b *testing.B) {
	for _, clients := range []int{1, 200, 1000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			p := New[*conn](Limits{Total: 256, PerKey: 128, Age: time.Minute})
			keys, conns := make([]Key, clients), make([]*conn, clients)
			for i := range conns {
				keys[i] = client(i)
				conns[i] = connFor(keys[i])
				p.Put(conns[i], begin)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i = (i + 1) % clients {
				if c, ok := p.Take(keys[i], begin); ok {
					p.Put(c, begin)
				} else {
					p.Put(conns[i], begin)
				}
			}
		})
	}
}
