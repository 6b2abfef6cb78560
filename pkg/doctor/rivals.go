package doctor

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/offer"
)

// rival is a pair of DHCP servers whose boot data, router or mask differ.
type rival struct {
	one, other netip.Addr
	text       string
}

const (
	// mostRivals is how many servers are asked besides the first.
	mostRivals = 2
	// rivalPatience is how long one of them may take.
	rivalPatience = 15 * time.Second
)

// judgeRivals asks for what the other servers name as well: a pair that is meant so differs in boot data, too, and
// machines boot by either.
func (r *run) judgeRivals(ctx context.Context, way *order, heard *stages) {
	if len(r.rivals) == 0 {
		return
	}
	faults := map[netip.Addr]Finding{} // the worst of each server that was asked
	if way != nil {
		faults[way.addr.Server] = worst(r.report.Findings)
	}
	for _, pair := range r.rivals {
		for _, server := range []netip.Addr{pair.one, pair.other} {
			if _, asked := faults[server]; !asked && len(faults) <= mostRivals && ctx.Err() == nil {
				faults[server] = r.askRival(ctx, server, heard)
			}
		}
		one, asked := faults[pair.one]
		other, askedOther := faults[pair.other]
		switch {
		case one.Severity == Error && one == other:
			r.find("two-dhcp-servers", "%s. Both lead to the same fault", pair.text)
		case other.Severity == Error:
			r.find("other-dhcp-server", "%s. What %s names fails (%s): %s", pair.text, pair.other, other.Name, other.Text)
		case one.Severity == Error:
			r.find("other-dhcp-server", "%s. What %s names fails (%s): %s", pair.text, pair.one, one.Name, one.Text)
		case !asked || !askedOther || one == unseen || other == unseen:
			r.find("two-dhcp-servers", "%s. Whether both lead to files that are there was not looked at", pair.text)
		default:
			r.find("two-dhcp-servers", "%s. Both lead to files that are there: a pair?", pair.text)
		}
	}
}

// askRival follows what one server alone would have the machine do.
func (r *run) askRival(ctx context.Context, server netip.Addr, heard *stages) Finding {
	ctx, cancel := context.WithTimeout(ctx, rivalPatience)
	defer cancel()
	r.Progress("asking for what the DHCP server " + server.String() + " names")
	alone := &run{Options: r.Options, link: r.link, began: r.began, air: r.air}
	if way := alone.judgeOffers(heard.of(server)); way != nil {
		alone.follow(ctx, way)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Asked = append(r.report.Asked, alone.report.Asked...)
	if ctx.Err() != nil {
		return unseen
	}
	return worst(alone.report.Findings)
}

// unseen stands for files that were not looked at.
var unseen = Finding{Severity: Blind}

// worst is the first error; or else [unseen], or nothing.
func worst(all []Finding) (w Finding) {
	for _, f := range unexplained(all) {
		switch {
		case f.Severity == Error:
			return f
		case f.Severity == Blind, f.Name == "machine-is-up", f.Name == "proxy-arp":
			w = unseen
		}
	}
	return w
}

// of is what one server answered.
func (s *stages) of(server netip.Addr) *stages {
	only := func(c *conversation) *conversation {
		if c == nil {
			return nil
		}
		return &conversation{ask: c.ask, count: c.count, heard: slices.DeleteFunc(slices.Clone(c.heard),
			func(h offer.Heard) bool { return h.Server != server })}
	}
	return &stages{firmware: only(s.firmware), ipxe: only(s.ipxe), tinkerbell: only(s.tinkerbell), other: only(s.other)}
}
