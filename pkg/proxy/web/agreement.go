package web

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// The TLS of a route holds for each request that reaches the route, not only for the handshakes that name it. A
// connection is of the route whose TLS made it: a request for another one is misdirected (RFC 9110, section 15.5.20),
// be it that the client named no server, or takes the certificate for both (RFC 9113, section 9.1.1). And after a
// reload the connection has to be what the route asks for now, or its requests are refused and it ends.

// agreement is what the TLS of a connection was made by.
type agreement struct {
	route  string            // empty where the client named a server that no route is for
	config *tls.Config       // that the connection was last held to
	shown  *x509.Certificate // our own, where events are wanted
}

var errNoTLS = errors.New("the route has no TLS")

// configFor is a handshake's TLS: that of the route which the client names, else of the one that the address which it
// connected to is for, else of the first.
func (f *Front) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	g := f.current.Load()
	chosen, named := g.sites[0], true
	if g.hosts != nil {
		name := hello.ServerName
		if name == "" {
			if addr, ok := hello.Conn.LocalAddr().(*net.TCPAddr); ok {
				name = addr.IP.String()
			}
		}
		at := g.hosts.Index(name)
		chosen, named = g.sites[max(at, 0)], at >= 0 || hello.ServerName == ""
	}
	config, err := configOf(chosen.settings.TLS, hello)
	if err != nil {
		return nil, err
	}
	made := &agreement{config: config}
	if f.config.Sink != nil {
		made.shown = certificateFor(config, hello)
	}
	if named {
		made.route = chosen.route
	}
	if c := connBelow(hello.Conn); c != nil {
		c.agreed.Store(made)
	}
	return config, nil
}

// certificateFor is the certificate that a client is shown; nil if it is not known.
func certificateFor(config *tls.Config, hello *tls.ClientHelloInfo) *x509.Certificate {
	if config.GetCertificate != nil {
		if chosen, err := config.GetCertificate(hello); err == nil && chosen != nil {
			return chosen.Leaf
		}
	}
	if len(config.Certificates) > 0 {
		return config.Certificates[0].Leaf
	}
	return nil
}

// configOf is the TLS of a route now.
func configOf(config *tls.Config, hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if config == nil {
		return nil, errNoTLS
	}
	if config.GetConfigForClient == nil {
		return config, nil
	}
	now, err := config.GetConfigForClient(hello)
	if now == nil && err == nil {
		now = config
	}
	return now, err
}

// holds reports whether a request came by its route's TLS. If ends is set, no later request on the connection will
// either.
func (s *site) holds(r *http.Request) (holds, ends bool) {
	if s.settings.TLS == nil {
		return true, false
	}
	c := connOfRequest(r)
	if r.TLS == nil || c == nil { // it was opened before the route had TLS
		return false, true
	}
	made := c.agreed.Load()
	if made == nil || made.route != s.route {
		return false, false
	}
	now, err := configOf(s.settings.TLS, &tls.ClientHelloInfo{ServerName: r.TLS.ServerName, Conn: c})
	switch {
	case err != nil:
		return false, true
	case now == made.config:
		return true, false
	case !satisfies(r.TLS, now):
		return false, true
	}
	c.agreed.Store(&agreement{route: s.route, config: now}) // and is not asked again
	return true, false
}

// satisfies is whether a handshake of a TLS configuration could have made a connection: by version, cipher, protocol
// and the client's certificate. Another certificate of our own does not matter to those who have verified the former.
func satisfies(made *tls.ConnectionState, config *tls.Config) bool {
	switch {
	case made.Version < config.MinVersion,
		config.MaxVersion != 0 && made.Version > config.MaxVersion,
		made.Version < tls.VersionTLS13 && !takesCipher(config, made.CipherSuite),
		made.NegotiatedProtocol != "" && !slices.Contains(config.NextProtos, made.NegotiatedProtocol):
		return false
	case len(made.PeerCertificates) == 0:
		return config.ClientAuth != tls.RequireAnyClientCert && config.ClientAuth != tls.RequireAndVerifyClientCert
	case config.ClientAuth < tls.VerifyClientCertIfGiven:
		return true
	}
	options := x509.VerifyOptions{
		Roots: config.ClientCAs, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, each := range made.PeerCertificates[1:] {
		options.Intermediates.AddCert(each)
	}
	_, err := made.PeerCertificates[0].Verify(options)
	return err == nil
}

// takesCipher is whether a configuration takes a cipher of TLS 1.2; without a list, it is the library's choice.
func takesCipher(config *tls.Config, id uint16) bool {
	if config.CipherSuites != nil {
		return slices.Contains(config.CipherSuites, id)
	}
	return slices.ContainsFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.ID == id })
}

// misdirected answers a request that has not come by its route's TLS.
func misdirected(w http.ResponseWriter, r *http.Request, ends bool) {
	if ends {
		w.Header().Set("Connection", "close") // in HTTP/2, a GOAWAY
	}
	reply.Refuse(w, r, http.StatusMisdirectedRequest, reply.Unavailable, "the connection is not of this route's TLS")
}
