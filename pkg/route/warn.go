package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// PassThrough is a tcp route that leads where an http or grpc route leads, too. That backend trusts the proxy's
// address, since it has to believe the address headers that the proxy writes; and in a stream that is passed through it
// is the client that writes them.
type PassThrough struct {
	Route   string // the tcp route
	Backend string // its backend
	HTTP    string // the other route
}

// String says what is wrong, and what to do.
func (p PassThrough) String() string {
	return fmt.Sprintf("route %s passes streams through to %s, which route %s reaches, too: whoever connects can claim "+
		"any address there, if that port knows clients by X-Forwarded-For. Make it protocol http (with tls and "+
		"backendTLS), or send PROXY headers", p.Route, p.Backend, p.HTTP)
}

// PassThroughs finds them, one for each backend of a tcp route. A route that sends PROXY headers is none: its backend
// sees the client's address, and does not trust that.
func (t Table) PassThroughs() []PassThrough {
	var all []PassThrough
	for _, r := range t.Routes {
		if r.Protocol != TCP || r.ProxyProtocol.Send != "" {
			continue
		}
		for _, b := range r.Backends {
			if other, ok := t.webRouteTo(b); ok && !slices.Contains(headerless, b.port()) {
				all = append(all, PassThrough{Route: r.Name, Backend: b.String(), HTTP: other})
			}
		}
	}
	return all
}

// headerless are the ports of Tinkerbell that know no client by a header: Tink Server's gRPC asks for a worker's
// identifier, and consoles are SSH.
var headerless = []string{"42113", "2222"}

func (b Backend) port() string {
	if b.Service != nil {
		return b.Service.Port
	}
	return strconv.Itoa(int(b.Port))
}

// webRouteTo is an http or grpc route with a backend on the same host.
func (t Table) webRouteTo(b Backend) (name string, ok bool) {
	for _, r := range t.Routes {
		if r.Protocol != HTTP && r.Protocol != GRPC {
			continue
		}
		for _, each := range r.Backends {
			if b.sameHost(each) {
				return r.Name, true
			}
		}
	}
	return "", false
}

// sameHost is whether two backends can be ports of one host, or Service, as far as what is written tells.
func (b Backend) sameHost(other Backend) bool {
	x, xIsName := b.hostName()
	y, yIsName := other.hostName()
	if x == y || !xIsName || !yIsName {
		return x == y
	}
	// The search path may complete the shorter one to the longer one, as a Service's name by namespace and domain.
	return strings.HasPrefix(y, x+".") || strings.HasPrefix(x, y+".")
}

// hostName is the host in one spelling.
func (b Backend) hostName() (host string, isName bool) {
	switch s := b.Service; {
	case s != nil && s.Namespace != "":
		return s.Name + "." + s.Namespace, true
	case s != nil:
		return s.Name, true
	}
	if addr, err := netip.ParseAddr(b.Host); err == nil {
		return addr.Unmap().String(), false
	}
	host = strings.ToLower(strings.TrimSuffix(b.Host, "."))
	return host, true
}
