package group

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// replica is one of several on a VLAN of a test.
type replica struct {
	*Group
	watch        *Watch
	able, owner  bool
	cutOff, dead bool // nothing reaches it; it sends nothing
}

// vlan is where replicas hear each other.
type vlan struct {
	start    time.Time
	replicas []*replica
}

func newVLAN(n int) *vlan {
	v := &vlan{start: time.Now()}
	for i := range n {
		g := New(uint64(i+1)*0x1234567, v.start)
		v.replicas = append(v.replicas, &replica{Group: g, watch: NewWatch(g, v.start), able: true})
	}
	return v
}

func (v *vlan) now() int64 { return int64(time.Since(v.start)) }

// greet has a replica send a hello.
func (v *vlan) greet(from *replica, leaving bool) {
	if from.dead {
		return
	}
	self := from.Update(from.able, from.owner, leaving, v.now())
	for _, to := range v.replicas {
		if to != from && !to.cutOff {
			to.Receive(Hello{State: self, Stamp: time.Now().UnixNano()}, v.now())
		}
	}
}

// pass has everybody send hellos for a time.
func (v *vlan) pass(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for _, r := range v.replicas {
			v.greet(r, false)
		}
		time.Sleep(min(HelloEvery, time.Until(end)))
	}
}

func (v *vlan) settle() {
	v.pass(2 * HelloEvery)
	for _, r := range v.replicas {
		r.Settled(true)
	}
}

// ask has every live replica hear a message, and returns those that relay it.
func (v *vlan) ask(a Ask) (relay []int) {
	for i, r := range v.replicas {
		if !r.dead && r.watch.Decide(&a, v.now()) != Others {
			relay = append(relay, i)
		}
	}
	return relay
}

// machine is a message of one of many machines.
func machine(i int) Ask {
	mac := []byte{2, 0, 0, 0, byte(i >> 8), byte(i)}
	return Ask{Identity: mac, Tag: uint64(i+1) * 0x9e3779b97f4a7c15, Kind: 1, XID: uint32(i), Begins: true}
}

// TestOneReplicaRelaysEachMachine: whoever is there, able and owner, exactly one of the replicas relays a machine.
func TestOneReplicaRelaysEachMachine(t *testing.T) {
	tests := map[string]struct {
		able, owner []bool
		only        int // the one that relays all of them; -1: they share
	}{
		"alone":                        {able: []bool{true}, owner: []bool{false}, only: 0},
		"the owner":                    {able: []bool{true, true}, owner: []bool{false, true}, only: 1},
		"no owner is known":            {able: []bool{true, true}, owner: []bool{false, false}, only: -1},
		"two say that they own it":     {able: []bool{true, true}, owner: []bool{true, true}, only: -1},
		"the owner is not able":        {able: []bool{true, false}, owner: []bool{false, true}, only: 0},
		"nobody is able":               {able: []bool{false, false}, owner: []bool{false, true}, only: -1},
		"one of three owns it":         {able: []bool{true, true, true}, owner: []bool{false, true, false}, only: 1},
		"three, no owner":              {able: []bool{true, true, true}, owner: []bool{false, false, false}, only: -1},
		"two pods on the owner's node": {able: []bool{true, true, true}, owner: []bool{true, true, false}, only: -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVLAN(len(test.able))
				for i, r := range v.replicas {
					r.able, r.owner = test.able[i], test.owner[i]
				}
				v.settle()
				counts := make([]int, len(v.replicas))
				for i := range 1000 {
					relay := v.ask(machine(i))
					if len(relay) != 1 {
						t.Fatalf("machine %d is relayed by %v, want one replica", i, relay)
					}
					counts[relay[0]]++
				}
				for i, n := range counts {
					switch {
					case test.only == i && n != 1000:
						t.Errorf("replica %d relays %d of 1,000 machines, want all", i, n)
					case test.only < 0 && n == 0 && test.able[i] == test.able[0] && test.owner[i] == test.owner[0]:
						t.Errorf("replica %d relays no machine: %v", i, counts)
					}
				}
			})
		})
	}
}

