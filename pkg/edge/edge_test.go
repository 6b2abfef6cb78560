package edge_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/internal/testcert"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/edge/certs"
	"github.com/tinkerbell/stack/pkg/edge/jwt"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newIssuer has the keys of tokens, and says where they are.
func newIssuer(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private := jose.JSONWebKey{Key: key, KeyID: "1", Algorithm: "ES256", Use: "sig"}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/certs" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{private.Public()}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/certs"})
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestTakeOver replaces a gate while its files are wrong and its issuer is away: what was loaded goes on, unless it
// is asked for elsewhere.
func TestTakeOver(t *testing.T) {
	dir, issuer := t.TempDir(), newIssuer(t)
	cert, _ := testcert.SelfSigned(t, elliptic.P384(), time.Hour, "*.example.org") // a key as the seed's
	testcert.Write(t, dir, cert)
	config := func() edge.Config {
		pair := certs.Pair{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
		return edge.Config{
			TLS:     &certs.Config{Certificates: []certs.Pair{pair}},
			Backend: &certs.Backend{CA: pair.Certificate, Name: "tink.example.org"},
			JWT:     &jwt.Config{Issuer: issuer, Audience: []string{"tink"}},
		}
	}
	first, err := edge.New(config(), edge.Options{Route: "r"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	testwait.Success(t, "the first gate is ready", first.Ready)
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half of it"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		change func(*edge.Config)
		ready  bool
	}{
		"another limit":    {func(c *edge.Config) { c.Limit = &limit.Config{Concurrent: 1} }, true},
		"another claim":    {func(c *edge.Config) { c.JWT.Claims = map[string][]string{"scope": {"x"}} }, true},
		"another issuer":   {func(c *edge.Config) { c.JWT.Issuer = "http://192.0.2.1/" }, false},
		"other keys":       {func(c *edge.Config) { c.JWT.JWKS = "/none" }, false},
		"another version":  {func(c *edge.Config) { c.TLS.MinVersion = "1.3" }, false},
		"another backend":  {func(c *edge.Config) { c.Backend.Name = "files.example.org" }, false},
		"no TLS, no token": {func(c *edge.Config) { *c = edge.Config{Limit: c.Limit} }, true},
	}
	for name, test := range tests {
		c := config()
		test.change(&c)
		next, err := edge.New(c, edge.Options{Route: "r", Before: first})
		if err != nil {
			t.Fatal(err)
		}
		if err := next.Ready(); (err == nil) != test.ready {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryFaultIsNamed(t *testing.T) {
	var c edge.Config
	if err := yaml.UnmarshalStrict([]byte(`
hosts: ["a b"]
tls: {minVersion: "1.1"}
jwt: {ca: /x}
limit: {preset: x}
rewrite: {stripPrefix: x}
`), &c); err != nil {
		t.Fatal(err)
	}
	err := c.Validate()
	for _, want := range []string{
		"hosts[0]: ", "tls.certificates: missing", "tls.minVersion: ", "jwt.issuer: missing", "jwt.audience: missing",
		"limit.preset: ", "rewrite.stripPrefix: ",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	if _, err := edge.New(c, edge.Options{Route: "r"}); err == nil {
		t.Error("accepted")
	}
	if err := (&edge.Config{}).Validate(); err != nil {
		t.Errorf("nothing is asked for: %v", err)
	}
}
