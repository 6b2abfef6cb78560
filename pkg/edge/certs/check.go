package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/watch"
)

// CheckFiles reads the files that the settings name, once, and names every fault: files that cannot be loaded, expired
// certificates, and hosts without a certificate.
func (c *Config) CheckFiles(hosts []string) error {
	var faults []error
	var leaves []*x509.Certificate
	for i, pair := range c.Certificates {
		field := fmt.Sprintf("certificates[%d].certificate: ", i)
		leaf, err := readPair(pair.Certificate, pair.Key)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s%w", field, err))
		}
		if leaf != nil {
			leaves = append(leaves, leaf)
		}
	}
	for _, host := range hosts {
		one := host
		if rest, ok := strings.CutPrefix(host, "*."); ok {
			one = "any." + rest
		}
		named := func(leaf *x509.Certificate) bool { return leaf.VerifyHostname(one) == nil }
		if host != "*" && len(leaves) == len(c.Certificates) && !slices.ContainsFunc(leaves, named) {
			faults = append(faults, fmt.Errorf("certificates: none is for host %q", host))
		}
	}
	if c.ClientCA != "" {
		if _, err := ReadPool(c.ClientCA); err != nil {
			faults = append(faults, fmt.Errorf("clientCA: %w", err))
		}
	}
	return errors.Join(faults...)
}

// CheckFiles reads the files that the settings name, once, and names every fault.
func (b *Backend) CheckFiles() error {
	var faults []error
	if b.CA != "" {
		if _, err := ReadPool(b.CA); err != nil {
			faults = append(faults, fmt.Errorf("ca: %w", err))
		}
	}
	if b.Certificate != "" {
		if _, err := readPair(b.Certificate, b.Key); err != nil {
			faults = append(faults, fmt.Errorf("certificate: %w", err))
		}
	}
	return errors.Join(faults...)
}

// readPair also returns a certificate that has expired.
func readPair(certificate, key string) (*x509.Certificate, error) {
	chain, err := watch.Read(certificate)
	if err != nil {
		return nil, err
	}
	private, err := watch.Read(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(chain, private)
	if err != nil {
		return nil, fmt.Errorf("failed to load %s with %s: %w", certificate, key, err)
	}
	if end := pair.Leaf.NotAfter; time.Now().After(end) {
		return pair.Leaf, fmt.Errorf("%s expired on %s", certificate, end.Format(time.DateOnly))
	}
	return pair.Leaf, nil
}

// ReadPool reads a file of certificates to trust, in PEM.
func ReadPool(name string) (*x509.CertPool, error) {
	text, err := watch.Read(name)
	if err != nil {
		return nil, err
	}
	return poolOf(name, text)
}
