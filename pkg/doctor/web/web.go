// Package web asks for documents by HTTP as firmware and iPXE do: names by the name server that DHCP offered, no
// cookies, nothing compressed, redirects one by one, and never more of a document than is needed to judge it.
package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Way connects.
type Way interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Client asks by a way.
type Client struct {
	Way Way
	// DNS are the name servers that were offered.
	DNS []netip.Addr
	// Search are the domains that were offered to complete short names.
	Search []string
	// CA verifies certificates; nil: they are looked at, and nobody is trusted.
	CA *x509.CertPool
	// MostTLS is the newest version of TLS that is offered; 0: the newest there is.
	MostTLS uint16
	// Patience is how long a connection may be silent.
	Patience time.Duration
}

// Answer is what became of a question.
type Answer struct {
	URL    *url.URL       // that answered, behind redirects
	Hops   int            // redirects
	Addr   netip.AddrPort // that was asked
	Status int
	Body   []byte // its begin
	Size   int64  // of the whole document; -1: not said
	Part   bool   // the server gives parts (RFC 9110 section 14)
	Date   time.Time
	Type   string
	Packed string // the encoding of the body, where there is one
	Server string // what the server says that it is; empty: nothing
	TLS    *tls.ConnectionState
	TooNew string // a host that takes no version of TLS up to Client's MostTLS, and was asked by a newer one; empty: none
	Closes bool   // TooNew does not say so by an alert, but closes the connection, and takes the newer version
	Took   time.Duration
	Err    error
}

// String is the status, or the reason that there is none.
func (a *Answer) String() string {
	if a.Err != nil {
		return a.Err.Error()
	}
	return strconv.Itoa(a.Status)
}

// Unpack unpacks a body that came packed by gzip, as far as it is there. It reports whether there is something then.
func (a *Answer) Unpack() bool {
	const most = 1 << 20
	packed, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return false
	}
	a.Body, _ = io.ReadAll(io.LimitReader(packed, most)) // its end may be missing
	a.Size, a.Part = -1, false
	return len(a.Body) > 0
}

// What an answer may end with.
var (
	ErrScheme   = errors.New("firmware does not follow it")
	ErrName     = errors.New("failed to look up the name")
	ErrShort    = fmt.Errorf("%w without a domain", ErrName)
	ErrForeign  = errors.New("it is an address of a host itself")
	ErrLoop     = errors.New("redirects go in a circle")
	ErrTooFar   = errors.New("there are too many redirects")
	ErrRefused  = errors.New("nothing listens there")
	ErrSilent   = errors.New("no answer")
	ErrNoConn   = fmt.Errorf("%w, and no connection", ErrSilent)
	ErrPlain    = errors.New("the port speaks plain HTTP")
	ErrHandshak = errors.New("the TLS handshake failed")
	errCloses   = fmt.Errorf("%w: the server closes the connection at the ClientHello", ErrHandshak)
)

// mostHops is how many redirects are followed.
const mostHops = 10

// Get asks for the begin of a document: so many bytes.
func (c *Client) Get(ctx context.Context, at *url.URL, first int64) Answer {
	return c.do(ctx, http.MethodGet, at, fmt.Sprintf("bytes=0-%d", first-1), first)
}

// Whole asks for a document, up to a bound.
func (c *Client) Whole(ctx context.Context, at *url.URL, most int64) Answer {
	return c.do(ctx, http.MethodGet, at, "", most)
}

// Tail asks for the last bytes of a document of a known size.
func (c *Client) Tail(ctx context.Context, at *url.URL, size, last int64) Answer {
	from := max(0, size-last)
	return c.do(ctx, http.MethodGet, at, fmt.Sprintf("bytes=%d-%d", from, size-1), size-from)
}

// Head asks whether a document is there.
func (c *Client) Head(ctx context.Context, at *url.URL) Answer {
	return c.do(ctx, http.MethodHead, at, "", 0)
}

func (c *Client) do(ctx context.Context, method string, at *url.URL, part string, most int64) (a Answer) {
	began := time.Now()
	defer func() { a.Took = time.Since(began) }()
	var seen []string
	for a.URL = at; ; a.Hops++ {
		if slices.Contains(seen, a.URL.String()) {
			a.Err = fmt.Errorf("%w: %s", ErrLoop, strings.Join(seen, ", "))
			return a
		}
		if seen = append(seen, a.URL.String()); a.Hops > mostHops {
			a.Err = ErrTooFar
			return a
		}
		hops := a.Hops
		next := c.once(ctx, method, &a, part, most)
		if a.Hops = hops; next == nil {
			return a
		}
		a.URL = next
	}
}

