package web

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"time"
)

// Fault is what is wrong with a certificate.
type Fault uint8

// The faults; the zero value is a good certificate.
const (
	Good Fault = iota
	Expired
	NotYet
	UnknownCA
	WrongName
)

// Judge says what is wrong with a server's certificate for a URL, at a time. Without a CA the chain is not judged.
func Judge(state *tls.ConnectionState, u *url.URL, ca *x509.CertPool, now time.Time) (leaf *x509.Certificate, f Fault) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, Good
	}
	leaf = state.PeerCertificates[0]
	if ca != nil {
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		// By a time at which the leaf is valid: what is wrong with its time is said below.
		at := leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: ca, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		if err != nil {
			return leaf, UnknownCA
		}
	}
	switch {
	case now.After(leaf.NotAfter):
		return leaf, Expired
	case now.Before(leaf.NotBefore):
		return leaf, NotYet
	case leaf.VerifyHostname(u.Hostname()) != nil:
		return leaf, WrongName
	}
	return leaf, Good
}
