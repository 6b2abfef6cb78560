package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"

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

// ServeHTTP shows the routes: as JSON if the client asks for it ("Accept: application/json" or "?format=json"), else
// as a plain page.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	all := p.Status()
	if r.URL.Query().Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(map[string]any{"routes": all})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tabs, "ROUTE\tLISTEN\tPROTOCOL\tREADY\tACTIVE\tBACKEND")
	for _, s := range all {
		ready := "yes"
		if !s.Ready {
			ready = "no"
		}
		fmt.Fprintf(tabs, "%s\t%s\t%s\t%s\t%d\t%s\n", s.Route.Name, addresses(s.Route), s.Route.Protocol, ready, s.Active,
			cmp.Or(backends(s.Route), "-"))
	}
	_ = tabs.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(tabs, "ROUTE\tENDPOINT\tHEALTH\tACTIVE\tUSED\tFAILURES\tWHY")
	for _, s := range all {
		for _, e := range s.Endpoints {
			fmt.Fprintf(tabs, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", s.Route.Name, e.Address, e.Health, e.Active, e.Used, e.Failures,
				cmp.Or(e.Reason, "-"))
		}
	}
	_ = tabs.Flush()
	for _, s := range all {
		if !s.Ready {
			fmt.Fprintf(w, "\nroute %s is not ready: %s\n", s.Route.Name, s.Reason)
		}
	}
}

func addresses(r route.Route) string {
	var all []string
	for _, l := range r.Listen {
		all = append(all, r.Address(l))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func backends(r route.Route) string {
	if r.Protocol == route.Files {
		return r.Files.Directory
	}
	var all []string
	for _, b := range r.Backends {
		all = append(all, b.String())
	}
	return strings.Join(all, ",")
}
