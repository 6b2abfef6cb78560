package lb

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// stays fails the test where the address gets another owner, or none, within some questions of the watch.
func (c *cluster) stays(ip string, owner frame.MAC) {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if owners := c.wires.owners(netip.MustParseAddr(ip)); len(owners) != 1 || owners[0] != owner {
			c.t.Fatalf("owners of %s are %x, want %x alone", ip, owners, owner)
		}
	}
}

// A node that somebody gives the address by hand goes on answering for it when it withdraws its own: nobody else claims the
// address before that copy is gone.
func TestAddressThatSomebodyGivesTheHolder(t *testing.T) {
	c := pair(t)
	holder := c.nodes[0]
	holder.mu.Lock()
	holder.byHand = true
	holder.mu.Unlock()
	holder.c.linksChanged(nil)
	c.until("its lease is released", func() bool { return holder.log.has("released an address that this node still has") })
	c.stays(testIP, holder.mac)
	c.condition("web", "NodeAddress", "this node has "+testIP+" already")
	holder.mu.Lock()
	holder.byHand = false
	holder.mu.Unlock()
	c.wires.set(netip.MustParseAddr(testIP), holder.mac, false)
	c.owner(testIP, c.nodes[1].mac, holder.mac)
	if c.wires.two > 0 {
		t.Error("two owners")
	}
}

// Two clusters that claim one address in the same moment, as after a power cut, or when a host that both wait for lets go:
// one of them has it.
func TestTwoClustersClaimOneAddress(t *testing.T) {
	for range 3 {
		on := newWires()
		first, second := newClusterOn(t, on, 0, 1), newClusterOn(t, on, 1, 1)
		on.set(netip.MustParseAddr(testIP), stranger, true)
		first.service("web", testIP)
		second.service("web", testIP)
		for _, c := range []*cluster{first, second} {
			c.condition("web", "AddressInUse", "")
		}
		on.set(netip.MustParseAddr(testIP), stranger, false)
		first.owner(testIP, first.nodes[0].mac, second.nodes[0].mac)
		owner := on.owners(netip.MustParseAddr(testIP))[0]
		first.stays(testIP, owner)
		if on.two > 0 {
			t.Error("two owners")
		}
	}
}

// Two clusters whose networks are joined while each has the address: the higher station steps back and says so.
func TestHigherOfTwoOwnersStepsBack(t *testing.T) {
	on := newWires()
	first, second := newClusterOn(t, newWires(), 0, 1), newClusterOn(t, on, 1, 1)
	first.service("web", testIP)
	second.service("web", testIP)
	first.owner(testIP)
	second.owner(testIP)
	// A station that is as the first cluster's, and keeps the address.
	on.set(netip.MustParseAddr(testIP), first.nodes[0].mac, true)
	second.condition("web", "AddressInUse", "02:00:00:00:00:01 answers for "+testIP+" already")
	second.stays(testIP, first.nodes[0].mac)
	// And one that is as the second cluster's, and goes by the rule.
	first.wires.set(netip.MustParseAddr(testIP), second.nodes[0].mac, true)
	time.Sleep(6 * 100 * time.Millisecond)
	first.wires.set(netip.MustParseAddr(testIP), second.nodes[0].mac, false)
	if first.nodes[0].log.has("answers for " + testIP + " already") {
		t.Error("the lower of two stepped back")
	}
}

// A station with a higher Ethernet address that does not give the address up is no stack-lb: the holder gives it up after a
// while, rather than be one of two.
func TestHolderLeavesTheAddressToAStubbornStation(t *testing.T) {
	c := newCluster(t, 1)
	c.service("web", testIP)
	c.owner(testIP, c.nodes[0].mac)
	c.wires.set(netip.MustParseAddr(testIP), stranger, true)
	c.condition("web", "AddressInUse", "02:00:00:00:00:99 answers for "+testIP+" already")
	c.stays(testIP, stranger)
}

// Another station that announces the address is answered at once.
func TestHolderDefendsTheAddress(t *testing.T) {
	c := newCluster(t, 1)
	c.service("web", testIP)
	c.owner(testIP)
	ear, _ := (&station{wires: c.wires, mac: stranger}).Open(address.Link{}, netip.MustParseAddr(testIP))
	defer ear.Close()
	time.Sleep(burstLength) // until it announces by itself once a minute
	for heard := error(nil); heard == nil; {
		_, heard = ear.Hear(t.Context(), time.Now().Add(200*time.Millisecond))
	}
	c.wires.say(netip.MustParseAddr(testIP), probe.Heard{Kind: probe.Claim, MAC: stranger})
	h, err := ear.Hear(t.Context(), time.Now().Add(time.Second))
	if want := (probe.Heard{Kind: probe.Claim, MAC: c.nodes[0].mac}); h != want || err != nil {
		t.Errorf("heard %v, %v, want %v", h, err, want)
	}
}

