package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/frame"
)

// way is how the doctor talks to servers: from the offered address as a station of its own, or from this host's.
type way interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	ListenPacket() (net.PacketConn, error)
}

// pause is how long an owner of an address has for an answer.
const pause = 700 * time.Millisecond

// chain is what all questions behind DHCP share.
type chain struct {
	*run
	*order
	way  way
	addr netip.Addr // that we talk from
	next netip.Addr // the server of the loader
	hop  frame.MAC  // the station that carries packets to it
	path pathMTU
	mute map[string]mute // servers that are not there, by host and port; guarded by run's mu
	// returned are servers that packets do not reach, as somebody on the way says, by their ports or, with port 0, as a
	// whole; guarded by run's mu.
	returned map[netip.AddrPort]returned

	router frame.MAC // the zero address: none that is there is offered
	// reroute has a host be reached by way of the router, whatever the mask says; nil: there is no router.
	reroute func(host netip.Addr)
}

// returned is who says that packets do not arrive, and why.
type returned struct {
	by  netip.Addr
	why link.Reason
}

// mute is why a server is not asked again.
type mute struct {
	why      string
	required bool // what was asked for had to be there, so that an error was found
}

// pathMTU is what is known of the size of packets.
type pathMTU struct {
	passes int // a packet of that size came back; 0: none did
	hole   int // packets above it are lost in silence; 0: none are
	told   int // as a router says
}

// follow asks what the OFFER leads to.
func (r *run) follow(ctx context.Context, way *order) {
	c := &chain{run: r, order: way, mute: map[string]mute{}, returned: map[netip.AddrPort]returned{}}
	switch {
	case way.boot != nil && way.boot.Next.IsValid():
		c.next = way.boot.Next
	case way.script != nil && way.script.Next.IsValid():
		c.next = way.script.Next
	}
	if !c.owners(ctx) {
		return
	}
	c.addr = way.addr.Addr.Addr()
	// Before the station hears of it, and gives up.
	defer r.link.Returned(c.addr, func(peer netip.AddrPort, by netip.Addr, why link.Reason) {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.returned[peer] = returned{by, why}
	})()
	station, err := r.link.Station(way.addr.Addr, c.gateway())
	if err != nil {
		r.find("no-rights", "%v", err)
		return
	}
	defer station.Close()
	if direct := way.addr.Addr.Masked().Contains(c.next); direct && c.hop != (frame.MAC{}) {
		station.Neighbour(c.next, c.hop)
	}
	if c.router != (frame.MAC{}) {
		c.reroute = func(host netip.Addr) { station.Neighbour(host, c.router) }
	}
	c.way = station
	c.measure(ctx)
	var all sync.WaitGroup
	all.Go(func() { c.loader(ctx) })
	all.Go(func() { c.scripts(ctx) })
	all.Go(func() { c.logs(ctx) })
	all.Wait()
}

// whyReturned says why packets do not reach a server, where somebody on the way does; empty: nobody says anything.
func (c *chain) whyReturned(server netip.AddrPort) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said, ok := c.returned[netip.AddrPortFrom(server.Addr(), 0)]
	if !ok {
		if said, ok = c.returned[server]; !ok {
			return ""
		}
	}
	behind := ""
	if router := c.gateway(); router.IsValid() && router != said.by && !c.near(said.by) {
		behind = fmt.Sprintf(" behind the router %s", router)
	}
	return fmt.Sprintf("%s%s answers packets for %s with %s", said.by, behind, server.Addr(), map[link.Reason]string{
		link.Looped:      "time exceeded: they go in a circle between routers",
		link.Unreachable: "unreachable: it has no route there, or nobody there has the address",
		link.Prohibited:  "administratively prohibited: a firewall or an access list forbids them",
		link.Rejected: fmt.Sprintf("port unreachable for TCP port %d: a firewall rejects them, since a host resets what "+
			"comes to a closed port", server.Port()),
	}[said.why])
}

// gateway is the router, where one of the machine's network is offered.
func (c *chain) gateway() netip.Addr {
	if router := c.order.addr.Router(); router.IsValid() && c.near(router) {
		return router
	}
	return netip.Addr{}
}

// near tells whether an address is reached without a router.
func (c *chain) near(a netip.Addr) bool {
	return c.order.addr.Addr.Masked().Contains(a)
}

