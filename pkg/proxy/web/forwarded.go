package web

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
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
	values := [...]string{c.chain, c.realIP, c.proto, c.host, c.forwarded} // one allocation
	for i, name := range [...]string{headerFor, headerRealIP, headerProto, headerHost, headerForwarded} {
		out[name] = values[i : i+1 : i+1]
	}
}

// append writes the headers as lines.
func (c forwardedHeaders) append(b []byte) []byte {
	b = appendHeader(b, headerFor, c.chain)
	b = appendHeader(b, headerRealIP, c.realIP)
	b = appendHeader(b, headerProto, c.proto)
	b = appendHeader(b, headerHost, c.host)
	return appendHeader(b, headerForwarded, c.forwarded)
}

// header is the header of the endpoint's request: the client's without what is for its connection only, with what the
// endpoint is told of the client. Trailers of a request are dropped (RFC 9110, section 6.5.1): they could say what its
// header may not.
func (p *proxy) header(r *http.Request) http.Header {
	out := make(http.Header, len(r.Header)+8)
	for name, values := range r.Header {
		if endToEnd(name) {
			out[name] = values
		}
	}
	if httpguts.HeaderValuesContainsToken(r.Header["Te"], "trailers") {
		out["Te"] = []string{"trailers"}
	}
	if out["User-Agent"] == nil {
		out["User-Agent"] = nil // or http.Transport would name itself
	}
	newForwardedHeaders(r, peerOf(r), p.settings.Trusted).set(out)
	via := viaHTTP11
	if r.ProtoMajor != 1 || r.ProtoMinor != 1 {
		via = fmt.Sprintf("%d.%d %s", r.ProtoMajor, r.ProtoMinor, pseudonym)
	}
	out["Via"] = append(slices.Clip(r.Header["Via"]), via)
	return out
}

// setAnswerHeader takes over what is not for the endpoint's connection only.
func setAnswerHeader(to, from http.Header) {
	listed := from["Connection"]
	for name, values := range from {
		if name == "Content-Length" || !hopByHop(name) && !named(listed, name) {
			to[name] = values
		}
	}
}

// endToEnd is whether a client's header goes to the endpoint as it came: it belongs to no connection, and is not the
// proxy's to write, under whatever spelling.
func endToEnd(name string) bool { return !hopByHop(name) && !isForwarded(name) && !alias(name) }

// hopByHop headers belong to one connection (RFC 9110, section 7.6.1); Host and the length are written apart.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Host", "Content-Length":
		return true
	default:
		return false
	}
}

// named is whether a Connection header lists a name.
func named(lists []string, name string) bool {
	for _, list := range lists {
		for each := range strings.SplitSeq(list, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(each)) == name {
				return true
			}
		}
	}
	return false
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