// once asks one server. It returns where else to look.
func (c *Client) once(ctx context.Context, method string, a *Answer, part string, most int64) (next *url.URL) {
	a.Size, a.Status, a.Body, a.Err = -1, 0, nil, nil
	addr, err := c.resolve(ctx, a.URL)
	if err != nil {
		a.Err = err
		return nil
	}
	a.Addr = addr
	request, err := http.NewRequestWithContext(ctx, method, a.URL.String(), http.NoBody)
	if err != nil {
		a.Err = fmt.Errorf("failed to ask: %w", err)
		return nil
	}
	request.Header.Set("User-Agent", "stack-doctor")
	if part != "" {
		request.Header.Set("Range", part)
	}
	response, err := c.exchange(request, a, c.MostTLS)
	if errors.Is(err, errCloses) { // once may be by chance
		response, err = c.exchange(request, a, c.MostTLS)
	}
	if c.MostTLS != 0 && errors.Is(err, ErrHandshak) {
		alert := strings.Contains(err.Error(), "protocol version") // alert 70
		closes := errors.Is(err, errCloses)
		response, err = c.exchange(request, a, 0)
		if closes = closes && err == nil; a.TooNew == "" && (alert || closes) {
			a.TooNew, a.Closes = a.URL.Host, closes
		}
	}
	if a.Err = err; err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	return c.read(method, a, response, most)
}

// exchange sends a request on a connection of its own, with TLS up to a version.
func (c *Client) exchange(request *http.Request, a *Answer, newest uint16) (*http.Response, error) {
	const mostHeaders = 64 << 10
	addr := a.Addr
	var state *tls.ConnectionState
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.Patience)
			defer cancel()
			conn, err := c.Way.DialContext(ctx, "tcp", addr.String())
			if err != nil && !strings.Contains(err.Error(), "refused") {
				return nil, ErrNoConn
			}
			return conn, err
		},
		TLSClientConfig: &tls.Config{
			MinVersion:         tls.VersionTLS10, //nolint:gosec // it asks what the server can do
			MaxVersion:         newest,
			InsecureSkipVerify: true, //nolint:gosec // what is wrong with a certificate is judged, see Judge
			VerifyConnection:   func(s tls.ConnectionState) error { state = &s; return nil },
		},
		DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: mostHeaders,
		ResponseHeaderTimeout: c.Patience, TLSHandshakeTimeout: c.Patience,
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(request)
	a.TLS = state
	if isTLS := request.URL.Scheme == "https"; err != nil && isTLS && state == nil &&
		(errors.Is(err, io.EOF) || strings.Contains(err.Error(), "reset")) {
		return nil, errCloses
	}
	if err != nil {
		return nil, failure(err)
	}
	return response, nil
}

// read takes over what an answer says, and the begin of its body. It returns where else to look.
func (c *Client) read(method string, a *Answer, response *http.Response, most int64) (next *url.URL) {
	var err error
	a.Status, a.Type = response.StatusCode, response.Header.Get("Content-Type")
	a.Packed, a.Server = response.Header.Get("Content-Encoding"), response.Header.Get("Server")
	a.Date, _ = http.ParseTime(response.Header.Get("Date"))
	a.Size = response.ContentLength
	if a.Part = a.Status == http.StatusPartialContent; a.Part {
		_, total, _ := strings.Cut(response.Header.Get("Content-Range"), "/")
		a.Size, err = strconv.ParseInt(total, 10, 64)
		if err != nil {
			a.Size = -1
		}
	}
	if to := response.Header.Get("Location"); to != "" && a.Status >= 300 && a.Status < 400 {
		if next, err = a.URL.Parse(to); err != nil {
			a.Err = fmt.Errorf("failed to follow %q: %w", to, err)
			return nil
		}
		return next
	}
	if method == http.MethodHead || most == 0 {
		return nil
	}
	var slow atomic.Bool
	ended := time.AfterFunc(c.Patience, func() {
		slow.Store(true)
		_ = response.Body.Close()
	})
	defer ended.Stop()
	want := most
	a.Body, err = io.ReadAll(io.LimitReader(response.Body, want))
	switch {
	case int64(len(a.Body)) >= want || err == nil:
	case slow.Load() || isTimeout(err):
		a.Err = fmt.Errorf("%w after %d bytes of the body", ErrSilent, len(a.Body))
	default:
		a.Err = fmt.Errorf("the document ends after %d bytes: %w", len(a.Body), io.ErrUnexpectedEOF)
	}
	return nil
}