// owners asks who has the addresses that matter. It reports whether the doctor may talk from the offered address.
func (c *chain) owners(ctx context.Context) bool {
	offered, network := c.order.addr.Addr.Addr(), c.order.addr.Addr.Masked()
	controls := unused(network, offered, c.next, c.gateway())
	ask := append([]netip.Addr{offered}, controls...)
	direct := c.next.IsValid() && network.Contains(c.next)
	carrier := c.next
	if !direct {
		carrier = c.order.addr.Router()
	}
	for _, a := range []netip.Addr{carrier, c.order.addr.Router()} {
		if a.IsValid() && c.near(a) && !slices.Contains(ask, a) {
			ask = append(ask, a)
		}
	}
	c.Progress("asking who has " + list(ask))
	began := time.Now()
	owners := c.link.Owners(ctx, ask, pause)
	if late := slices.DeleteFunc(slices.Clone(ask), func(a netip.Addr) bool {
		return len(owners[a]) > 0 || a == offered || slices.Contains(controls, a)
	}); len(late) > 0 { // before the word "nobody"
		for a, o := range c.link.Owners(ctx, late, 2*pause) {
			owners[a] = o
		}
	}
	for _, a := range ask {
		said := "nobody"
		if len(owners[a]) > 0 {
			said = list(macs(owners[a]))
		}
		c.step(began, "owner", a.String(), said)
	}
	proxy := shared(controls, owners)
	if proxy != (frame.MAC{}) {
		c.find("proxy-arp", "%s answers for %s, which nobody should have: it answers for every address, and owners "+
			"cannot be told", proxy, list(controls))
	}
	c.judgeOwners(owners, carrier, direct, proxy)
	if all := owners[c.gateway()]; len(all) > 0 {
		c.router = all[0].MAC
	}
	for _, o := range owners[carrier] { // of several, the one that offered
		if c.hop == (frame.MAC{}) || o.MAC == c.order.addr.From {
			c.hop = o.MAC
		}
	}
	return c.free(owners[offered], offered, proxy)
}

// judgeOwners says who does not have the address that the machine needs, or has it too.
func (c *chain) judgeOwners(owners map[netip.Addr][]link.Owner, carrier netip.Addr, direct bool, proxy frame.MAC) {
	network := c.order.addr.Addr.Masked()
	switch router := c.order.addr.Router(); {
	case !c.next.IsValid() || direct:
	case !router.IsValid():
		likely := ""
		if relay := c.order.addr.Relay; relay.IsValid() && c.near(relay) {
			likely = fmt.Sprintf("; most likely it is the relay, %s", relay)
		}
		if route, ok := c.static(); ok {
			likely = fmt.Sprintf(", but the way there as option 121 alone (%s by %s), which UEFI, most other firmware and "+
				"iPXE before 2.0 do not read: give option 3 as well", route.To, route.By)
		}
		c.find("router", "%s is not in %s, and the DHCP server %s offers no router (option 3)%s. What is behind it was "+
			"not looked at", c.next, network, c.order.addr.Server, likely)
	case !c.near(router):
		c.find("router", "the router %s is not in %s, the network of the offered address", router, network)
	case len(owners[router]) == 0:
		c.find("router", "nobody has the address of the router %s, which leads to %s", router, c.next)
	}
	c.judgeStatic()
	for a, all := range owners {
		// The owner of an address answers every question; for an address that moved just now first one station answers,
		// then the other.
		steady := slices.DeleteFunc(slices.Clone(all), func(o link.Owner) bool { return o.Answers < 2 || o.MAC == proxy })
		if a != c.order.addr.Addr.Addr() && len(steady) > 1 {
			c.find("two-owners", "%s answers for itself from %s: two machines have the address, or one host has two "+
				"ports here "+
				"that both answer", a, list(macs(steady)))
		}
	}
	if direct && len(owners[carrier]) == 0 {
		c.find("address-without-owner", "%s, from which the machine is to load %q, is nobody's on %s: no answer to ARP",
			c.next, c.bootFile(), c.Interface)
	}
}

// static is the route to the next server that the DHCP server offers as option 121, to firmware unasked or to iPXE,
// which asks for it.
func (c *chain) static() (offer.Route, bool) {
	route, ok := c.order.addr.StaticTo(c.next)
	if script := c.order.script; !ok && script != nil && script.Server == c.order.addr.Server {
		return script.StaticTo(c.next)
	}
	return route, ok
}

// judgeStatic says that iPXE has no way to the script: it ignores option 3 where option 121 is offered (RFC 3442).
func (c *chain) judgeStatic() {
	o := c.order.script
	if o == nil || len(o.Static) == 0 || !o.Router().IsValid() || !o.Next.IsValid() || c.near(o.Next) ||
		slices.ContainsFunc(o.Static, func(r offer.Route) bool { return r.To.Contains(o.Next) }) {
		return
	}
	c.find("router-ignored", "%s is not in %s, and of the routes that %s offers as option 121 none leads there: "+
		"iPXE 2.0 ignores option 3 (%s) for them", o.Next, c.order.addr.Addr.Masked(), o.Server, o.Router())
}

func (c *chain) bootFile() string {
	if c.boot == nil {
		return ""
	}
	return c.boot.File
}

