package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
)

// issuer is an identity provider of the tests. It signs by go-jose, not by the library that checks.
type issuer struct {
	*httptest.Server
	mu    sync.Mutex
	keys  []jose.JSONWebKey // private
	down  bool
	asked int
	delay time.Duration
}

func newIssuer(t testing.TB) *issuer {
	i := &issuer{}
	i.Server = httptest.NewServer(i)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.asked++
	down, delay := i.down, i.delay
	public := jose.JSONWebKeySet{}
	for _, k := range i.keys {
		if _, secret := k.Key.([]byte); secret {
			public.Keys = append(public.Keys, k)
			continue
		}
		public.Keys = append(public.Keys, k.Public())
	}
	i.mu.Unlock()
	time.Sleep(delay)
	switch {
	case down:
		http.Error(w, "down", http.StatusBadGateway)
	case r.URL.Path == "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	case r.URL.Path == "/keys":
		_ = json.NewEncoder(w).Encode(public)
	default:
		http.NotFound(w, r)
	}
}

func (i *issuer) set(keys ...jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = keys
}

func (i *issuer) fail(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// newKey makes a private key for an algorithm.
func newKey(t testing.TB, id, algorithm string) jose.JSONWebKey {
	t.Helper()
	var private any
	var err error
	switch algorithm {
	case "ES256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "EdDSA":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case "HS256":
		private = []byte("a secret that is long enough to be one")
	default:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: algorithm, Use: "sig"}
}

type claims map[string]any

// with changes claims; nil removes one.
func (c claims) with(name string, value any) claims {
	c = maps.Clone(c)
	c[name] = value
	if value == nil {
		delete(c, name)
	}
	return c
}

// sign makes a token. The headers are added to alg, kid and typ.
func sign(t testing.TB, key jose.JSONWebKey, c claims, headers map[jose.HeaderKey]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("JWT")
	for name, value := range headers {
		options = options.WithHeader(name, value)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := josejwt.Signed(signer).Claims(map[string]any(c)).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func publicOf(key jose.JSONWebKey) crypto.PublicKey { return key.Public().Key }
