package web

import (
	"net/http"
	"net/netip"
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

// setForwarded writes the headers of out, a request on its way to an endpoint, whose copies of them have been
// removed. The backends read one X-Forwarded-For line only, so one line it is: bare addresses without ports.
func setForwarded(out http.Header, in *http.Request, peer netip.Addr, trusted []netip.Prefix) {
	proto, host := "http", in.Host
	if in.TLS != nil {
		proto = "https"
	}
	chain := []netip.Addr{peer}
	if trusts(trusted, peer) {
		chain = append(believed(in.Header.Values(headerFor)), peer)
		if sent := in.Header.Get(headerProto); sent == "http" || sent == "https" {
			proto = sent
		}
		if sent := in.Header.Get(headerHost); sent != "" {
			host = sent
		}
	}
	texts := make([]string, len(chain))
	for i, addr := range chain {
		texts[i] = addr.String()
	}
	out[headerFor] = []string{strings.Join(texts, ", ")}
	out[headerRealIP] = []string{realClient(chain, trusted).String()}
	out[headerProto] = []string{proto}
	out[headerHost] = []string{host}
	out[headerForwarded] = []string{forwarded(chain, proto, host)}
}

// believed parses what a trusted proxy sent. Entries with a port lose it; from the right, the first entry that is
// no address ends the reading, since nobody vouches for what lies left of it.
func believed(lines []string) []netip.Addr {
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

// forwarded writes the same as RFC 7239 has it.
func forwarded(chain []netip.Addr, proto, host string) string {
	var b strings.Builder
	for i, addr := range chain {
		if i > 0 {
			b.WriteString(", ")
		}
		if addr.Is4() {
			b.WriteString("for=" + addr.String())
		} else {
			b.WriteString(`for="[` + addr.String() + `]"`)
		}
	}
	b.WriteString(";proto=" + proto)
	if host != "" {
		b.WriteString(`;host="` + quoted.Replace(host) + `"`)
	}
	return b.String()
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
