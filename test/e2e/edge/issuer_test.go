package edge_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	issuerHost = "keycloak.orch.example.org"
	issuerURL  = "https://" + issuerHost + "/realms/master"
)

// provider gives tokens, by HTTPS as issuerURL, and does what a test asks of it.
type provider interface {
	sign(claims map[string]any) (string, error) // any claims, with the newest key
	rotate(t *testing.T)                        // signs by a new key from now on; the one before is still listed
	fail(down bool)
	keysAsked() int // how often it was asked where its keys are
}

// issuer is an OpenID provider as far as machines need one: discovery, keys, and tokens for clients with a secret (the
// client credentials grant, RFC 6749 4.4). It signs by go-jose, which is not the library that checks.
type issuer struct {
	mu    sync.Mutex
	keys  []jose.JSONWebKey // private, the newest last
	down  bool
	asked map[string]int // requests, by path
}

// serveIssuer serves until the test ends.
func serveIssuer(t *testing.T, listener net.Listener, cert tls.Certificate) *issuer {
	t.Helper()
	i := &issuer{asked: map[string]int{}}
	i.rotate(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /realms/master/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": issuerURL, "jwks_uri": issuerURL + "/certs", "token_endpoint": issuerURL + "/token",
			"response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
			"id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	mux.HandleFunc("GET /realms/master/certs", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		var public jose.JSONWebKeySet
		for _, key := range i.keys {
			public.Keys = append(public.Keys, key.Public())
		}
		_ = json.NewEncoder(w).Encode(public)
	})
	mux.HandleFunc("POST /realms/master/token", i.token)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			i.mu.Lock()
			down := i.down
			i.asked[r.URL.Path]++
			i.mu.Unlock()
			if down {
				http.Error(w, "down", http.StatusBadGateway)
				return
			}
			mux.ServeHTTP(w, r)
		}),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ErrorLog:  slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return i
}

// token gives a client that knows its secret a token.
func (i *issuer) token(w http.ResponseWriter, r *http.Request) {
	id, secret, ok := r.BasicAuth()
	if !ok || secret != "secret of "+id || r.FormValue("grant_type") != "client_credentials" {
		http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
		return
	}
	text, err := i.sign(map[string]any{
		"iss": issuerURL, "sub": id, "aud": []string{"tink", "account"}, "org_id": "org-abc", "typ": "Bearer",
		"exp": time.Now().Add(5 * time.Minute).Unix(), "iat": time.Now().Unix(),
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": text, "token_type": "Bearer", "expires_in": 300})
}

func (i *issuer) sign(claims map[string]any) (string, error) {
	i.mu.Lock()
	key := i.keys[len(i.keys)-1]
	i.mu.Unlock()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(claims).Serialize()
}

func (i *issuer) rotate(t *testing.T) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: private, KeyID: fmt.Sprint(time.Now().UnixNano()), Algorithm: "ES256", Use: "sig"})
	i.keys = i.keys[max(0, len(i.keys)-2):]
}

func (i *issuer) fail(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

func (i *issuer) keysAsked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked["/realms/master/.well-known/openid-configuration"]
}
