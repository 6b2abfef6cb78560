package lb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// A node may have a link that is up, and the API by another one, and hear nobody on that link: the uplink of its bridge
// is out, or a switch filters its ARP. Its own silence tells it nothing, since nobody may be there. Another node that
// hears the link, and no answer for the address, says so in the lease; the holder then asks whomever it knows there.

// doubtAgain is after how long a node says again that nobody answers.
const doubtAgain = time.Minute

// doubt tells the holder of the lease that nobody answers for the address, and has this node, if it is the holder,
// judge whether it is itself that hears nobody. It does not wait for answers: meanwhile the watch goes on.
func (v *vip) doubt(ctx context.Context, link address.Link) {
	lease := v.elector.Holder()
	v.mu.Lock()
	held, silent, since, judged := v.held, v.silent, v.silentAt, v.judged
	if held {
		v.judged = lease.Doubt
	}
	v.mu.Unlock()
	if silent == 0 {
		v.doubted = time.Time{}
	}
	if held && lease.Doubt != "" && lease.Doubt != judged {
		v.closing.Go(func() { v.judge(ctx, link, lease.Doubt) })
	}
	// For so long, since a holder that has just acquired the lease probes before it answers; and of a node that renews
	// the lease: one that does not is gone, and what is written then would only be in the way of the next holder.
	if silent >= silentRounds && time.Since(since) >= v.c.o.Times.Lease/2 && lease.Renewed < 2*v.c.o.Times.Retry &&
		time.Since(v.doubted) >= doubtAgain {
		v.doubted = time.Now()
		v.closing.Go(func() { v.tell(ctx, link, lease.Identity) })
	}
}

// tell writes into the lease of a node that nobody answers for the address, if this one hears the link.
func (v *vip) tell(ctx context.Context, link address.Link, holder string) {
	if answered, err := v.c.ear.hears(ctx, link, v.ip, netip.Addr{}); err != nil || !answered {
		return // it may be this node that hears nobody
	}
	text := strings.Join([]string{v.c.o.Node, link.Source.String(), time.Now().UTC().Format(time.RFC3339)}, " ")
	if err := v.elector.Doubt(ctx, holder, text); err != nil {
		v.warn(link, "failed to say that nobody answers", err)
	}
}

// judge has this node give the address away if nobody on the link answers it: neither the node that doubts it, nor any
// station that it has had to do with.
func (v *vip) judge(ctx context.Context, link address.Link, doubt string) {
	node, source, _ := strings.Cut(doubt, " ")
	source, _, _ = strings.Cut(source, " ")
	doubter, _ := netip.ParseAddr(source) // without one the others are asked
	if answered, err := v.c.ear.hears(ctx, link, v.ip, doubter); err != nil || answered || ctx.Err() != nil {
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
