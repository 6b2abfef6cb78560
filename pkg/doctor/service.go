package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/web"
)

// smeePorts are where Smee, classic and of Tinkerbell's one binary, answers HTTP.
var smeePorts = []uint16{7171, 7080}

// serviceAnswers tells whether somebody on the link has the stack's address.
func (r *run) serviceAnswers(ctx context.Context) bool {
	if !r.Service.IsValid() {
		return false
	}
	return len(r.link.Owners(ctx, []netip.Addr{r.Service}, pause)[r.Service]) > 0
}

// judgeService finds whether the stack's own DHCP server is well, where nobody offers anything.
func (r *run) judgeService(ctx context.Context, who string) {
	if !r.serviceAnswers(ctx) {
		r.find("wrong-vlan", "no OFFER for %s, and nobody on %s has the stack's address %s", who, r.Interface, r.Service)
		return
	}
	client := web.Client{Way: link.Host(r.Interface), Patience: patience}
	for _, p := range smeePorts {
		u := &url.URL{Scheme: "http", Host: netip.AddrPortFrom(r.Service, p).String(), Path: "/healthcheck"}
		began := time.Now()
		a := client.Head(ctx, u)
		r.step(began, "DHCP server's HTTP", u.String(), fmt.Sprint(a.Status, " ", a.Err))
		switch {
		case a.Err == nil && a.Status < 500:
			r.find("no-hardware", "no OFFER for %s, though the DHCP server behind %s answers HTTP: it does not know this "+
				"MAC", who,
				u.Host)
			return
		case a.Err == nil:
			r.find("server-silent", "no OFFER for %s, and what is behind %s does not answer either (%d)", who, u.Host,
				a.Status)
			return
		}
	}
	r.find("server-silent", "no OFFER for %s, though %s has an owner: the DHCP server, or the relay to it, is silent",
		who,
		r.Service)
}
