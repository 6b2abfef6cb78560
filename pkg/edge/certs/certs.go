package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"
)

// Options are the parts of a [Store] besides its settings; each may be nil.
type Options struct {
	Route   string
	Logger  *slog.Logger
	Metrics *Metrics
	// Protocols are offered by ALPN, the best first: "h2", "http/1.1".
	Protocols []string
}

// Store is a listener's TLS. It is a task: Run loads the files again when they change.
type Store struct {
	*files[listener]
	config    Config
	protocols []string
}

// listener is the TLS that is made of the files. It is never changed.
type listener struct {
	config *tls.Config
	all    []*tls.Certificate // by rank
	others []*tls.Certificate // for names that none has: the first of the settings, and those with a name of it
}

var errNoCertificate = errors.New("no certificate is loaded")

// New makes a store. Files that are missing or wrong are no error of New, since they may come later; Ready returns it.
func New(c Config, o Options) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up TLS: %w", err)
	}
	s := &Store{config: c, protocols: o.Protocols}
	var paths []string
	for _, pair := range c.Certificates {
		paths = append(paths, pair.Certificate, pair.Key)
	}
	s.files = newFiles(o, s.build, append(paths, c.ClientCA)...)
	s.load()
	return s, nil
}

// TakeOver takes over the certificates of a store with the same settings, if this one could not load the files.
func (s *Store) TakeOver(old *Store) { s.takeOver(old.files) }

// TLS is for listeners. A change does not touch open connections; sessions from before it are not resumed.
func (s *Store) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: s.config.minVersion(),
		NextProtos: s.protocols, // net/http looks here for h2
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			if now := s.current.Load(); now != nil {
				return now.config, nil
			}
			return nil, errNoCertificate
		},
	}
}

// build makes a listener of the files' texts.
func (s *Store) build(texts [][]byte) (*listener, error) {
	l := &listener{}
	for i, pair := range s.config.Certificates {
		cert, err := tls.X509KeyPair(texts[2*i], texts[2*i+1])
		if err != nil {
			return nil, fmt.Errorf("failed to load %s with %s: %w", pair.Certificate, pair.Key, err)
		}
		l.all = append(l.all, &cert)
		if left := time.Until(cert.Leaf.NotAfter); left <= 0 {
			s.log.Warn("certificate expired", "certificate", pair.Certificate, "expired", cert.Leaf.NotAfter)
		}
		s.metrics.expires(pair.Certificate, cert.Leaf.NotAfter)
	}
	first := l.all[0].Leaf
	slices.SortStableFunc(l.all, func(a, b *tls.Certificate) int { return rank(a) - rank(b) })
	l.others = l.where(func(leaf *x509.Certificate) bool {
		named := func(name string) bool { return slices.Contains(leaf.DNSNames, name) }
		at := func(ip net.IP) bool { return slices.ContainsFunc(leaf.IPAddresses, ip.Equal) }
		return leaf == first || slices.ContainsFunc(first.DNSNames, named) || slices.ContainsFunc(first.IPAddresses, at)
	})
	l.config = &tls.Config{
		MinVersion:     s.config.minVersion(),
		CipherSuites:   s.config.ciphers(),
		NextProtos:     s.protocols,
		GetCertificate: l.choose,
	}
	if s.config.ClientCA != "" {
		pool, err := poolOf(s.config.ClientCA, texts[len(texts)-1])
		if err != nil {
			return nil, err
		}
		l.config.ClientCAs = pool
		l.config.ClientAuth = tls.RequireAndVerifyClientCert
		if s.config.ClientOptional {
			l.config.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	// Sessions belong to this configuration alone. By default all routes of a listener would share the keys of session
	// tickets: another route, or the same one after a change, would resume a session without a check of the client.
	l.config.WrapSession, l.config.UnwrapSession = l.config.EncryptTicket, l.config.DecryptTicket
	return l, nil
}

// rank orders certificates: those for a name exactly come before a wildcard's. An ECDSA signature costs a tenth of an
// RSA one, so it comes first, for clients that can verify it; few have Ed25519.
func rank(c *tls.Certificate) (n int) {
	if slices.ContainsFunc(c.Leaf.DNSNames, func(name string) bool { return strings.HasPrefix(name, "*.") }) {
		n = 3
	}
	switch c.Leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return n
	case ed25519.PublicKey:
		return n + 1
	default:
		return n + 2
	}
}

// choose finds the certificates for the name that a client asks for, or for the address that it connects to; else those
// with a name of the first one. Of several, it returns the first that the client can verify.
func (l *listener) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := hello.ServerName
	if name == "" && hello.Conn != nil { // firmware that connects by address
		if addr, ok := hello.Conn.LocalAddr().(*net.TCPAddr); ok {
			name = addr.IP.String()
		}
	}
	list := l.where(func(leaf *x509.Certificate) bool { return leaf.VerifyHostname(name) == nil })
	if len(list) == 0 {
		list = l.others
	}
	unnamed := *hello
	unnamed.ServerName = ""
	for _, cert := range list {
		if unnamed.SupportsCertificate(cert) == nil {
			return cert, nil
		}
	}
	return list[0], nil // the handshake returns the error
}

func (l *listener) where(ok func(*x509.Certificate) bool) (found []*tls.Certificate) {
	for _, cert := range l.all {
		if ok(cert.Leaf) {
			found = append(found, cert)
		}
	}
	return found
}

// Trust is the TLS towards a backend. It is a task, like [Store].
type Trust struct {
	*files[tls.Config]
	config Backend
}

// NewTrust makes the TLS towards a backend.
func NewTrust(b Backend, o Options) (*Trust, error) {
	if err := b.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up TLS to backend: %w", err)
	}
	t := &Trust{config: b}
	t.files = newFiles(o, t.build, b.CA, b.Certificate, b.Key)
	t.load()
	return t, nil
}

func (t *Trust) build(texts [][]byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.config.Name}
	if t.config.CA != "" {
		pool, err := poolOf(t.config.CA, texts[0])
		if err != nil {
			return nil, err
		}
		config.RootCAs, texts = pool, texts[1:]
	}
	if t.config.Certificate != "" {
		cert, err := tls.X509KeyPair(texts[0], texts[1])
		if err != nil {
			return nil, fmt.Errorf("failed to load %s with %s: %w", t.config.Certificate, t.config.Key, err)
		}
		config.Certificates = []tls.Certificate{cert}
	} else if _, err := x509.SystemCertPool(); t.config.CA == "" && err != nil {
		return nil, fmt.Errorf("failed to load the system's certificates: %w", err)
	}
	return config, nil
}

// TakeOver takes over the certificates of a trust with the same settings, if this one could not load the files.
func (t *Trust) TakeOver(old *Trust) { t.takeOver(old.files) }

// Client makes the TLS handshake on a connection to an endpoint.
func (t *Trust) Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error) {
	now := t.current.Load()
	if now == nil {
		return nil, fmt.Errorf("failed to connect by TLS: %w", t.Ready())
	}
	config := now.Clone()
	config.NextProtos = protocols
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("failed to connect by TLS: %w", err)
	}
	return secured, nil
}
