package edge_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/edge/certs"
	"github.com/tinkerbell/stack/pkg/edge/jwt"
	"github.com/tinkerbell/stack/pkg/edge/limit"
)

// TestTakeOver replaces a gate while its files are wrong and its issuer is away: what was loaded goes on, unless it
// is asked for elsewhere.
func TestTakeOver(t *testing.T) {
	var s site
	dir := t.TempDir()
	s.certificate(t, dir)
	s.identityProvider(t)
	config := func() edge.Config {
		pair := certs.Pair{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
		return edge.Config{
			TLS:     &certs.Config{Certificates: []certs.Pair{pair}},
			Backend: &certs.Backend{CA: pair.Certificate, Name: serverHost},
			JWT:     &jwt.Config{Issuer: s.issuer, Audience: []string{"tink"}},
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
		"another backend":  {func(c *edge.Config) { c.Backend.Name = filesHost }, false},
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
