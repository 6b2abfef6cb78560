package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
)

// key is a public key and the algorithms that it may verify.
type key struct {
	id         string
	algorithms []string
	public     crypto.PublicKey
}

// keySet is an issuer's keys. It is never changed.
type keySet struct {
	keys []key
	// skipped are the reasons for which keys cannot be used: another kind, another use.
	skipped []error
}

// maxKeys bounds a set, and maxTried the keys that are tried for a token without a kid.
const (
	maxKeys  = 256
	maxTried = 4
)

var errNoKeys = errors.New("no usable key")

// jwk is a key as RFC 7517 writes it, as far as it concerns verifying.
type jwk struct {
	Kind       string   `json:"kty"`
	ID         string   `json:"kid"`
	Use        string   `json:"use"`
	Operations []string `json:"key_ops"`
	Algorithm  string   `json:"alg"`
	Curve      string   `json:"crv"`
	N          string   `json:"n"`
	E          string   `json:"e"`
	X          string   `json:"x"`
	Y          string   `json:"y"`
}

// parseKeys reads a JWKS (RFC 7517). It leaves out keys that cannot be used; if none is left, it returns an error.
func parseKeys(text []byte) (*keySet, error) {
	var list struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("failed to parse JWKS: %w", err)
	}
	if len(list.Keys) > maxKeys {
		return nil, fmt.Errorf("failed to parse JWKS: more than %d keys", maxKeys)
	}
	set := &keySet{}
	for i, raw := range list.Keys {
		var j jwk
		err := json.Unmarshal(raw, &j)
		var k key
		if err == nil {
			k, err = j.key()
		}
		if err != nil {
			set.skipped = append(set.skipped, fmt.Errorf("key %d (%q): %w", i, j.ID, err))
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, errors.Join(append([]error{fmt.Errorf("failed to parse JWKS: %w", errNoKeys)}, set.skipped...)...)
	}
	return set, nil
}

func (j *jwk) key() (key, error) {
	k := key{id: j.ID}
	var err error
	switch {
	case j.Use != "" && j.Use != "sig":
		return k, fmt.Errorf("its use is %q", j.Use)
	case len(j.Operations) > 0 && !slices.Contains(j.Operations, "verify"):
		return k, fmt.Errorf("its operations are %q", j.Operations)
	}
	switch j.Kind {
	case "RSA":
		k.algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
		k.public, err = j.rsa()
	case "EC":
		k.public, k.algorithms, err = j.ecdsa()
	case "OKP":
		k.algorithms = []string{"EdDSA"}
		k.public, err = j.ed25519()
	default: // "oct" above all: a shared secret has no place in a public list
		return k, fmt.Errorf("its kind is %q", j.Kind)
	}
	if err != nil {
		return k, err
	}
	if j.Algorithm != "" {
		if !slices.Contains(k.algorithms, j.Algorithm) {
			return k, fmt.Errorf("its algorithm is %q, which its kind cannot", j.Algorithm)
		}
		k.algorithms = []string{j.Algorithm}
	}
	return k, nil
}

func (j *jwk) rsa() (*rsa.PublicKey, error) {
	n, err := number(j.N)
	if err != nil {
		return nil, fmt.Errorf("n: %w", err)
	}
	e, err := number(j.E)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	switch {
	case n.BitLen() < 2048 || n.BitLen() > 8192:
		return nil, fmt.Errorf("it has %d bits, not 2048 to 8192", n.BitLen())
	case e.BitLen() > 31 || e.Int64() < 3 || e.Bit(0) == 0 || n.Bit(0) == 0:
		return nil, errors.New("it is no RSA key")
	}
	return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
}

func (j *jwk) ecdsa() (*ecdsa.PublicKey, []string, error) {
	curves := map[string]struct {
		curve     elliptic.Curve
		algorithm string
	}{
		"P-256": {elliptic.P256(), "ES256"}, "P-384": {elliptic.P384(), "ES384"}, "P-521": {elliptic.P521(), "ES512"},
	}
	c, ok := curves[j.Curve]
	if !ok {
		return nil, nil, fmt.Errorf("its curve is %q", j.Curve)
	}
	size := (c.curve.Params().BitSize + 7) / 8
	x, err := octets(j.X, size)
	if err != nil {
		return nil, nil, fmt.Errorf("x: %w", err)
	}
	y, err := octets(j.Y, size)
	if err != nil {
		return nil, nil, fmt.Errorf("y: %w", err)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(c.curve, slices.Concat([]byte{4}, x, y)) // is on the curve
	if err != nil {
		return nil, nil, fmt.Errorf("it is no point: %w", err)
	}
	return public, []string{c.algorithm}, nil
}

func (j *jwk) ed25519() (ed25519.PublicKey, error) {
	if j.Curve != "Ed25519" {
		return nil, fmt.Errorf("its curve is %q", j.Curve)
	}
	x, err := octets(j.X, ed25519.PublicKeySize)
	if err != nil {
		return nil, fmt.Errorf("x: %w", err)
	}
	return x, nil
}

func number(text string) (*big.Int, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 {
		return nil, errors.New("it is no number in base64url")
	}
	return new(big.Int).SetBytes(raw), nil
}

func octets(text string, size int) ([]byte, error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != size {
		return nil, fmt.Errorf("it is not %d octets in base64url", size)
	}
	return raw, nil
}

// find returns the keys that a token may have been signed with, and their number. If no key has the token's kid, it
// returns none.
func (s *keySet) find(id, algorithm string) (found [maxTried]crypto.PublicKey, n int) {
	for _, k := range s.keys {
		if (id == "" || k.id == id) && slices.Contains(k.algorithms, algorithm) && n < maxTried {
			found[n] = k.public
			n++
		}
	}
	return found, n
}

// knows reports whether there is a key with this id, of any algorithm.
func (s *keySet) knows(id string) bool {
	return id == "" || slices.ContainsFunc(s.keys, func(k key) bool { return k.id == id })
}
