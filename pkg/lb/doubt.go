package lb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// A node may have a link that is up, and the API by another one, and hear nobody on that link: the uplink of its bridge
// is out, or a switch filters its ARP. Its own silence tells it nothing, since nobody may be there. Another node that
// hears the link, and no answer for the address, says so in the lease; the holder then asks whomever it knows there.

// doubtAgain is after how long a node says again that nobody answers.
const doubtAgain = time.Minute

// errNobodyToAsk is of a link on which this node knows no station.
var errNobodyToAsk = errors.New("this node knows no station of the link")

// doubt tells the holder of the lease that nobody answers for the address, and has this node, if it is the holder,
// judge whether it is itself that hears nobody.
func (v *vip) doubt(ctx context.Context, link address.Link) {
	lease := v.elector.Holder()
	v.mu.Lock()
	held, silent, since := v.held, v.silent, v.silentAt
	v.mu.Unlock()
	if silent == 0 {
		v.doubted = time.Time{}
	}
	switch {
	case held && lease.Doubt != v.judged:
		if v.judged = lease.Doubt; lease.Doubt != "" {
			v.judge(ctx, link, lease.Doubt)
		}
	case silent >= silentRounds && time.Since(since) >= v.c.o.Times.Lease/2 && time.Since(v.doubted) >= doubtAgain:
		// For so long, since a holder that has just acquired the lease probes before it answers.
		v.doubted = time.Now()
		if answered, err := v.hears(ctx, link, netip.Addr{}); err != nil || !answered {
			return // it may be this node that hears nobody
		}
		text := strings.Join([]string{v.c.o.Node, link.Source.String(), time.Now().UTC().Format(time.RFC3339)}, " ")
		if err := v.elector.Doubt(ctx, text); err != nil {
			v.warn(link, "failed to say that nobody answers", err)
		}
	}
}

// judge has this node give the address away if nobody on the link answers it: neither the node that doubts it, nor any
// station that it has had to do with.
func (v *vip) judge(ctx context.Context, link address.Link, doubt string) {
	node, source, _ := strings.Cut(doubt, " ")
	source, _, _ = strings.Cut(source, " ")
	witness, _ := netip.ParseAddr(source) // without one the others are asked
	if answered, err := v.hears(ctx, link, witness); err != nil || answered || ctx.Err() != nil {
		return
	}
	v.log.Warn("nobody on the link answers this node", "link", link.Name, "doubted_by", node)
	_ = v.stepBack(reason.Unheard, fmt.Errorf(
		"nobody answers on link %s, though it is up, and node %s hears no answer for %s", link.Name, node, v.ip))
	v.mu.Lock()
	v.unheard = true
	v.mu.Unlock()
	v.elector.Poke()
}

// hears reports whether a station of the link answers this node. It is an error if there is none to ask.
func (v *vip) hears(ctx context.Context, link address.Link, also netip.Addr) (bool, error) {
	stations, err := v.c.o.Host.Neighbours(link, v.ip)
	if also.IsValid() {
		stations = append(stations, also)
	}
	var ports []probe.Port
	for _, station := range stations {
		port, failed := v.c.o.Host.Open(link, station)
		if err = failed; err != nil {
			break
		}
		defer port.Close()
		ports = append(ports, port)
	}
	if len(ports) == 0 {
		return false, errors.Join(errNobodyToAsk, err)
	}
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
	return probe.Answered(ctx, ports, own), nil
}
