package edge

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// What is served: an image for the bulk of bytes, the initramfs of each of a hundred machines, and a kernel to see
// whether a candidate serves what it should.
const (
	imageSize  = 512 << 20
	bootSize   = 128 << 20
	kernelSize = 8 << 20
)

// site is a directory with what the candidates serve and show: files, certificates, configurations.
type site struct{ dir string }

func newSite() (*site, error) {
	dir, err := os.MkdirTemp("", "bench-edge-")
	if err != nil {
		return nil, err
	}
	s := &site{dir}
	if err := s.fill(); err != nil {
		s.remove()
		return nil, fmt.Errorf("failed to make files to serve: %w", err)
	}
	return s, nil
}

func (s *site) remove() { _ = os.RemoveAll(s.dir) }

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

func (s *site) fill() error {
	// nginx's workers are another user.
	if err := errors.Join(os.Chmod(s.dir, 0o755), os.Mkdir(s.path("files"), 0o755)); err != nil {
		return err
	}
	// Random bytes, written just now: they are in the page cache, as what a rack boots is.
	for name, size := range map[string]int64{"image": imageSize, "boot": bootSize, "kernel": kernelSize} {
		f, err := os.Create(s.path("files/" + name))
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rand.Reader, size)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return errors.Join(s.certificate("ecdsa", ecKey), s.certificate("rsa", rsaKey))
}

// certificate writes one that is signed by itself.
func (s *site) certificate(name string, key crypto.Signer) error {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, DNSNames: []string{"bench"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(s.path(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644),
		os.WriteFile(s.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
	)
}
