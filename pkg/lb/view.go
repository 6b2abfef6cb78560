package lb

import (
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/lb/reason"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

// View is what this node knows of one address.
type View struct {
	Address   string   `json:"address"`
	Services  []string `json:"services"`
	Link      string   `json:"link,omitempty"`
	Announced bool     `json:"announced"`
	Holder    string   `json:"holder,omitempty"`
	Lease     string   `json:"lease"`
	Reason    string   `json:"reason"`
	Message   string   `json:"message,omitempty"`
	// Answers are the Ethernet addresses of other stations that answered the last question for the address.
	Answers []string `json:"answers"`
	// Alone is set where this node keeps the address while the API is away.
	Alone bool `json:"alone,omitempty"`
}

// Views are what this node knows of all addresses, in their order.
func (c *Controller) Views() []View {
	c.mu.Lock()
	defer c.mu.Unlock()
	ips := make([]netip.Addr, 0, len(c.vips))
	for ip := range c.vips {
		ips = append(ips, ip)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	views := make([]View, 0, len(ips))
	for _, ip := range ips {
		views = append(views, c.vips[ip].view())
	}
	return views
}

func (v *vip) view() View {
	holder := v.elector.Holder()
	v.mu.Lock()
	defer v.mu.Unlock()
	view := View{
		Address: v.ip.String(), Services: namesOf(v.wish), Link: v.link.Name, Announced: v.held, Lease: LeaseName(v.ip),
		Holder: nodeOf(holder.Identity), Reason: reason.Standby.String(), Answers: []string{}, Alone: v.held && v.alone,
	}
	switch {
	case v.held:
		view.Reason = reason.Announced.String()
	case v.why != nil:
		view.Reason, view.Message = v.why.Reason.String(), v.why.Text
	case holder.Identity == "" || holder.Expired:
		view.Reason = reason.NoNode.String()
	}
	for _, mac := range v.owners {
		view.Answers = append(view.Answers, hardware(mac))
	}
	return view
}

// ServeHTTP shows the addresses.
func (c *Controller) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c.Views()) // whoever asked may have gone
}

// namesOf are the Services of an address.
func namesOf(a *service.Address) []string {
	names := make([]string, 0, len(a.Services))
	for _, s := range a.Services {
		names = append(names, service.NameOf(s).String())
	}
	return names
}