// Where another station was about to claim the address since it was asked for last, a handover needs a probe. The owner's
// own announcements are those of no other, and what was said while it was asked for is not older than the question.
func TestHandoverBesideAnotherClaim(t *testing.T) {
	c := pair(t)
	v := c.nodes[1].c.vips[netip.MustParseAddr(testIP)]
	owner := c.nodes[0].mac
	from := hardware(owner)
	c.until("a handover without a probe", func() bool { return v.free(from) })
	v.heard(probe.Heard{Kind: probe.Claim, MAC: owner})
	if !v.free(from) {
		t.Error("probes since the owner has announced the address")
	}
	v.mu.Lock()
	v.ready = probed{v.link, time.Now().Add(-time.Millisecond)}
	link := v.link
	v.mu.Unlock()
	if v.isReady(link) {
		t.Error("an owner that announces the address is gone")
	}
	asked := time.Now()
	v.heard(probe.Heard{Kind: probe.Probing, MAC: stranger})
	v.saw(probe.Round{Asked: asked, Owners: []frame.MAC{owner}})
	if v.free(from) {
		t.Error("claimed without a probe beside a station that probes")
	}
}

// A node that has met a stranger is a candidate again once the stranger is gone, also while the holder answers.
func TestConflictEndsWithTheStranger(t *testing.T) {
	c := pair(t)
	v := c.nodes[1].c.vips[netip.MustParseAddr(testIP)]
	owner := c.nodes[0].mac
	v.mu.Lock()
	v.conflict = []frame.MAC{stranger}
	v.mu.Unlock()
	v.saw(probe.Round{Asked: time.Now(), Owners: []frame.MAC{owner, stranger}})
	if why := v.candidate(); why == nil {
		t.Error("a candidate beside a stranger")
	}
	v.saw(probe.Round{Asked: time.Now(), Owners: []frame.MAC{owner}})
	if why := v.candidate(); why != nil {
		t.Errorf("no candidate without a stranger: %v", why)
	}
}

// A holder that could not renew its lease in time has it again without a probe, since nobody else could; but not where it
// stood still for longer than the lease.
func TestHolderThatStoodStillProbesAgain(t *testing.T) {
	for name, test := range map[string]struct {
		left  time.Duration
		has   bool
		ready bool
	}{
		"the grant lasts":                 {time.Second, true, true},
		"it has ended":                    {-time.Millisecond, true, false},
		"the kernel has taken it already": {time.Second, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := &station{wires: newWires(), mac: frame.MAC{2, 0, 0, 0, 0, 1}}
			c := New(Options{Client: newAPI(), Node: "n0", Namespace: "stack", Times: quick, Host: host})
			defer c.shutDown()
			v := newVIP(c, &service.Address{IP: netip.MustParseAddr(testIP)})
			link, err := host.Find(v.ip, "")
			if err != nil {
				t.Fatal(err)
			}
			host.wires.set(v.ip, host.mac, test.has)
			v.link, v.holding, v.held, v.end = link, link, true, time.Now().Add(test.left)
			if _, err := v.withdraw(elect.ErrDeadline); err != nil {
				t.Fatal(err)
			}
			if got := v.isReady(link); got != test.ready {
				t.Errorf("ready without a probe: %v", got)
			}
		})
	}
}

func TestStationsOfOneNodeAreOneOwner(t *testing.T) {
	a, b, c, d := frame.MAC{2, 1}, frame.MAC{2, 2}, frame.MAC{2, 3}, frame.MAC{2, 4}
	names := func(macs ...frame.MAC) (text string) {
		for _, mac := range macs {
			text += hardware(mac) + ","
		}
		return text
	}
	for name, test := range map[string]struct {
		owners        []frame.MAC
		mine, holders string
		want          []frame.MAC
	}{
		"nobody":                    {},
		"two strangers":             {[]frame.MAC{a, b}, "", "", []frame.MAC{a, b}},
		"own cards":                 {[]frame.MAC{a, b}, names(a, b, c), "", nil},
		"own cards, lease here":     {[]frame.MAC{a, b}, names(a, b), names(a, b), nil},
		"the holder's cards":        {[]frame.MAC{a, b}, names(d), names(a, b), []frame.MAC{a}},
		"the holder and a stranger": {[]frame.MAC{a, b, c}, names(d), names(a, b), []frame.MAC{a, c}},
	} {
		if got := others(test.owners, test.mine, test.holders); !slices.Equal(got, test.want) {
			t.Errorf("%s: %x, want %x", name, got, test.want)
		}
	}
}
