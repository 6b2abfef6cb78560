package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/web"
)

// note finds what is wrong with a document, by its name where the boot depends on it.
func (c *chain) note(d document, name, format string, args ...any) {
	if !d.required {
		name = "optional-missing"
	}
	c.find(name, format, args...)
}

// judgeHTTP says what is wrong with an answer. It reports whether there is a document to go on with.
func (c *chain) judgeHTTP(d document, a *web.Answer) bool {
	name := d.named(a.URL)
	find := func(name, format string, args ...any) { c.note(d, name, format, args...) }
	port, back := a.URL.Host, ""
	if errors.Is(a.Err, web.ErrNoConn) || errors.Is(a.Err, web.ErrRefused) {
		back = c.whyReturned(a.Addr)
	}
	switch {
	case a.Err == nil:
		return c.judgeStatus(d, a, name, find)
	case errors.Is(a.Err, web.ErrForeign), errors.Is(a.Err, web.ErrScheme):
		c.find("not-followed", "%s was not asked for: %v", name, a.Err)
	case errors.Is(a.Err, web.ErrShort):
		find("short-name", "%s: %v", name, a.Err)
	case errors.Is(a.Err, web.ErrName):
		find("name-not-resolved", "%s: %v", name, a.Err)
	case errors.Is(a.Err, web.ErrLoop), errors.Is(a.Err, web.ErrTooFar):
		find("redirects", "%s: %v", name, a.Err)
	case errors.Is(a.Err, web.ErrPlain):
		find("tls-refused", "%s: %s speaks plain HTTP where TLS is asked for", name, port)
	case errors.Is(a.Err, web.ErrHandshak):
		find("tls-refused", "%s: %v", name, a.Err)
	case back != "":
		find("unreachable", "%s: %s", name, back)
	case errors.Is(a.Err, web.ErrRefused):
		find("port-closed", "%s: nothing listens on %s (connection refused)", name, port)
	case errors.Is(a.Err, io.ErrUnexpectedEOF):
		find("file-torn", "%s: %v", name, a.Err)
	case errors.Is(a.Err, web.ErrNoConn):
		find("no-connection", "%s: %s does not answer when a connection is asked for", name, port)
	case errors.Is(a.Err, web.ErrSilent):
		find("waits-for-backend", "%s: %s takes the connection, and then: %v", name, port, a.Err)
	default:
		find("server-error", "%s: %v", name, a.Err)
	}
	return false
}

func (c *chain) judgeStatus(
	d document, a *web.Answer, name string, find func(name, format string, args ...any),
) bool {
	switch a.Status {
	case http.StatusOK, http.StatusPartialContent:
		// Linux unpacks an initrd itself: some servers take its name's ending for an encoding.
		if a.Packed == "" || a.Packed == "identity" || d.what == "initrd" {
			return true
		}
		return c.packed(d, a, name, find)
	case http.StatusNotFound, http.StatusGone:
		find("not-found", "%s is not there (%d)", name, a.Status)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		find("forbidden", "%s may not be had (%d)", name, a.Status)
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		find("backend-down", "%s: what is behind %s does not answer (%d)", name, a.URL.Host, a.Status)
	default:
		find("server-error", "%s: %s answers %d", name, a.URL.Host, a.Status)
	}
	return false
}

// packed judges a document that came packed. It reports whether it could be unpacked, so that it is gone on with.
func (c *chain) packed(
	d document, a *web.Answer, name string, find func(name, format string, args ...any),
) (unpacked bool) {
	left := ""
	if unpacked = a.Unpack(); !unpacked {
		left = ". What is in it was not looked at"
	}
	find("compressed", "%s is served as %s by %s, which nobody asked for: %s takes it as it comes, and does not unpack "+
		"it%s", name, a.Packed, cmp.Or(a.Server, a.URL.Host), d.reader(), left)
	return unpacked
}

// soon is how long before its end a certificate is worth a word; apart is how far two clocks may be.
const (
	soon  = 7 * 24 * time.Hour
	apart = 5 * time.Minute
)

