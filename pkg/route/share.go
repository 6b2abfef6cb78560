package route

import (
	"fmt"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/edge/host"
)

// place is an address of a route.
type place struct {
	Listen
	route, listen int
	addr          netip.Addr // where it is bound; invalid for all addresses
}

func (p place) field() string { return fmt.Sprintf("routes[%d].listen[%d]", p.route, p.listen) }

// overlap is whether the kernel would bind only one of two addresses of a port.
func overlap(a, b netip.Addr) bool { return a == b || isAll(a) || isAll(b) }

func isAll(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }

// share finds addresses that cannot be bound, since another route or the admin port has them. Where one of two routes
// is a preset's, which has no line, it is told of the written one.
func (d *checker) share(t Table, written int, defaults Defaults) {
	bound := map[string][]place{}
	for i, r := range t.Routes {
		for j, l := range r.Listen {
			p := place{l, i, j, l.Addr()}
			if p.AddrPort().Port() == 0 {
				continue // reported when it was read
			}
			key := fmt.Sprint(p.AddrPort().Port(), r.Protocol.Network())
			for _, before := range bound[key] {
				if why, ok := canShare(t, p, before); !ok {
					d.taken(t, written, p, before, why)
					break
				}
			}
			bound[key] = append(bound[key], p)
			if admin := defaults.Admin; r.Protocol.Network() == "tcp" && admin.Port() == l.AddrPort().Port() &&
				overlap(admin.Addr().Unmap(), p.addr) {
				d.takenByAdmin(r, p, written)
			}
		}
	}
}

func (d *checker) taken(t Table, written int, p, before place, why string) {
	r, other := t.Routes[p.route], t.Routes[before.route]
	here, there := r.Address(p.Listen), other.Address(before.Listen)
	if p.route < written {
		if here != there {
			why = ", which has " + there
		}
		d.Mistake(d.Line(p.field()), p.field(), "%s is taken by route %s%s", here, other.Name, why)
		return
	}
	if here != there {
		why = ", which has " + here
	}
	d.Mistake(d.Line(before.field()), before.field(),
		"%s is taken by route %s of preset %s%s (name the route %s to replace it)", there, r.Name, t.Preset, why, r.Name)
}

func (d *checker) takenByAdmin(r Route, p place, written int) {
	const admin = "the admin port (STACK_PROXY_ADMIN_ADDRESS)"
	if p.route < written {
		d.Mistake(d.Line(p.field()), p.field(), "%s is taken by %s", r.Address(p.Listen), admin)
		return
	}
	d.Mistake(d.Line("preset"), "preset", "%s of route %s is taken by %s", r.Address(p.Listen), r.Name, admin)
}

// canShare is whether a route can have the address that another has, and why not, where that is to be told.
func canShare(t Table, p, before place) (why string, ok bool) {
	r, other := t.Routes[p.route], t.Routes[before.route]
	switch {
	case !overlap(p.addr, before.addr):
		return "", true
	case p.addr != before.addr || !r.Web() || !other.Web():
		return "", false
	case len(r.Hosts) == 0 && len(other.Hosts) == 0:
		return "; routes share a port by hosts", false
	case (r.TLS == nil) != (other.TLS == nil):
		return ", and either both have tls or none", false
	}
	if _, err := host.New([]host.Hosts{r.Hosts, other.Hosts}); err != nil {
		return ": " + err.Error(), false
	}
	return "", true
}
