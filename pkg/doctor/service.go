package doctor

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/web"
)

// smeeScripts are where Smee, classic and of Tinkerbell's one binary, has a machine's script: a document that
// stack-proxy asks Smee for, whatever the answer.
var smeeScripts = []struct {
	port   uint16
	before string
}{{7171, "/"}, {7080, "/ipxe/script/"}}

// serviceAnswers tells whether somebody on the link has the stack's address.
func (r *run) serviceAnswers(ctx context.Context) bool {
	if !r.Service.IsValid() {
		return false
	}
	return len(r.link.Owners(ctx, []netip.Addr{r.Service}, pause)[r.Service]) > 0
}

// judgeService finds whether the stack's own DHCP server is well, where nobody offers anything. That takes an address
// of this host's on the interface: none is offered.
func (r *run) judgeService(ctx context.Context, who string) {
	host := link.Host(r.Interface)
	switch {
	case !r.serviceAnswers(ctx):
		r.find("wrong-vlan", "no OFFER for %s, and nobody on %s has the stack's address %s", who, r.Interface, r.Service)
		return
	case !host.HasAddress():
		r.find("no-offer", "no OFFER for %s, though %s has an owner here: the server does not know this MAC, or it or "+
			"the relay "+
			"is silent. With an address on %s the doctor could ask the server by HTTP", who, r.Service, r.Interface)
		return
	}
	answers := make([]web.Answer, len(smeeScripts))
	var all sync.WaitGroup
	for i, p := range smeeScripts {
		all.Go(func() {
			const wait = 2 * time.Second
			client := web.Client{Way: host, Patience: wait}
			u := &url.URL{
				Scheme: "http", Host: netip.AddrPortFrom(r.Service, p.port).String(),
				Path: p.before + r.MAC.String() + "/auto.ipxe",
			}
			began := time.Now()
			answers[i] = client.Head(ctx, u)
			r.step(began, "DHCP server's HTTP", u.String(), answers[i].String())
		})
	}
	all.Wait()
	for _, a := range answers {
		switch {
		case a.Err == nil && a.Status == http.StatusOK:
			r.find("relay-silent", "no OFFER for %s, though the DHCP server behind %s knows it: it has a script for it", who,
				a.URL.Host)
			return
		case a.Err == nil && a.Status < http.StatusInternalServerError:
			r.find("no-hardware", "no OFFER for %s, though the DHCP server behind %s answers HTTP: it does not know this MAC",
				who, a.URL.Host)
			return
		case a.Err == nil:
			r.find("server-silent", "no OFFER for %s, and what is behind %s does not answer either (%d)", who, a.URL.Host,
				a.Status)
			return
		}
	}
	r.find("server-silent", "no OFFER for %s, though %s has an owner: the DHCP server, or the relay to it, is silent",
		who,
		r.Service)
}
