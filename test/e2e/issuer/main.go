// Command issuer is an OAuth 2 server for the tests of the outer edge: tokens by ory/fosite for a client with its
// secret, discovery, and the keys. A second port tells it to sign by another key, to be away, or to sign anything.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v3"
	"github.com/ory/fosite"
	"github.com/ory/fosite/compose"
	"github.com/ory/fosite/handler/oauth2"
	"github.com/ory/fosite/storage"
	"github.com/ory/fosite/token/jwt"
	"golang.org/x/crypto/bcrypt"
)

// lifespan of a token.
const lifespan = 5 * time.Minute

type issuer struct {
	url      string
	provider fosite.OAuth2Provider
	signer   *jwt.DefaultSigner

	mu    sync.Mutex
	keys  []jose.JSONWebKey // private, the newest last
	down  bool
	asked int // for the discovery
}

func main() {
	listen := flag.String("listen", ":443", "`address` for clients")
	control := flag.String("control", ":8081", "`address` for the test")
	base := flag.String("issuer", "", "`URL` of the issuer")
	certificate := flag.String("certificate", "", "`file` in PEM")
	key := flag.String("key", "", "`file` in PEM")
	flag.Parse()
	if err := run(*listen, *control, *base, *certificate, *key); err != nil {
		fmt.Fprintln(os.Stderr, "issuer:", err)
		os.Exit(1)
	}
}

func run(listen, control, base, certificate, key string) error {
	i := &issuer{url: base}
	if err := i.rotate(); err != nil {
		return err
	}
	if err := i.compose(); err != nil {
		return err
	}
	where, err := url.Parse(base)
	if err != nil {
		return fmt.Errorf("failed to parse issuer: %w", err)
	}
	clients, test := http.NewServeMux(), http.NewServeMux()
	clients.HandleFunc("GET "+where.Path+"/.well-known/openid-configuration", i.discover)
	clients.HandleFunc("GET "+where.Path+"/certs", i.list)
	clients.HandleFunc("POST "+where.Path+"/token", i.token)
	test.HandleFunc("POST /rotate", func(w http.ResponseWriter, _ *http.Request) {
		if err := i.rotate(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	test.HandleFunc("POST /down/{state}", func(_ http.ResponseWriter, r *http.Request) {
		i.away(r.PathValue("state") == "on")
	})
	test.HandleFunc("POST /sign", i.sign)
	test.HandleFunc("GET /asked", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		fmt.Fprint(w, i.asked)
	})
	failed := make(chan error, 2)
	server := func(address string, h http.Handler) *http.Server {
		return &http.Server{
			Addr: address, Handler: h, ReadHeaderTimeout: 10 * time.Second,
			TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		}
	}
	go func() { failed <- server(control, test).ListenAndServe() }()
	go func() { failed <- server(listen, i.unlessAway(clients)).ListenAndServeTLS(certificate, key) }()
	return <-failed
}

// compose makes the server: one client, that asks for tokens in its own name (RFC 6749, 4.4).
func (i *issuer) compose() error {
	secret, err := bcrypt.GenerateFromPassword([]byte("secret of worker"), bcrypt.MinCost)
	if err != nil {
		return err
	}
	store := storage.NewMemoryStore()
	store.Clients["worker"] = &fosite.DefaultClient{
		ID: "worker", Secret: secret, GrantTypes: []string{"client_credentials"}, Audience: []string{"tink"},
	}
	config := &fosite.Config{
		AccessTokenLifespan: lifespan, AccessTokenIssuer: i.url,
		GlobalSecret: []byte("thirty-two bytes that are no secret"),
	}
	current := func(context.Context) (any, error) { return i.current(), nil }
	i.signer = &jwt.DefaultSigner{GetPrivateKey: current}
	strategy := compose.NewOAuth2JWTStrategy(current, compose.NewOAuth2HMACStrategy(config), config)
	i.provider = compose.Compose(config, store, strategy, compose.OAuth2ClientCredentialsGrantFactory)
	return nil
}

func (i *issuer) unlessAway(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		down := i.down
		if strings.HasSuffix(r.URL.Path, "/openid-configuration") {
			i.asked++
		}
		i.mu.Unlock()
		if down {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (i *issuer) discover(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]any{
		"issuer": i.url, "jwks_uri": i.url + "/certs", "token_endpoint": i.url + "/token",
		"grant_types_supported": []string{"client_credentials"}, "response_types_supported": []string{"code"},
		"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"ES256"},
	})
}

func (i *issuer) list(w http.ResponseWriter, _ *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var public jose.JSONWebKeySet
	for _, key := range i.keys {
		public.Keys = append(public.Keys, key.Public())
	}
	_ = json.NewEncoder(w).Encode(public)
}

func (i *issuer) token(w http.ResponseWriter, r *http.Request) {
	session := &oauth2.JWTSession{
		JWTClaims: &jwt.JWTClaims{Issuer: i.url, Extra: map[string]any{"org_id": "org-abc"}},
		JWTHeader: &jwt.Headers{Extra: map[string]any{"kid": i.current().KeyID}},
	}
	request, err := i.provider.NewAccessRequest(r.Context(), r, session)
	if err != nil {
		i.provider.WriteAccessError(r.Context(), w, request, err)
		return
	}
	session.JWTClaims.Subject = request.GetClient().GetID()
	request.GrantAudience("tink")
	response, err := i.provider.NewAccessResponse(r.Context(), request)
	if err != nil {
		i.provider.WriteAccessError(r.Context(), w, request, err)
		return
	}
	i.provider.WriteAccessResponse(r.Context(), w, request, response)
}

// sign signs any claims by the key of now.
func (i *issuer) sign(w http.ResponseWriter, r *http.Request) {
	var claims jwt.MapClaims
	if err := json.NewDecoder(r.Body).Decode(&claims); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, _, err := i.signer.Generate(r.Context(), claims, &jwt.Headers{Extra: map[string]any{"kid": i.current().KeyID}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, text)
}

// rotate signs by a new key from now on. The one before is still listed, older ones are not.
func (i *issuer) rotate() error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{
		Key: private, KeyID: fmt.Sprint(time.Now().UnixNano()), Algorithm: string(jose.ES256), Use: "sig",
	})
	i.keys = i.keys[max(0, len(i.keys)-2):]
	return nil
}

func (i *issuer) current() *jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	key := i.keys[len(i.keys)-1]
	return &key
}

func (i *issuer) away(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}