// judgeTLS judges the version of TLS, and a certificate.
func (c *chain) judgeTLS(d document, a *web.Answer) {
	if a.TooNew != "" && (d.what != "loader" || c.Arch.HTTP) { // else it is loaded by machines that are not asked for
		how := "it refuses TLS 1.2 by the alert protocol_version"
		if a.Closes {
			how = "it closed the connection at a ClientHello of TLS 1.2 at most, twice, and took one of TLS 1.3"
		}
		c.note(d, "tls-version", "%s: %s takes TLS 1.3 alone (%s), and %s offers TLS 1.2 at most, but for the newest",
			d, a.TooNew, how, d.reader())
	}
	now := time.Now()
	leaf, fault := web.Judge(a.TLS, a.URL, c.CA, now)
	if leaf == nil {
		return
	}
	host := a.URL.Host
	switch fault {
	case web.Expired:
		c.find("certificate-expired", "the certificate of %s for the %s expired on %s (%d days ago; %s)", host, d.what,
			leaf.NotAfter.UTC().Format(time.DateTime), int(now.Sub(leaf.NotAfter).Hours()/24), c.clocks(a))
	case web.NotYet:
		c.find("certificate-not-yet-valid", "the certificate of %s for the %s is valid from %s only (%s)", host, d.what,
			leaf.NotBefore.UTC().Format(time.DateTime), c.clocks(a))
	case web.UnknownCA:
		c.find("certificate-unknown-ca", "the certificate of %s (%s, by %s) leads to none of the CAs given", host,
			leaf.Subject,
			leaf.Issuer)
	case web.WrongName:
		c.find("certificate-name", "the certificate of %s does not name %s but %s", host, a.URL.Hostname(),
			list(append(leaf.DNSNames, texts(leaf.IPAddresses)...)))
	case web.Good:
		if leaf.NotAfter.Sub(now) < soon {
			c.find("certificate-soon", "the certificate of %s expires on %s", host, leaf.NotAfter.UTC().Format(time.DateTime))
		}
		if c.CA == nil {
			c.find("certificate-not-judged", "who signed the certificate of %s (%s) was not judged: no CA is given", host,
				leaf.Issuer)
		}
	}
}

func texts[T fmt.Stringer](all []T) (words []string) {
	for _, v := range all {
		words = append(words, v.String())
	}
	return words
}

// clocks says whether a server agrees on the time.
func (c *chain) clocks(a *web.Answer) string {
	switch {
	case a.Date.IsZero():
		return "the server does not tell its time"
	case time.Since(a.Date).Abs() > apart:
		return "the server's clock says " + a.Date.UTC().Format(time.DateTime) + ", this host's another time"
	}
	return "the server's clock agrees"
}

// judgeClock compares a server's clock with this host's.
func (c *chain) judgeClock(a *web.Answer) {
	if off := time.Since(a.Date); !a.Date.IsZero() && off.Abs() > apart {
		c.find("clock-off", "the clock of %s is %s off from this host's, whichever is right", a.URL.Host,
			off.Abs().Round(time.Minute))
	}
}

// whole tells whether the end of a document is there, where its size is known: one that was cut short is not.
func (c *chain) whole(ctx context.Context, d document, a *web.Answer) {
	const last = 512
	switch read := int64(len(a.Body)); {
	case a.Part && a.Size > read:
	case !a.Part && a.Packed == "" && (a.Size > read || a.Size < 0 && read == d.most):
		c.find("ends-not-read", "%s sends files from their begin alone (200 in place of 206): whether their ends are "+
			"there was not looked at", a.URL.Host)
		return
	default:
		return
	}
	began := time.Now()
	tail := c.client().Tail(ctx, a.URL, a.Size, last)
	if mayHavePassed(tail.Err) && ctx.Err() == nil {
		tail = c.client().Tail(ctx, a.URL, a.Size, last)
	}
	c.step(began, "HTTP, end of the "+d.what, a.URL.Redacted(), fmt.Sprintf("%d, %d bytes", tail.Status, len(tail.Body)))
	if errors.Is(tail.Err, web.ErrSilent) {
		c.note(d, "waits-for-backend", "%s: %s sends its begin and does not answer for its end", d, a.URL.Host)
		return
	}
	if tail.Err != nil || tail.Status != http.StatusPartialContent ||
		int64(len(tail.Body)) != min(last, a.Size) {
		c.note(d, "file-torn", "%s is said to have %d bytes, and its end is not there", d, a.Size)
	}
}
