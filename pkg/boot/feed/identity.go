package feed

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
)

// shortestKey is how long a key has to be, in bytes.
const shortestKey = 16

var errForged = errors.New("it is not of a program that has the key")

// readKey reads the key anew, so that one that is replaced counts for the next connection.
func readKey(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read the key of boots: %w", err)
	}
	key := []byte(strings.TrimSpace(string(text)))
	if len(key) < shortestKey {
		return nil, fmt.Errorf("failed to read the key of boots: %s has %d bytes, fewer than %d",
			file, len(key), shortestKey)
	}
	return key, nil
}

// CheckKey reports why the key of a file cannot be used.
func CheckKey(file string) error {
	_, err := readKey(file)
	return err
}

// identity is how either end shows that it has the key, and finds whether the other end has: by a certificate whose
// private key is made of it, and so is the same at both ends.
func identity(file string) (*tls.Config, error) {
	key, err := readKey(file)
	if err != nil {
		return nil, err
	}
	// Not the key itself: it may serve elsewhere, too.
	seed, err := hkdf.Key(sha256.New, key, nil, "stack-boots events", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	public := private.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true, // a ticket would outlive the key
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		ClientAuth:   tls.RequestClientCert,
		// No authority and no name counts, but the key alone, which VerifyConnection asks for.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 0 || !public.Equal(c.PeerCertificates[0].PublicKey) {
				return errForged
			}
			return nil
		},
	}, nil
}
