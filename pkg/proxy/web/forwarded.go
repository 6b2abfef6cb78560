package web

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// forwardedHeaders tell an endpoint who the client is. A client that could choose them could read another machine's
// user-data: Hegel and Smee identify a machine by X-Forwarded-For. So they are written here, from the connection's own
// address, and what the peer sent counts only where the peer is a trusted proxy.
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
	chain := append(parseChain(in.Header.Values(http1.ForwardedFor)), peer)
	if sent := in.Header.Get(http1.ForwardedProto); sent == "http" || sent == "https" {
		c.proto = sent
	}
	if sent := in.Header.Get(http1.ForwardedHost); sent != "" {
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
	for i, name := range [...]string{
		http1.ForwardedFor, http1.RealIP, http1.ForwardedProto, http1.ForwardedHost, http1.ForwardedField,
	} {
		out[name] = values[i : i+1 : i+1]
	}
}

// append writes the headers as lines.
func (c forwardedHeaders) append(b []byte) []byte {
	b = appendHeader(b, http1.ForwardedFor, c.chain)
	b = appendHeader(b, http1.RealIP, c.realIP)
	b = appendHeader(b, http1.ForwardedProto, c.proto)
	b = appendHeader(b, http1.ForwardedHost, c.host)
	return appendHeader(b, http1.ForwardedField, c.forwarded)
}

func appendHeader(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
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

// endToEnd is whether a client's header goes to the endpoint as it came: it belongs to no connection, and is not the
// proxy's to write, under whatever spelling.
func endToEnd(name string) bool {
	switch http1.MeaningOf(name) {
	case http1.Pass, http1.Via, http1.Expect:
		return true
	default:
		return false
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
