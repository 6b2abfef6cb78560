package datagram

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A full table gives up what has ended, then what was silent for longer than clients are, then the longest silent one
// of the lowest rank that holds more than its reserve.
func TestFullTableGivesUpTheLongestSilent(t *testing.T) {
	now := time.Unix(1000, 0)
	type of struct {
		rank   rank
		silent time.Duration
	}
	const s, ms = time.Second, time.Millisecond
	for _, tt := range []struct {
		name     string
		sessions []of // each rank's in order, the longest silent first
		bound    int
		want     int // by index
		dead     bool
	}{
		{"ended first", []of{{rankNew, 80 * s}, {rankEnded, 0}}, 8, 1, true},
		{"longest silent newcomer", []of{{rankNew, 6 * s}, {rankNew, 5 * s}, {rankLong, 0}}, 8, 0, true},
		{"longest silent by what they have to lose", []of{{rankNew, 6 * s}, {rankLong, 61 * s}}, 8, 0, true},
		{"a long transfer that is dead", []of{{rankNew, 6 * s}, {rankLong, 80 * s}}, 8, 1, true},
		{"a confirmed one too", []of{{rankFirst, 12 * s}, {rankNew, 4 * s}}, 8, 0, true},
		{"the lowest rank", []of{{rankNew, 3 * ms}, {rankNew, 0}, {rankNew, 0}, {rankFirst, 4 * s}, {rankLong, 30 * s}}, 8, 0, false},
		{"a reserve of newcomers", []of{{rankNew, 3 * ms}, {rankFirst, 4 * s}, {rankFirst, 3 * s}}, 8, 1, false},
		{"the highest rank has none", []of{{rankNew, 3 * ms}, {rankSome, 4 * s}, {rankLong, 20 * s}}, 8, 2, false},
		{"within the reserve", []of{{rankNew, 3 * ms}, {rankFirst, 4 * s}}, 80, 0, false},
		{"nobody", nil, 8, -1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &group[int]{list: listClient}
			for i, o := range tt.sessions {
				g.add(&Session[int]{State: i, rank: o.rank, stepped: now.Add(-o.silent)})
			}
			got := -1
			victim, dead := g.victim(now, tt.bound)
			if victim != nil {
				got = victim.State
			}
			if got != tt.want || dead != tt.dead {
				t.Errorf("got session %d, dead %v, want %d, %v", got, dead, tt.want, tt.dead)
			}
		})
	}
}

// Where more clients ask again and again than there are places, long sessions that are alive give way one by one: each
// keeps its place for a minute on average.
func TestLongSessionsLive(t *testing.T) {
	for _, bound := range []int{1, 8, 4096} {
		g, now, gone := new(group[int]), time.Unix(1000, 0), 0
		for range 60_000 { // a minute of 1,000 requests a second
			now = now.Add(time.Millisecond)
			if g.takeLongEviction(now, bound) {
				gone++
			}
		}
		if gone < 1 || gone > bound {
			t.Errorf("of %d long sessions %d gave way in a minute", bound, gone)
		}
	}
}

func TestRanks(t *testing.T) {
	for steps, want := range map[uint64]rank{
		0: rankNew, 1: rankFirst, 7: rankFirst, 8: rankSome, 63: rankSome, 64: rankMany, 511: rankMany, 512: rankLong,
	} {
		if got := rankOf(steps); got != want {
			t.Errorf("%d steps: rank %d, want %d", steps, got, want)
		}
	}
}

// A client that asks again is known for one to two periods, a flood of 20,000 others a second or not.
func TestClientThatAsksAgainIsKnown(t *testing.T) {
	var away refusedClients
	now := time.Unix(1000, 0)
	asked := netip.MustParseAddr("192.0.2.2")
	client := func(i int) sessionKey {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return sessionKey{Peer{AddrPort: netip.AddrPortFrom(a, 2070)}, asked}
	}
	real := sessionKey{Peer{AddrPort: netip.MustParseAddrPort("192.0.2.7:2070")}, asked}
	if away.note(real, now) {
		t.Error("known at the first request")
	}
	taken := 0
	const flood = 20_000 * 4
	for i := range flood {
		if away.note(client(i), now.Add(time.Duration(i)*4*time.Second/flood)) {
			taken++
		}
	}
	if taken > flood/50 {
		t.Errorf("%d of %d first requests were taken for second ones", taken, flood)
	}
	other := real
	other.client.AddrPort = netip.AddrPortFrom(real.client.Addr(), 2071)
	var got []bool
	for _, each := range []struct {
		flow  sessionKey
		after time.Duration
	}{
		{real, 4 * time.Second}, {other, 4 * time.Second}, {real, filterPeriod + time.Second},
		{real, 2 * filterPeriod}, {other, 2*filterPeriod + time.Second}, {real, 9 * filterPeriod},
	} {
		got = append(got, away.note(each.flow, now.Add(each.after)))
	}
	if diff := cmp.Diff([]bool{true, false, true, true, false, false}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := testing.AllocsPerRun(100, func() { away.note(real, now.Add(9*filterPeriod)) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}
