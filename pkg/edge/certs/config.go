// Package certs has the TLS of listeners: several certificates for each, and the certificate authority of clients. It
// also has the TLS towards backends. It reads its files again when they change.
//
// It makes no certificates: cert-manager and its like write the files, and a Secret mounts them.
package certs

import (
	"crypto/tls"
	"errors"
	"fmt"
	"path"
)

// Config is the TLS of a listener.
type Config struct {
	Certificates []Pair `json:"certificates" desc:"by SNI and by what the client can verify; the first is for all others"`
	// MinVersion is "1.2" (the default: firmware has no other) or "1.3".
	MinVersion string `json:"minVersion,omitempty" form:"^(|1\\.[23])$" desc:"1.2 (default) or 1.3"`
	// FirmwareCiphers also takes key exchange by RSA and CBC, without which iPXE from before 2023 cannot
	// connect. They have no forward secrecy.
	FirmwareCiphers bool   `json:"firmwareCiphers,omitempty" desc:"also RSA key exchange and CBC, for iPXE from before 2023"`
	ClientCA        string `json:"clientCA,omitempty" form:"^(/.*)?$" desc:"file of certificates that clients must have one of"`
	ClientOptional  bool   `json:"clientOptional,omitempty" desc:"clients without a certificate are let in"`
}

// Pair is a certificate with its chain, and its key, in PEM.
type Pair struct {
	Certificate string `json:"certificate" form:"^/" desc:"file in PEM, with its chain; read again when it changes"`
	Key         string `json:"key" form:"^/" desc:"file in PEM"`
}

// Backend is the TLS towards an endpoint.
type Backend struct {
	CA string `json:"ca,omitempty" form:"^(/.*)?$" desc:"file of certificates to trust; default the system's"`
	// Name must be in the endpoint's certificate, and is sent as SNI. Endpoints are known by address only.
	Name        string `json:"name" form:"." desc:"must be in the endpoint's certificate"`
	Certificate string `json:"certificate,omitempty" form:"^(/.*)?$" desc:"our own, in PEM"`
	Key         string `json:"key,omitempty" form:"^(/.*)?$" desc:"its key"`
}

// Validate names every fault. It does not read the files, which may come after the start.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(c.Certificates) == 0 {
		fault("certificates: missing")
	}
	for i, pair := range c.Certificates {
		if !path.IsAbs(pair.Certificate) {
			fault("certificates[%d].certificate: %q is not an absolute path", i, pair.Certificate)
		}
		if !path.IsAbs(pair.Key) {
			fault("certificates[%d].key: %q is not an absolute path", i, pair.Key)
		}
	}
	if c.MinVersion != "" && c.MinVersion != "1.2" && c.MinVersion != "1.3" {
		fault("minVersion: %q is neither 1.2 nor 1.3", c.MinVersion)
	}
	if c.MinVersion == "1.3" && c.FirmwareCiphers {
		fault("firmwareCiphers: TLS 1.3 has none of them")
	}
	if c.ClientCA != "" && !path.IsAbs(c.ClientCA) {
		fault("clientCA: %q is not an absolute path", c.ClientCA)
	}
	if c.ClientCA == "" && c.ClientOptional {
		fault("clientOptional: there is no clientCA")
	}
	return errors.Join(faults...)
}

// Validate names every fault.
func (b *Backend) Validate() error {
	var faults []error
	for _, each := range []struct{ name, value string }{
		{"ca", b.CA}, {"certificate", b.Certificate}, {"key", b.Key},
	} {
		if each.value != "" && !path.IsAbs(each.value) {
			faults = append(faults, fmt.Errorf("%s: %q is not an absolute path", each.name, each.value))
		}
	}
	if b.Name == "" {
		faults = append(faults, errors.New("name: missing"))
	}
	if (b.Certificate == "") != (b.Key == "") {
		faults = append(faults, errors.New("certificate: a certificate goes with a key"))
	}
	return errors.Join(faults...)
}

func (c *Config) minVersion() uint16 {
	if c.MinVersion == "1.3" {
		return tls.VersionTLS13
	}
	return tls.VersionTLS12
}

// ciphers are those of TLS 1.2; nil is the library's choice.
func (c *Config) ciphers() []uint16 {
	if !c.FirmwareCiphers {
		return nil
	}
	var list []uint16
	for _, suite := range tls.CipherSuites() {
		list = append(list, suite.ID)
	}
	return append(list,
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_RSA_WITH_AES_128_CBC_SHA256,
		tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA)
}
