package proxy

import (
	"encoding/json"
	"net/http"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/route"
)

// Status is a route as the admin page shows it.
type Status struct {
	Route     route.Route       `json:"route"`
	Ready     bool              `json:"ready"`
	Reason    string            `json:"reason,omitempty"`
	Active    int               `json:"active"`
	Endpoints []endpoint.Status `json:"endpoints,omitempty"`
}

// Status tells the state of every route in force, in the order of the table.
func (p *Proxy) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Status, len(p.table.Routes))
	for i, r := range p.table.Routes {
		s := Status{Route: r, Ready: true}
		for _, l := range r.Listen {
			if f := p.fronts[r.Address(l)]; f != nil {
				s.Active += f.Active()
			}
		}
		if err := p.routeReady(r); err != nil {
			s.Ready, s.Reason = false, err.Error()
		}
		if backend := p.pools[r.Name]; backend != nil {
			s.Endpoints = backend.Status()
		}
		all[i] = s
	}
	return all
}

// ServeHTTP shows the routes, as JSON.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(map[string]any{"routes": p.Status()})
}
