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
	all    []*tls.Certificate
	byName map[string][]*tls.Certificate
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
	l := &listener{byName: map[string][]*tls.Certificate{}}
	for i, pair := range s.config.Certificates {
		cert, err := tls.X509KeyPair(texts[2*i], texts[2*i+1])
		if err != nil {
			return nil, fmt.Errorf("failed to load %s with %s: %w", pair.Certificate, pair.Key, err)
		}
		l.add(&cert)
		if left := time.Until(cert.Leaf.NotAfter); left <= 0 {
			s.log.Warn("certificate expired", "certificate", pair.Certificate, "expired", cert.Leaf.NotAfter)
		}
		s.metrics.expires(pair.Certificate, cert.Leaf.NotAfter)
	}
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

// add files a certificate under each of its names.
func (l *listener) add(cert *tls.Certificate) {
	l.all = append(l.all, cert)
	names := slices.Clone(cert.Leaf.DNSNames)
	for _, ip := range cert.Leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range names {
		name = strings.ToLower(name)
		l.byName[name] = append(l.byName[name], cert)
		// An ECDSA signature costs a tenth of an RSA one, so it comes first, for clients that can verify it.
		slices.SortStableFunc(l.byName[name], func(a, b *tls.Certificate) int { return rank(a) - rank(b) })
	}
}

func rank(c *tls.Certificate) int {
	switch c.Leaf.PublicKey.(type) {
	case *ecdsa.PublicKey:
		return 0
	case ed25519.PublicKey:
		return 1 // few clients have it
	default:
		return 2
	}
}

// choose finds the certificate for a client by the name that it asks for, exactly or by a wildcard; else it takes the
// certificates with the names of the first one. Of several, it returns the first that the client can verify.
func (l *listener) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	list := l.byName[name]
	if list == nil {
		if _, parent, ok := strings.Cut(name, "."); ok {
			list = l.byName["*."+parent]
		}
	}
	if list == nil && name == "" && hello.Conn != nil { // firmware that connects by address
		if addr, ok := hello.Conn.LocalAddr().(*net.TCPAddr); ok {
			list = l.byName[addr.IP.String()]
		}
	}
	if list == nil {
		list = l.siblings()
	}
	for _, cert := range list {
		if suits(hello, cert) {
			return cert, nil
		}
	}
	return list[0], nil // the handshake returns the error
}

// siblings are the certificates with a name in common with the first one: its RSA and ECDSA variants.
func (l *listener) siblings() []*tls.Certificate {
	if names := l.all[0].Leaf.DNSNames; len(names) > 0 {
		return l.byName[strings.ToLower(names[0])]
	}
	if ips := l.all[0].Leaf.IPAddresses; len(ips) > 0 {
		return l.byName[ips[0].String()]
	}
	return l.all[:1]
}

// suits reports whether a client can verify a certificate. It does not check the name, which choose has done.
func suits(hello *tls.ClientHelloInfo, cert *tls.Certificate) bool {
	unnamed := *hello
	unnamed.ServerName = ""
	return unnamed.SupportsCertificate(cert) == nil
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

// Name is the name that the endpoint's certificate must be for.
func (t *Trust) Name() string { return t.config.Name }

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