// TestOwnerGone: at the first repetition, which no firmware sends before a second has passed, the other replica relays.
func TestOwnerGone(t *testing.T) {
	for _, phase := range []time.Duration{0, 50 * time.Millisecond, 249 * time.Millisecond} {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVLAN(2)
				v.replicas[0].owner = true
				v.settle()
				time.Sleep(phase)
				v.replicas[0].dead = true // between two hellos
				if relay := v.ask(machine(1)); relay != nil {
					t.Fatalf("relayed by %v at once", relay)
				}
				v.pass(time.Second + time.Nanosecond)
				if diff := cmp.Diff([]int{1}, v.ask(machine(1))); diff != "" {
					t.Errorf("the repetition (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestOwnerLeaves: a replica that ends says so, and the other one relays from the next request on.
func TestOwnerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(2)
		v.replicas[0].owner = true
		v.settle()
		v.greet(v.replicas[0], true)
		if diff := cmp.Diff([]int{1}, v.ask(machine(1))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestOwnerMoves: whatever the replicas think meanwhile, as long as they hear each other one of them relays.
func TestOwnerMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(2)
		v.replicas[0].owner = true
		v.settle()
		for _, step := range []struct{ first, second bool }{{false, false}, {false, true}, {true, true}, {true, false}} {
			v.replicas[0].owner, v.replicas[1].owner = step.first, step.second
			v.pass(HelloEvery)
			for i := range 100 {
				if relay := v.ask(machine(i)); len(relay) != 1 {
					t.Fatalf("%+v: machine %d is relayed by %v", step, i, relay)
				}
			}
		}
	})
}

// TestNewReplicaWaits: a replica that has just begun does not relay what another one relays.
func TestNewReplicaWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(2)
		v.replicas[1].dead, v.replicas[1].owner = true, true
		v.settle()
		late := New(77, v.start)
		late.Update(true, true, false, v.now())
		v.replicas[1] = &replica{Group: late, watch: NewWatch(late, v.start), able: true, owner: true}
		if diff := cmp.Diff([]int{0}, v.ask(machine(1))); diff != "" {
			t.Errorf("before it has heard anybody (-want +got):\n%s", diff)
		}
		v.settle()
		if diff := cmp.Diff([]int{1}, v.ask(machine(1))); diff != "" {
			t.Errorf("when it has (-want +got):\n%s", diff)
		}
	})
}

// TestPatience: where the replica that should relay is there and yet a machine gets no answer, the next one relays its
// repetitions too, after a while, whether the machine tells secs, keeps its xid, or neither.
func TestPatience(t *testing.T) {
	tests := map[string]struct {
		gaps []time.Duration // between messages
		next func(a *Ask, n int)
		want []int // by how many replicas each message is relayed
	}{
		"repetitions, secs=0": {
			gaps: []time.Duration{0, 4 * time.Second, 8 * time.Second}, next: func(*Ask, int) {}, want: []int{1, 1, 2},
		},
		"another xid each time": {
			gaps: []time.Duration{0, 4 * time.Second, 8 * time.Second}, next: func(a *Ask, n int) { a.XID = uint32(n) },
			want: []int{1, 1, 2},
		},
		"secs says more": {
			gaps: []time.Duration{0, 2 * time.Second}, next: func(a *Ask, n int) { a.Waited = 10 * time.Second },
			want: []int{1, 2},
		},
		"a REQUEST shows that it was answered": {
			gaps: []time.Duration{0, time.Second, 8 * time.Second, time.Second},
			next: func(a *Ask, n int) { a.Kind, a.Begins = uint8(1+2*(n%2)), n%2 == 0 }, want: []int{1, 1, 1, 1},
		},
		"REQUESTs of two boots": {
			gaps: []time.Duration{0, 10 * time.Second}, want: []int{1, 1},
			next: func(a *Ask, n int) { a.Kind, a.Begins, a.XID = 3, false, uint32(n) },
		},
		"it comes back after a long time": {
			gaps: []time.Duration{0, 2 * time.Minute}, next: func(*Ask, int) {}, want: []int{1, 1},
		},
		"it cannot be told apart": {
			gaps: []time.Duration{0, 4 * time.Second, 8 * time.Second}, next: func(a *Ask, _ int) { a.Tag = 0 },
			want: []int{1, 1, 1},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVLAN(2)
				v.replicas[0].owner = true
				v.settle()
				var got []int
				for n, gap := range test.gaps {
					v.pass(gap)
					a := machine(1)
					test.next(&a, n)
					got = append(got, len(v.ask(a)))
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestInventedReplicasDoNotStopMachines: without a key anybody on the VLAN can be sixteen owners. A machine waits for
// longer, and no more.
func TestInventedReplicasDoNotStopMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(2)
		v.settle()
		invent := func() {
			for i := range 100 {
				for _, r := range v.replicas {
					r.Receive(Hello{State: State{ID: ^uint64(i), Able: true, Owner: true}, Stamp: time.Now().UnixNano()}, v.now())
				}
			}
		}
		invent()
		a := machine(1)
		v.ask(a)
		for range 52 {
			v.pass(HelloEvery)
			invent()
		}
		if relay := v.ask(a); len(relay) == 0 {
			t.Error("nobody relays the machine after 13 s")
		}
		if view := v.replicas[0].View(v.now()); view.Peers > maxPeers {
			t.Errorf("%d peers are remembered, want %d at most", view.Peers, maxPeers)
		}
	})
}

// TestRecordedHello: what a replica said once does not make it come back.
func TestRecordedHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() int64 { return int64(time.Since(start)) }
		g := New(1, start)
		recorded := Hello{State: State{ID: 2, Able: true, Owner: true}, Stamp: 10}
		if !g.Receive(recorded, now()) {
			t.Error("the first hello: not taken for a replica that has come")
		}
		for range 50 {
			time.Sleep(time.Second)
			if g.Receive(recorded, now()) || g.View(now()).Peers != 0 && now() > int64(Gone) {
				t.Fatalf("a recorded hello counts after %v", time.Duration(now()))
			}
		}
	})
}

