package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/frame"
)

// order is what the OFFERs have the machine do.
type order struct {
	addr   offer.Offer  // with the address
	boot   *offer.Offer // with the file; nil: none
	script *offer.Offer // what iPXE is told; nil: no answer leads on
	other  *offer.Offer // the file for firmware that boots the other way; nil: none
}

// judgeAnswers says what is wrong with the answers, and what they have the machine do; nil: nothing that could be
// followed.
func (r *run) judgeAnswers(ctx context.Context, a *stages) *order {
	r.judgeRubbish(a)
	if len(a.firmware.offers()) > 0 {
		return r.judgeOffers(a)
	}
	if ctx.Err() == nil {
		r.judgeSilence(ctx)
	}
	return nil
}

// judgeOffers judges the OFFERs, of which there are some.
func (r *run) judgeOffers(a *stages) *order {
	good := a.firmware.offers()
	r.judgeServers(good)
	var way order
	addressed := func(o offer.Offer) bool { return o.Addr.IsValid() }
	boots := func(o offer.Offer) bool { return o.Boots() }
	both := slices.IndexFunc(good, func(o offer.Offer) bool { return addressed(o) && boots(o) })
	at := slices.IndexFunc(good, addressed)
	if both >= 0 {
		at = both
	}
	if at < 0 {
		r.find("only-proxy", "%s offers boot data and nobody an address", good[0].Server)
		return nil
	}
	way.addr = good[at]
	if file := slices.IndexFunc(good, boots); both >= 0 {
		way.boot = &good[both]
	} else if file >= 0 {
		way.boot = &good[file]
		r.find("proxy-dhcp", "the address comes from %s, the boot data from %s", way.addr.Server, way.boot.Server)
	}
	const late = 4 * time.Second // dnsmasq pings an address for three, everywhere
	if way.addr.After > late {
		r.find("offer-late", "the first OFFER came after %.1f s: the server looks whether the address is free, or "+
			"waits for a client that asks again", way.addr.After.Seconds())
	}
	r.judgeBoot(&way, a)
	return &way
}

// judgeRubbish tells of answers that no client takes, and of too many.
func (r *run) judgeRubbish(a *stages) {
	for _, c := range a.all() {
		first, n := -1, 0
		for i, h := range c.heard {
			if h.Fault != "" {
				if n++; first < 0 {
					first = i
				}
			}
		}
		if first >= 0 {
			h := c.heard[first]
			r.find("malformed-offer", "answers that no client takes came from %s (%s): %s", h.Source.Addr(), h.From, h.Fault)
			break
		}
	}
	const flood = 100
	most, different := 0, 0
	for _, c := range a.all() {
		// A question may have been asked again before its first answer came.
		if n := c.count / max(c.sent, 1); n > most {
			most, different = n, len(c.heard)
		}
	}
	if most > flood {
		r.find("many-answers", "%d answers came to one DISCOVER, %d of them different ones", most, different)
	}
	if r.air.heard().looped {
		r.find("own-frames", "frames of %s come back to it: a loop, or a mirror port", r.link.MAC)
	}
}

// judgeSilence finds why nobody offers anything.
func (r *run) judgeSilence(ctx context.Context) {
	heard := r.air.heard()
	who := fmt.Sprintf("%s (%s)", r.MAC, r.Arch.Name)
	switch {
	case len(heard.tags) > 0 && heard.servers == 0:
		r.find("wrong-vlan", "no OFFER for %s, and frames of VLAN %s were heard on this wire: try %s.%d, or the switch "+
			"port's "+
			"own VLAN is not the machines'", who, list(heard.tags), r.Interface, heard.tags[0])
	case heard.stations == 0 && !r.serviceAnswers(ctx):
		r.find("wrong-vlan", "nothing at all was heard on %s: no OFFER for %s, and no frame of anybody", r.Interface, who)
	case r.Service.IsValid():
		r.judgeService(ctx, who)
	case heard.servers > 0:
		r.find("stranger-not-served", "a DHCP server answers others here, and not %s", who)
	default:
		unknown := ""
		if r.report.MadeUp {
			unknown = ", which no machine has: a server that serves its own machines only, as Tinkerbell does, is silent then"
		}
		r.find("no-offer", "others are heard on this VLAN (such as %s), and nobody offers %s an address%s",
			heard.one, who, unknown)
	}
}

// judgeServers compares what several servers say.
func (r *run) judgeServers(good []offer.Offer) {
	byServer := map[netip.Addr][]offer.Offer{}
	var servers []netip.Addr
	for _, o := range good {
		if byServer[o.Server] == nil {
			servers = append(servers, o.Server)
		}
		byServer[o.Server] = append(byServer[o.Server], o)
	}
	for _, s := range servers {
		r.judgeServer(byServer[s])
	}
	for i, o := range good {
		if o.Source.Port() != 67 {
			r.find("offer-from-port", "the OFFER of %s comes from port %d, and firmware takes none but port 67's", o.Server,
				o.Source.Port())
		}
		for _, p := range good[i+1:] {
			if o.Server != p.Server {
				r.compare(o, p)
			}
		}
	}
	const several = 8
	if len(servers) > several {
		r.find("many-answers", "%d servers answer one DISCOVER: a storm, or an attack", len(servers))
	}
}

