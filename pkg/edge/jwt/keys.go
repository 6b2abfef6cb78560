package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
	"github.com/golang-jwt/jwt/v5"
)

// key is a public key and the algorithms that it may verify.
type key struct {
	id         string
	algorithms []string
	public     crypto.PublicKey
}

// keySet is an issuer's keys. It is never changed.
type keySet struct{ keys []key }

// maxKeys bounds a set, and maxTried the keys that are tried for a token without a kid.
const (
	maxKeys  = 256
	maxTried = 4
)

var errNoKeys = errors.New("no usable key")

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
	set, skipped := &keySet{}, []error{}
	for i, raw := range list.Keys {
		k, err := parseKey(raw)
		if err != nil {
			skipped = append(skipped, fmt.Errorf("key %d (%q): %w", i, k.id, err))
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, errors.Join(append([]error{fmt.Errorf("failed to parse JWKS: %w", errNoKeys)}, skipped...)...)
	}
	return set, nil
}

// parseKey reads one key (RFC 7517 section 4), which has its id also where it cannot be used.
func parseKey(text []byte) (key, error) {
	var said struct {
		ID         string   `json:"kid"`
		Operations []string `json:"key_ops"`
	}
	var j jose.JSONWebKey
	if err := errors.Join(json.Unmarshal(text, &said), json.Unmarshal(text, &j)); err != nil {
		return key{id: said.ID}, err
	}
	k := key{id: said.ID}
	switch {
	case j.Use != "" && j.Use != "sig":
		return k, fmt.Errorf("its use is %q", j.Use)
	case len(said.Operations) > 0 && !slices.Contains(said.Operations, "verify"):
		return k, fmt.Errorf("its operations are %q", said.Operations)
	}
	public := j.Public()
	switch material := public.Key.(type) {
	case *rsa.PublicKey:
		if bits := material.N.BitLen(); bits < 2048 || bits > 8192 {
			return k, fmt.Errorf("it has %d bits, not 2048 to 8192", bits)
		}
		if material.E < 3 || material.E%2 == 0 || material.N.Bit(0) == 0 {
			return k, errors.New("it is no RSA key")
		}
		k.algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	case *ecdsa.PublicKey:
		k.algorithms = []string{map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[material.Curve.Params().BitSize]}
	case ed25519.PublicKey:
		k.algorithms = []string{"EdDSA"}
	default: // a shared secret has no place in a public list
		return k, errors.New("it is no public key")
	}
	k.public = public.Key
	if j.Algorithm != "" {
		if !slices.Contains(k.algorithms, j.Algorithm) {
			return k, fmt.Errorf("its algorithm is %q, which its kind cannot", j.Algorithm)
		}
		k.algorithms = []string{j.Algorithm}
	}
	return k, nil
}

// find returns the keys that a token may have been signed with. If no key has the token's kid, it returns none.
func (s *keySet) find(id, algorithm string) (found []jwt.VerificationKey) {
	for _, k := range s.keys {
		if (id == "" || k.id == id) && slices.Contains(k.algorithms, algorithm) && len(found) < maxTried {
			found = append(found, k.public)
		}
	}
	return found
}

// knows reports whether there is a key with this id, of any algorithm.
func (s *keySet) knows(id string) bool {
	return id == "" || slices.ContainsFunc(s.keys, func(k key) bool { return k.id == id })
}
