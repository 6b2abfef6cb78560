// Package host chooses among the routes that share a port by the name that a request is for.
package host

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// Hosts are names: "tink.example.org", "*.example.org" (one label in place of the asterisk), an address, or "*" for
// every host that no other route has.
type Hosts []string

const label = `[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?`

var name = regexp.MustCompile(`^(\*\.)?(` + label + `\.)*` + label + `$`)

// Validate names every fault.
func (h Hosts) Validate() error {
	var faults []error
	for i, each := range h {
		if _, err := netip.ParseAddr(each); err == nil || each == "*" {
			continue
		}
		if lower := strings.ToLower(each); len(lower) > 253 || !name.MatchString(lower) {
			faults = append(faults, fmt.Errorf("hosts[%d]: %q is no name of a host", i, each))
		}
	}
	return errors.Join(faults...)
}

// Entry is a handler and its hosts. No hosts means all of them.
type Entry struct {
	Hosts   Hosts
	Handler http.Handler
}

// Mux is a handler that chooses an entry by the request's host. It is never changed.
type Mux struct {
	entries map[string]*entry
	any     *entry
}

type entry struct {
	handler http.Handler
	index   int
}

// New makes a mux. A host that two entries have is an error.
func New(list []Entry) (*Mux, error) {
	m := &Mux{entries: map[string]*entry{}}
	var faults []error
	for i, each := range list {
		if err := each.Hosts.Validate(); err != nil {
			faults = append(faults, err)
		}
		e := &entry{each.Handler, i}
		hosts := each.Hosts
		if len(hosts) == 0 {
			hosts = Hosts{"*"}
		}
		for _, h := range hosts {
			h = canonical(h)
			switch {
			case h == "*" && m.any != nil, m.entries[h] != nil:
				faults = append(faults, fmt.Errorf("host %q is in two routes of one port", h))
			case h == "*":
				m.any = e
			default:
				m.entries[h] = e
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return m, nil
}

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := m.Choose(r); h != nil {
		h.ServeHTTP(w, r)
		return
	}
	m.Refuse(w, r)
}

// Choose returns the handler for a request; nil if the request is to be refused. A request on a TLS connection that was
// made for another route's name is misdirected (RFC 9110, 15.5.20): that route may ask for other client certificates.
func (m *Mux) Choose(r *http.Request) http.Handler {
	e := m.find(r.Host)
	if e == nil || r.TLS != nil && r.TLS.ServerName != "" && m.find(r.TLS.ServerName) != e {
		return nil
	}
	return e.handler
}

// Refuse answers a request for which there is no handler.
func (m *Mux) Refuse(w http.ResponseWriter, r *http.Request) {
	if m.find(r.Host) == nil {
		reply.Refuse(w, r, http.StatusNotFound, reply.NotFound, "no such host")
		return
	}
	reply.Refuse(w, r, http.StatusMisdirectedRequest, reply.Unavailable, "the connection is for another host")
}

// Index is the index of a host's entry; -1 is none.
func (m *Mux) Index(host string) int {
	if e := m.find(host); e != nil {
		return e.index
	}
	return -1
}

func (m *Mux) find(host string) *entry {
	host = canonical(host)
	if e := m.entries[host]; e != nil {
		return e
	}
	if _, parent, ok := strings.Cut(host, "."); ok {
		if e := m.entries["*."+parent]; e != nil {
			return e
		}
	}
	return m.any
}

// canonical is a host without its port, in lower case, without the root's dot.
func canonical(host string) string {
	if without, _, err := net.SplitHostPort(host); err == nil {
		host = without
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