// free tells whether nobody has the offered address, so that the doctor may talk from it.
func (c *chain) free(owners []link.Owner, offered netip.Addr, proxy frame.MAC) bool {
	owners = slices.DeleteFunc(slices.Clone(owners), func(o link.Owner) bool { return o.MAC == proxy })
	machine := frame.MAC(c.MAC)
	switch {
	case c.air.heard().machine && machine != c.link.MAC,
		slices.ContainsFunc(owners, func(o link.Owner) bool { return o.MAC == machine }):
		c.find("machine-is-up", "%s is up: the doctor does not talk from its address %s, and did not look behind DHCP",
			c.MAC,
			offered)
		return false
	case len(owners) > 0:
		c.find("address-conflict", "%s is offered to %s, and %s has it", offered, c.MAC, list(macs(owners)))
		return false
	case proxy != frame.MAC{}:
		return false
	}
	return true
}

func macs(owners []link.Owner) (all []frame.MAC) {
	for _, o := range owners {
		all = append(all, o.MAC)
	}
	return all
}

// shared is a station that answers for all of the addresses, of which there are several.
func shared(addrs []netip.Addr, owners map[netip.Addr][]link.Owner) frame.MAC {
	if len(addrs) < 2 {
		return frame.MAC{}
	}
	for _, o := range owners[addrs[0]] {
		if !slices.ContainsFunc(addrs[1:], func(a netip.Addr) bool {
			return !slices.Contains(macs(owners[a]), o.MAC)
		}) {
			return o.MAC
		}
	}
	return frame.MAC{}
}

// unused are addresses of a network that nobody should have, though one may be somebody's; none in a small
// network.
func unused(network netip.Prefix, known ...netip.Addr) (all []netip.Addr) {
	const smallest, wanted = 27, 3
	if network.Bits() > smallest {
		return nil
	}
	base, hosts := network.Masked().Addr().As4(), uint32(1)<<(32-network.Bits())
	for len(all) < wanted {
		host := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(base[:])+1+rand.Uint32N(hosts-2))
		if a := netip.AddrFrom4([4]byte(host)); !slices.Contains(known, a) && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// sizes of packets that are tried first, in bytes: least of all, tunnels, PPPoE, Ethernet.
var sizes = []int{576, 1280, 1400, 1420, 1450, 1480, 1492, 1500}

// measure finds how large packets may be on the way to the server and back.
func (c *chain) measure(ctx context.Context) {
	if !c.next.IsValid() || c.hop == (frame.MAC{}) {
		return
	}
	const wait, fine = pause, 8
	c.Progress("measuring how large packets may be on the way to " + c.next.String())
	began := time.Now()
	mine := slices.DeleteFunc(slices.Clone(sizes), func(size int) bool { return size > c.link.MTU })
	echo := func(sizes []int) link.Echoes { return c.link.Echo(ctx, c.addr, c.next, c.hop, sizes, wait) }
	heard := echo(mine)
	if len(heard.Passed) == 0 {
		c.step(began, "packet sizes", c.next.String(), "no answer to any echo request: not known")
		return
	}
	most, lost := heard.Passed[len(heard.Passed)-1], 0
	if i := slices.IndexFunc(mine, func(size int) bool { return size > most }); i >= 0 {
		if again := echo(mine[i:]); len(again.Passed) > 0 { // it may just have been lost
			most = again.Passed[len(again.Passed)-1]
		}
		if i = slices.IndexFunc(mine, func(size int) bool { return size > most }); i >= 0 {
			lost = mine[i]
		}
	}
	if lost > 0 { // in silence, and not by chance
		const tries = 4
		again := echo(slices.Repeat([]int{lost, mine[0]}, tries))
		if slices.Contains(again.Passed, lost) {
			most, lost = lost, 0
		}
	}
	if lost > 0 {
		var between []int
		for size := most + fine; size < lost; size += fine {
			between = append(between, size)
		}
		if len(between) > 0 {
			if finer := echo(between); len(finer.Passed) > 0 {
				most = finer.Passed[len(finer.Passed)-1]
			}
		}
		c.path = pathMTU{hole: most, told: heard.Told}
	}
	c.path.passes = most
	c.step(began, "packet sizes", c.next.String(), fmt.Sprintf("up to %d bytes pass", most))
	switch offered := c.order.addr.MTU; {
	case c.path.told > 0:
		c.find("small-path", "packets to %s may have %d bytes, as a router on the way says", c.next, c.path.told)
		c.path.hole = 0
	case c.path.hole > 0:
		c.find("mtu-hole", "packets of more than %d bytes are lost in silence between here and %s: large blocks of "+
			"TFTP and all "+
			"of HTTP stall", c.path.hole, c.next)
	case offered > most:
		c.find("offered-mtu", "DHCP says that packets may have %d bytes, and the way to %s was looked at up to %d",
			offered, c.next,
			most)
	}
}
