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

// None is the index of a host that is nobody's.
const None = -1

// Mux tells which of several lists a host is in. It is never changed.
type Mux struct {
	lists map[string]int // by host
	any   int            // the list that is for all others
}

// New makes a mux of some lists; an empty one is for every host. A host that two lists have is an error.
func New(all []Hosts) (*Mux, error) {
	m := &Mux{lists: map[string]int{}, any: None}
	var faults []error
	for i, hosts := range all {
		if err := hosts.Validate(); err != nil {
			faults = append(faults, err)
		}
		if len(hosts) == 0 {
			hosts = Hosts{"*"}
		}
		for _, h := range hosts {
			h = canonical(h)
			_, taken := m.lists[h]
			switch {
			case taken, h == "*" && m.any != None:
				faults = append(faults, fmt.Errorf("host %q is in two routes of one port", h))
			case h == "*":
				m.any = i
			default:
				m.lists[h] = i
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return m, nil
}

// Choose is the index of the list that a request's host is in; [None] if the request is to be refused. A request on a
// TLS connection that was made for another list's name is misdirected (RFC 9110, 15.5.20): that route may ask for other
// client certificates.
func (m *Mux) Choose(r *http.Request) int {
	at := m.Index(r.Host)
	if r.TLS != nil && r.TLS.ServerName != "" && m.Index(r.TLS.ServerName) != at {
		return None
	}
	return at
}

// Refuse answers a request that no list is for.
func (m *Mux) Refuse(w http.ResponseWriter, r *http.Request) {
	if m.Index(r.Host) == None {
		reply.Refuse(w, r, http.StatusNotFound, reply.NotFound, "no such host")
		return
	}
	reply.Refuse(w, r, http.StatusMisdirectedRequest, reply.Unavailable, "the connection is for another host")
}

// Index is the index of the list that a host is in, or None.
func (m *Mux) Index(host string) int {
	host = canonical(host)
	if at, ok := m.lists[host]; ok {
		return at
	}
	if _, parent, ok := strings.Cut(host, "."); ok {
		if at, ok := m.lists["*."+parent]; ok {
			return at
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