// TestChangeMovesFewMachines: when a third replica comes, machines move to it only.
func TestChangeMovesFewMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(3)
		v.replicas[2].dead = true
		v.settle()
		before := map[int]int{}
		for i := range 1000 {
			before[i] = v.ask(machine(i))[0]
		}
		v.replicas[2].dead = false
		v.settle()
		moved := 0
		for i := range 1000 {
			switch now := v.ask(machine(i))[0]; now {
			case before[i]:
			case 2:
				moved++
			default:
				t.Errorf("machine %d moved from %d to %d", i, before[i], now)
			}
		}
		if moved < 200 || moved > 500 {
			t.Errorf("%d of 1,000 machines moved, want about a third", moved)
		}
	})
}

func TestView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVLAN(3)
		v.replicas[0].owner = true
		if diff := cmp.Diff(View{}, v.replicas[1].View(v.now())); diff != "" {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		v.settle()
		if diff := cmp.Diff(View{Peers: 2, Owners: 1, Share: 256}, v.replicas[0].View(v.now())); diff != "" {
			t.Errorf("the owner (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(View{Peers: 2, Owners: 1}, v.replicas[1].View(v.now())); diff != "" {
			t.Errorf("another (-want +got):\n%s", diff)
		}
	})
}

// TestDecideAllocatesNothing: it is on the way of each packet.
func TestDecideAllocatesNothing(t *testing.T) {
	start := time.Now()
	g := New(1, start)
	g.Settled(true)
	g.Receive(Hello{State: State{ID: 2, Able: true}, Stamp: 1}, 0)
	w, a, now := NewWatch(g, start), machine(1), int64(0)
	if n := testing.AllocsPerRun(1000, func() { now++; w.Decide(&a, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNoGroupRelaysEverything: a relay that is alone has no watch.
func TestNoGroupRelaysEverything(t *testing.T) {
	a := machine(1)
	if got := NewWatch(nil, time.Now()).Decide(&a, 0); got != Ours {
		t.Errorf("got %v", got)
	}
}

func BenchmarkDecide(b *testing.B) {
	start := time.Now()
	g := New(1, start)
	g.Settled(true)
	for i := range 2 {
		g.Receive(Hello{State: State{ID: uint64(i) + 2, Able: true}, Stamp: 1}, 0)
	}
	for _, owner := range []bool{true, false} {
		b.Run(fmt.Sprintf("owner=%v", owner), func(b *testing.B) {
			g.Update(true, owner, false, 0)
			w, a := NewWatch(g, start), machine(1)
			for b.Loop() {
				w.Decide(&a, 1)
			}
		})
	}
}
