package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
)

// judgeAdvertised says what is wrong with the answers of DHCPv6 and with what routers say, and what they have the
// machine do; nil: nothing that could be followed.
func (r *run) judgeAdvertised(ctx context.Context, a *stages) *order {
	good, routers := a.firmware.offers(), r.air.heard().routers
	if len(good) == 0 {
		if ctx.Err() == nil {
			r.judgeUnadvertised(ctx, routers)
		}
		return nil
	}
	r.noteRouters(routers)
	r.compareAdvertised(good)
	at := slices.IndexFunc(good, func(o offer.Offer) bool { return o.Addr.IsValid() && o.Boots() })
	if at < 0 {
		at = slices.IndexFunc(good, func(o offer.Offer) bool { return o.Addr.IsValid() })
	}
	if at < 0 {
		r.find("no-address", "%s answers SOLICIT without an address (%s)", good[0].Server, said(good[0].Refusal))
		return nil
	}
	way := order{addr: settle(good[at], routers), stray: stray(&good[at], routers)}
	if way.stray != "" {
		r.find("address-not-on-link", "%s", way.stray)
	}
	b := &way.addr
	switch u := b.URL(); {
	case !b.Boots():
		r.find("no-boot-file", "%s offers %s the address %s and no boot file URL (option 59) for %s", b.Server, r.MAC,
			b.Addr.Addr(), r.Arch.Name)
		return &way
	case strings.Contains(b.File, notAllowed):
		r.find(notAllowed, "%s answers %s with the file %q: it may not boot from the network, as is normal once "+
			"it is installed", b.Server, r.MAC, b.File)
		return &way
	case r.Arch.HTTP && !strings.HasPrefix(b.Class, "HTTPClient"):
		r.find("http-class-missing", "the ADVERTISE of %s does not say HTTPClient (option 16): firmware that boots by "+
			"HTTP ignores it", b.Server)
	case u == nil:
		r.find("boot-url", "%s names %q, which is no URL (RFC 5970; an IPv6 address stands in brackets)", b.Server, b.File)
		return &way
	case b.Next.IsLinkLocalUnicast():
		r.find("boot-url", "%s names %q: a link-local address does not say on which link", b.Server, b.File)
		return &way
	case !b.Next.IsValid() && len(b.DNS) == 0:
		r.find("boot-url", "%s names %q and no name server (option 23), which knows that name", b.Server, b.File)
		return &way
	}
	way.boot = b
	r.judgeScript(&way, a)
	return &way
}

func said(text string) string {
	if text == "" {
		return "it does not say why"
	}
	return text
}

// noteRouters adds what routers say to the table of what was asked.
func (r *run) noteRouters(routers []link.Router) {
	for _, router := range routers {
		heard := "no prefix"
		if len(router.Prefixes) > 0 {
			heard = "prefix " + list(router.Prefixes)
		}
		if router.Managed {
			heard += ", addresses by DHCPv6"
		}
		if !router.Default {
			heard += ", no default router"
		}
		r.step(r.began, "router advertisement", fmt.Sprintf("%s (%s)", router.Addr, router.MAC), heard)
	}
}

// stray says that the offered address is in no prefix that a router advertises; empty: it is in one, or routers
// advertise none, as where each machine is to send everything to them.
func stray(o *offer.Offer, routers []link.Router) string {
	var all []netip.Prefix
	for _, router := range routers {
		for _, p := range router.Prefixes {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	inside := func(p netip.Prefix) bool { return p.Contains(o.Addr.Addr()) }
	if len(all) == 0 || slices.ContainsFunc(all, inside) {
		return ""
	}
	return fmt.Sprintf("the DHCPv6 server %s (%s) offers %s, which is in none of the prefixes that the routers of this "+
		"link advertise (%s)", o.Server, o.From, o.Addr.Addr(), list(all))
}

// settle adds what routers say to the address: its network, and which way leads elsewhere. Where no router says
// anything, the network is that of the address's first 64 bits, as hosts by themselves cannot know better.
func settle(o offer.Offer, routers []link.Router) offer.Offer {
	const usual = 64
	bits := 0
	for _, router := range routers {
		if router.Default {
			o.Routers = append(o.Routers, router.Addr)
		}
		for _, p := range router.OnLink {
			if p.Contains(o.Addr.Addr()) {
				bits = max(bits, p.Bits())
			}
		}
	}
	if bits == 0 && len(routers) == 0 {
		bits = usual
	} else if bits == 0 {
		bits = o.Addr.Addr().BitLen()
	}
	o.Addr = netip.PrefixFrom(o.Addr.Addr(), bits)
	return o
}

// compareAdvertised compares what several servers say.
func (r *run) compareAdvertised(good []offer.Offer) {
	for i, o := range good {
		for _, p := range good[i+1:] {
			switch {
			case o.ID == p.ID && o.File != p.File:
				r.find("changing-answers", "server %s answers one question by %s and by %s", o.ID, o.BootData(), p.BootData())
			case o.ID == p.ID && o.From != p.From:
				r.find("relays-alike", "ADVERTISEs of server %s came from %s and %s, alike", o.ID, o.From, p.From)
			case o.ID != p.ID && o.File != p.File:
				r.find("other-dhcp-server", "%s (%s) and %s (%s) both answer SOLICIT, and differ in boot data: %s, %s",
					o.Server, o.From, p.Server, p.From, o.BootData(), p.BootData())
			case o.ID != p.ID:
				r.find("servers-alike", "%s and %s both answer SOLICIT, with the same boot data", o.Server, p.Server)
			}
		}
	}
}

// judgeUnadvertised finds why nobody answers SOLICIT.
func (r *run) judgeUnadvertised(ctx context.Context, routers []link.Router) {
	managed := slices.IndexFunc(routers, func(router link.Router) bool { return router.Managed })
	who := fmt.Sprintf("%s (%s)", r.MAC, r.Arch.Name)
	switch heard := r.air.heard(); {
	case managed >= 0:
		r.find("no-dhcpv6", "router %s says that addresses come by DHCPv6, and nobody answers SOLICIT for %s",
			routers[managed].Addr, who)
	case len(routers) > 0:
		r.find("no-dhcpv6", "nobody answers SOLICIT for %s, and router %s says that no addresses come by DHCPv6", who,
			routers[0].Addr)
	case heard.stations > 0 || len(heard.tags) > 0:
		r.find("no-dhcpv6", "others are heard on this VLAN, no router advertises itself, and nobody "+
			"answers SOLICIT for %s", who)
	default:
		r.judgeSilence(ctx)
	}
}