// resolve finds the address of a URL's host, by the name servers that were offered. Addresses of a host itself are not
// asked: the doctor's would be asked in place of the machine's.
func (c *Client) resolve(ctx context.Context, u *url.URL) (netip.AddrPort, error) {
	ports := map[string]uint64{"http": 80, "https": 443}
	port, ok := ports[u.Scheme]
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("%w: %s", ErrScheme, u.Scheme)
	}
	if text := u.Port(); text != "" {
		var err error
		if port, err = strconv.ParseUint(text, 10, 16); err != nil {
			return netip.AddrPort{}, fmt.Errorf("failed to read port %q: %w", text, err)
		}
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		if addr, err = c.lookUp(ctx, u.Hostname()); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if addr = addr.Unmap(); addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
		return netip.AddrPort{}, fmt.Errorf("%w: %s", ErrForeign, addr)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}

// lookUp finds the address of a name as iPXE does: one without a dot in each domain that was offered, then as it is.
func (c *Client) lookUp(ctx context.Context, name string) (netip.Addr, error) {
	if len(c.DNS) == 0 {
		return netip.Addr{}, fmt.Errorf("%w %s: no name server is offered", ErrName, name)
	}
	const most = 6 // of domains, which a server may name without end
	var full []string
	if !strings.Contains(name, ".") {
		for _, domain := range c.Search[:min(most, len(c.Search))] {
			full = append(full, name+"."+strings.Trim(domain, "."))
		}
	}
	full = append(full, name)
	var why error
	for _, n := range full {
		var addr netip.Addr
		if addr, why = c.ask(ctx, n); why == nil {
			return addr, nil
		}
	}
	switch {
	case strings.Contains(name, "."):
		return netip.Addr{}, fmt.Errorf("%w %s: %w", ErrName, name, why)
	case len(c.Search) == 0:
		return netip.Addr{}, fmt.Errorf("%w %s, for which DHCP offers no domain: %w", ErrShort, name, why)
	}
	return netip.Addr{}, fmt.Errorf("%w %s, asked for as %s: %w", ErrShort, name, strings.Join(full, " and "), why)
}

// ask asks the name servers that were offered, and no others.
func (c *Client) ask(ctx context.Context, name string) (netip.Addr, error) {
	const port, most = 53, 2
	var why error
	for _, server := range c.DNS[:min(most, len(c.DNS))] {
		conn, err := c.Way.DialContext(ctx, "udp", netip.AddrPortFrom(server, port).String())
		if err != nil {
			why = err
			continue
		}
		addr, code, err := question(ctx, conn, name, c.Patience/2)
		_ = conn.Close()
		switch {
		case err != nil:
			why = fmt.Errorf("the name server %s, which is offered, does not answer", server)
		case addr.IsValid():
			return addr, nil
		default:
			why = fmt.Errorf("the name server %s knows no address (%s)", server, strings.TrimPrefix(code.String(), "RCode"))
		}
	}
	return netip.Addr{}, why
}

// question asks a name server for an address by one datagram (RFC 1035 section 4). There may be none in its answer.
func question(
	ctx context.Context, conn net.Conn, name string, patience time.Duration,
) (addr netip.Addr, code dnsmessage.RCode, err error) {
	full, err := dnsmessage.NewName(strings.TrimSuffix(name, ".") + ".")
	if err != nil {
		return addr, code, err
	}
	asked := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: full, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packet, err := asked.Pack()
	if err != nil {
		return addr, code, err
	}
	deadline := time.Now().Add(patience)
	if until, ok := ctx.Deadline(); ok && until.Before(deadline) {
		deadline = until
	}
	if err := errors.Join(conn.SetDeadline(deadline), write(conn, packet)); err != nil {
		return addr, code, err
	}
	for buffer := make([]byte, 4096); ; {
		n, err := conn.Read(buffer)
		if err != nil {
			return addr, code, err
		}
		var answer dnsmessage.Message
		if answer.Unpack(buffer[:n]) != nil || !answer.Response || answer.ID != asked.ID {
			continue // of another question
		}
		for _, record := range answer.Answers {
			if body, ok := record.Body.(*dnsmessage.AResource); ok {
				return netip.AddrFrom4(body.A), answer.RCode, nil
			}
		}
		return addr, answer.RCode, nil
	}
}

func write(conn net.Conn, b []byte) error {
	_, err := conn.Write(b)
	return err
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// failure puts an error of the connection into words.
func failure(err error) error {
	var record tls.RecordHeaderError
	text := err.Error()
	switch {
	case errors.As(err, &record) && strings.HasPrefix(string(record.RecordHeader[:]), "HTTP"),
		strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return ErrPlain
	case strings.Contains(text, "refused"):
		return ErrRefused
	case errors.Is(err, ErrNoConn):
		return ErrNoConn
	case isTimeout(err), errors.Is(err, context.DeadlineExceeded), strings.Contains(text, "timeout"):
		return ErrSilent
	case strings.Contains(text, "tls:"):
		return fmt.Errorf("%w: %w", ErrHandshak, err)
	}
	return err
}
