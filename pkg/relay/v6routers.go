package relay

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

const (
	// mostRouters is how many routers of a link are remembered.
	mostRouters = 4
	// advertisedFor is how long an advertisement counts: the longest time between two (RFC 4861 section 6.2.1).
	advertisedFor = 30 * time.Minute
)

// routers has the last advertisements of a link's routers. It is for one goroutine.
type routers struct {
	heard [mostRouters]struct {
		frame.Advertisement
		at int64 // 0: none
	}
}

// note remembers an advertisement in place of the router's last one, else of the oldest.
func (r *routers) note(a frame.Advertisement, now int64) {
	at := 0
	for i := range r.heard {
		if r.heard[i].Router == a.Router && r.heard[i].at != 0 {
			at = i
			break
		}
		if r.heard[i].at < r.heard[at].at {
			at = i
		}
	}
	r.heard[at].Advertisement, r.heard[at].at = a, max(now, 1)
}

// silent returns a router of the link with a valid advertisement, if no router's flags tell machines to send messages
// of this type: SOLICIT takes the flag M, INFORMATION-REQUEST the flag O, which M includes (RFC 4861 section 4.2).
func (r *routers) silent(kind dhcp6.Type, now int64) (router [16]byte, found bool) {
	if kind != dhcp6.Solicit && kind != dhcp6.InformationRequest {
		return router, false
	}
	for i := range r.heard {
		a := &r.heard[i]
		switch {
		case a.at == 0 || now-a.at > advertisedFor.Nanoseconds():
		case a.Managed || a.Other && kind == dhcp6.InformationRequest:
			return router, false
		default:
			router, found = a.Router, true
		}
	}
	return router, found
}

// countUnadvertised counts a machine's message that the routers of its link do not call for, and warns. Firmware often
// sends it all the same, systems do not. The machines behind another relay agent are on other links.
func (*v6) countUnadvertised(v *vlan, a *arrival, now int64) {
	kind := dhcp6.Type(a.kind)
	router, found := v.routers.silent(kind, now)
	if !found || a.relayed {
		return
	}
	v.counters.own[unadvertised].Inc()
	v.relay.logLimiter.WarnAt(now, "router advertises no DHCPv6 while machines ask for it", func() []any {
		return []any{"listener", v.name, "router", netip.AddrFrom16(router).String(), "type", kind.String(),
			"remedy", "have the router set the flags M (managed) and O (other) in its advertisements"}
	})
}
