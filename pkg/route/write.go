package route

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write prints a table for people, a line for each address of each route.
func Write(w io.Writer, t Table) error {
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tabs, "ROUTE\tLISTEN\tPROTOCOL\tBACKEND\tNOTES")
	for _, r := range t.Routes {
		for _, l := range r.Listen {
			backends := make([]string, len(r.Backends))
			for i, b := range r.Backends {
				backends[i] = b.String()
			}
			backend := strings.Join(backends, ",")
			if r.Protocol == Files {
				backend = r.Files.Directory
			}
			fmt.Fprintf(tabs, "%s\t%s\t%s\t%s\t%s\n",
				r.Name, r.Address(l), r.Protocol, backend, cmp.Or(r.notes(), "-"))
		}
	}
	return tabs.Flush()
}

// notes tells what of a route is worth knowing at a glance.
func (r Route) notes() string {
	var notes []string
	add := func(condition bool, format string, args ...any) {
		if condition {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(r.Optional, "optional")
	add(len(r.Hosts) > 0, "for %s", strings.Join(r.Hosts, ","))
	add(r.TLS != nil, "TLS")
	add(r.JWT != nil, "JWT")
	add(r.Limits.Requests != nil, "limited requests")
	add(r.Rewrite != nil, "rewritten")
	add(r.Paths != nil, "%s", r.pathNote())
	if b := r.BackendTLS; b != nil {
		add(true, "TLS to %s", b.Name)
	}
	add(len(r.TrustedPrefixes) > 0, "trusts %v", r.TrustedPrefixes)
	add(len(r.ProxyProtocol.Accept) > 0, "PROXY from %v", r.ProxyProtocol.Accept)
	add(r.ProxyProtocol.Send != "", "sends PROXY %s", r.ProxyProtocol.Send)
	add(r.Limits.Rate > 0, "%s bit/s", r.Limits.Rate)
	add(r.Limits.Connections > 0, "at most %d connections", r.Limits.Connections)
	add(r.TFTP.Source == "transparent", "source %s", r.TFTP.Source)
	add(r.TFTP.Files != "", "boot files in %s", r.TFTP.Files)
	return strings.Join(notes, "; ")
}

// pathNote tells which paths exist.
func (r Route) pathNote() string {
	switch {
	case r.Paths == nil:
		return ""
	case len(r.Paths.Allow) > 0:
		return "only paths " + strings.Join(r.Paths.Allow, ",")
	default:
		return "no paths " + strings.Join(r.Paths.Deny, ",")
	}
}