// judgeServer compares the answers that have one server's name.
func (r *run) judgeServer(all []offer.Offer) {
	relays := map[netip.Addr]bool{}
	stations := map[frame.MAC]bool{}
	for _, o := range all {
		relays[o.Relay], stations[o.From] = true, true
	}
	first, other := all[0], slices.IndexFunc(all, func(o offer.Offer) bool { return differs(all[0], o) != "" })
	switch {
	case other >= 0 && len(stations) > 1 && len(relays) == 1:
		r.find("one-server-two-owners", "%s and %s both answer as server %s, and differ in %s: %s, %s",
			first.From, all[other].From, first.Server, differs(first, all[other]), first.BootData(), all[other].BootData())
	case other >= 0:
		r.find("changing-answers", "server %s answers one question by %s and by %s", first.Server, first.BootData(),
			all[other].BootData())
	case len(relays) > 1:
		r.find("relays-alike", "%d OFFERs of server %s came, through relays %s, alike", len(all), first.Server,
			list(keys(relays)))
	}
}

// compare judges two servers.
func (r *run) compare(o, p offer.Offer) {
	names := fmt.Sprintf("%s (%s, after %d ms) and %s (%s, after %d ms)", o.Server, o.From, o.After.Milliseconds(),
		p.Server,
		p.From, p.After.Milliseconds())
	what := differs(o, p)
	switch {
	case !o.Addr.IsValid() || !p.Addr.IsValid():
		if o.Boots() && p.Boots() && o.BootData() != p.BootData() {
			r.find("two-boot-data", "%s both name a file: %s, %s. Which one wins depends on the firmware", names,
				o.BootData(),
				p.BootData())
		}
	case what == "":
		r.find("servers-alike", "%s both offer addresses, with the same boot data", names)
	case o.Boots() != p.Boots():
		without := p
		if !o.Boots() {
			without = o
		}
		r.find("other-dhcp-server", "%s both offer addresses, %s (%s) without boot data: a machine that takes that "+
			"does not boot",
			names, without.Server, without.From)
	default:
		r.rivals = append(r.rivals, rival{o.Server, p.Server, fmt.Sprintf("%s both offer addresses, and differ in %s: %s, "+
			"%s; %s, %s", names, what, o.BootData(), routerOf(o), p.BootData(), routerOf(p))})
	}
}

func routerOf(o offer.Offer) string {
	if !o.Router().IsValid() {
		return "no router"
	}
	return "router " + o.Router().String()
}

// differs names what decides on a boot and is not the same.
func differs(o, p offer.Offer) string {
	var all []string
	if o.BootData() != p.BootData() {
		all = append(all, "boot data")
	}
	if o.Addr.IsValid() && p.Addr.IsValid() {
		if o.Router() != p.Router() {
			all = append(all, "router")
		}
		if o.Addr.Bits() != p.Addr.Bits() {
			all = append(all, "mask")
		}
	}
	return strings.Join(all, " and ")
}

// bootPort is where firmware asks a boot server (PXE 2.1).
const bootPort = 4011

// notAllowed is what Smee names in place of a file.
const notAllowed = "netboot-not-allowed"

// judgeBoot judges the boot data.
func (r *run) judgeBoot(way *order, a *stages) {
	if way.boot == nil {
		r.find("no-boot-file", "%s offers %s the address %s and no boot file for %s", way.addr.Server, r.MAC,
			way.addr.Addr.Addr(), r.Arch.Name)
		return
	}
	b := way.boot
	if strings.Contains(b.File, notAllowed) {
		r.find(notAllowed, "%s answers %s with the file %q: it may not boot from the network, as is normal once "+
			"it is installed", b.Server, r.MAC, b.File)
		way.boot = nil
		return
	}
	control, menu := b.Menu()
	const useFile = 1 << 3
	switch {
	case r.Arch.HTTP && !strings.HasPrefix(b.Class, "HTTPClient"):
		r.find("http-class-missing", "the OFFER of %s does not say HTTPClient (option 60): firmware that boots by HTTP "+
			"ignores it",
			b.Server)
	case b.Class == "PXEClient" && len(b.Vendor) == 0 && r.Arch.Machine != 0 && b.Addr.IsValid():
		r.find("boot-server-needed", "the OFFER of %s says PXEClient (option 60) without option 43: UEFI asks %s for "+
			"the file, and boots only if that answers, which the doctor does not ask", b.Server,
			netip.AddrPortFrom(b.Server, bootPort))
	case menu && control&useFile == 0:
		r.find("boot-server-asked", "the OFFER of %s has a menu (option 43): firmware asks port 4011, which the doctor "+
			"does not",
			b.Server)
	}
	const longest = 255 // of a name, as one option has room for it: a request by TFTP would be cut
	if len(b.File) > longest && b.URL() == nil {
		r.find("malformed-offer", "%s names a file by %d bytes, more than firmware takes: %q", b.Server, len(b.File),
			b.File)
		way.boot = nil
		return
	}
	if !b.Next.IsValid() && b.URL() == nil {
		r.find("no-next-server", "%s names the file %q and no server for it", b.Server, b.File)
		way.boot = nil
		return
	}
	r.judgeScript(way, a)
}

// judgeScript finds what iPXE is told.
func (r *run) judgeScript(way *order, a *stages) {
	b := way.boot
	if a.other != nil {
		if all := a.other.offers(); len(all) > 0 && all[0].Boots() {
			way.other = &all[0]
		}
	}
	for _, c := range []*conversation{a.tinkerbell, a.ipxe} {
		for _, o := range c.offers() {
			if o.Boots() && path(o.File) != path(b.File) && way.script == nil {
				way.script = &o
			}
		}
	}
	if all := a.ipxe.offers(); way.script == nil && len(all) > 0 && all[0].Boots() {
		r.find("loader-loop", "asked as iPXE, %s names %s again: it loads itself for ever", all[0].Server,
			all[0].BootData())
	}
}

// path is what is left of a file's name or URL without directories.
func path(file string) string { return file[strings.LastIndexByte(file, '/')+1:] }

func list[T any](all []T) string {
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, ", ")
}

func keys(of map[netip.Addr]bool) (all []netip.Addr) {
	for k := range of {
		all = append(all, k)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}
