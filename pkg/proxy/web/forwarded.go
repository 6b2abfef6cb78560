package web

import (
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
)

// Forwarding headers. A client that could choose them could read another machine's user-data: Hegel and Smee
// identify a machine by X-Forwarded-For. So they are written here, from the connection's own address, and what the
// peer sent counts only where the peer is a trusted proxy.
const (
	headerFor       = "X-Forwarded-For"
	headerProto     = "X-Forwarded-Proto"
	headerHost      = "X-Forwarded-Host"
	headerRealIP    = "X-Real-Ip"
	headerForwarded = "Forwarded"
)

// forwardedHeaders are the values of the headers above.
type forwardedHeaders struct{ chain, realIP, proto, host, forwarded string }

// newForwardedHeaders are the headers that tell the next hop of the caller. The backends read one X-Forwarded-For
// line only, so it is one line: bare addresses without ports.
func newForwardedHeaders(in *http.Request, peer netip.Addr, trusted []netip.Prefix) forwardedHeaders {
	c := forwardedHeaders{proto: "http", host: in.Host}
	if in.TLS != nil {
		c.proto = "https"
	}
	if !trusts(trusted, peer) {
		return c.onlyPeer(peer)
	}
	chain := append(parseChain(in.Header.Values(headerFor)), peer)
	if sent := in.Header.Get(headerProto); sent == "http" || sent == "https" {
		c.proto = sent
	}
	if sent := in.Header.Get(headerHost); sent != "" {
		c.host = sent
	}
	texts := make([]string, len(chain))
	for i, addr := range chain {
		texts[i] = addr.String()
	}
	c.chain = strings.Join(texts, ", ")
	c.realIP = realClient(chain, trusted).String()
	c.forwarded = forwardedValue(chain, c.proto, c.host)
	return c
}

// onlyPeer completes the headers where nobody but the peer is believed.
func (c forwardedHeaders) onlyPeer(peer netip.Addr) forwardedHeaders {
	c.chain = peer.String()
	c.realIP = c.chain
	c.forwarded = forwardedValue([]netip.Addr{peer}, c.proto, c.host)
	return c
}

// set writes the headers of a request on its way to an endpoint, over whatever it has of them.
func (c forwardedHeaders) set(out http.Header) {
	out[headerFor] = []string{c.chain}
	out[headerRealIP] = []string{c.realIP}
	out[headerProto] = []string{c.proto}
	out[headerHost] = []string{c.host}
	out[headerForwarded] = []string{c.forwarded}
}

// append writes the headers as lines.
func (c forwardedHeaders) append(b []byte) []byte {
	b = appendHeader(b, headerFor, c.chain)
	b = appendHeader(b, headerRealIP, c.realIP)
	b = appendHeader(b, headerProto, c.proto)
	b = appendHeader(b, headerHost, c.host)
	return appendHeader(b, headerForwarded, c.forwarded)
}

// isForwarded is whether a header is one of those.
func isForwarded(name string) bool {
	switch name {
	case headerFor, headerRealIP, headerProto, headerHost, headerForwarded:
		return true
	default:
		return false
	}
}

// alias is whether a name stands for a header that only this proxy may write, or that belongs to one connection, to a
// backend that takes other characters for a hyphen, as CGI, WSGI and their heirs do: X_Forwarded_For.
func alias(name string) bool {
	if !strings.ContainsFunc(name, punctuation) {
		return false
	}
	dashed := textproto.CanonicalMIMEHeaderKey(strings.Map(func(c rune) rune {
		if punctuation(c) {
			return '-'
		}
		return c
	}, name))
	return isForwarded(dashed) || hopByHop(dashed)
}

// punctuation is what a name may hold (RFC 9110, section 5.6.2) besides letters, digits and hyphens.
func punctuation(c rune) bool {
	return c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

// dropAliases removes them from what goes to an endpoint.
func dropAliases(h http.Header) {
	for name := range h {
		if alias(name) {
			delete(h, name)
		}
	}
}

// parseChain parses what a trusted proxy sent. Entries with a port lose it; from the right, the first entry that is
// no address ends the reading, since nobody vouches for what lies left of it.
func parseChain(lines []string) []netip.Addr {
	entries := strings.Split(strings.Join(lines, ","), ",")
	var chain []netip.Addr
	for _, entry := range slices.Backward(entries) {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		addr, err := netip.ParseAddr(strings.Trim(entry, "[]"))
		if err != nil {
			withPort, err := netip.ParseAddrPort(entry)
			if err != nil {
				break
			}
			addr = withPort.Addr()
		}
		chain = append(chain, addr.Unmap().WithZone(""))
	}
	slices.Reverse(chain)
	return chain
}

// realClient is the first address from the right that is not a trusted proxy's; the leftmost if all are.
func realClient(chain []netip.Addr, trusted []netip.Prefix) netip.Addr {
	for _, addr := range slices.Backward(chain) {
		if !trusts(trusted, addr) {
			return addr
		}
	}
	return chain[0]
}

func trusts(trusted []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// forwardedValue writes the same as RFC 7239 has it.
func forwardedValue(chain []netip.Addr, proto, host string) string {
	b := make([]byte, 0, 96)
	for i, addr := range chain {
		if i > 0 {
			b = append(b, ", "...)
		}
		if addr.Is4() {
			b = addr.AppendTo(append(b, "for="...))
		} else {
			b = append(addr.AppendTo(append(b, `for="[`...)), `]"`...)
		}
	}
	b = append(append(b, ";proto="...), proto...)
	if host != "" {
		b = append(append(append(b, `;host="`...), quoted.Replace(host)...), '"')
	}
	return string(b)
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
