package jwt

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/time/rate"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/internal/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start makes a verifier and runs it for the test.
func start(t testing.TB, c Config, o Options) *Verifier {
	t.Helper()
	v, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = v.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return v
}

// echo is the backend: it says which headers it saw.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	for name, values := range r.Header {
		w.Header()["Saw-"+name] = values
	}
})

func ask(h http.Handler, header http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header = header
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func bearing(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func configOf(i *issuer) Config { return Config{Issuer: i.URL, Audience: []string{"tink"}} }

func goodClaims(i *issuer) claims {
	now := time.Now()
	return claims{
		"iss": i.URL, "aud": []string{"other", "tink"}, "sub": "user-123", "exp": now.Add(time.Hour).Unix(),
		"nbf": now.Unix(), "org_id": "org-abc",
	}
}

func TestEveryAlgorithm(t *testing.T) {
	i := newIssuer(t)
	c := configOf(i)
	c.Algorithms = algorithms
	var keys []jose.JSONWebKey
	for _, a := range algorithms {
		keys = append(keys, newKey(t, "key-"+a, a))
	}
	i.set(keys...)
	v := start(t, c, Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	for n, k := range keys {
		if got := ask(h, bearing(sign(t, k, goodClaims(i), nil))); got.Code != http.StatusOK {
			t.Errorf("%s: got %d %s", algorithms[n], got.Code, got.Body)
		}
	}
	// Without a kid, the key that fits the algorithm is found.
	k := keys[6]
	k.KeyID = ""
	if got := ask(h, bearing(sign(t, k, goodClaims(i), nil))); got.Code != http.StatusOK {
		t.Errorf("no kid: got %d %s", got.Code, got.Body)
	}
}

func TestOtherPlacesForTokens(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	v := start(t, configOf(i), Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	token := sign(t, k, goodClaims(i), nil)
	for name, header := range map[string]http.Header{
		"none":   {},
		"basic":  {"Authorization": {"Basic dTpw"}},
		"two":    {"Authorization": {"Bearer " + token, "Bearer x"}},
		"cookie": {"Cookie": {"token=" + token}},
		"proxy":  {"Proxy-Authorization": {"Bearer " + token}},
		"naked":  {"Authorization": {token}},
		"comma":  {"Authorization": {"Bearer " + token + ",Bearer x"}},
	} {
		w := ask(h, header)
		if w.Code != http.StatusUnauthorized || !strings.HasPrefix(w.Header().Get("Www-Authenticate"), `Bearer realm="stack"`) {
			t.Errorf("%s: got %d %v", name, w.Code, w.Header())
		}
	}
	if got := ask(h, http.Header{"Authorization": {"bearer  " + token}}).Code; got != http.StatusOK {
		t.Errorf("the scheme is not case-sensitive: got %d", got)
	}
}

func TestAnswers(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	c := configOf(i)
	c.Claims = map[string][]string{"role": {"admin"}}
	registry := prometheus.NewPedanticRegistry()
	v := start(t, c, Options{Route: "tink", Metrics: NewMetrics(registry)})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	call := func(token string, grpc bool) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header = bearing(token)
		if grpc {
			r.ProtoMajor = 2
			r.Header.Set("Content-Type", "application/grpc")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	stale := sign(t, k, goodClaims(i).with("exp", 1), nil)
	w := call(stale, false)
	want := `Bearer realm="stack", error="invalid_token", error_description="the token has expired"`
	if w.Code != http.StatusUnauthorized || w.Header().Get("Www-Authenticate") != want {
		t.Errorf("expired: got %d %v", w.Code, w.Header())
	}
	w = call(stale, true)
	if w.Code != http.StatusOK || w.Header().Get("Grpc-Status") != "16" ||
		w.Header().Get("Grpc-Message") != "the token has expired" {
		t.Errorf("expired, gRPC: got %d %v", w.Code, w.Header())
	}
	w = call(sign(t, k, goodClaims(i), nil), false)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Header().Get("Www-Authenticate"), "insufficient_scope") {
		t.Errorf("forbidden: got %d %v", w.Code, w.Header())
	}
	w = call(sign(t, k, goodClaims(i), nil), true)
	if w.Header().Get("Grpc-Status") != "7" {
		t.Errorf("forbidden, gRPC: got %d %v", w.Code, w.Header())
	}
	admin := sign(t, k, goodClaims(i).with("role", "admin"), nil)
	for range 3 {
		if w := call(admin, true); w.Code != http.StatusOK || w.Header().Get("Grpc-Status") != "" {
			t.Errorf("admin: got %d %v", w.Code, w.Header())
		}
	}
	for result, want := range map[outcome]float64{expired: 2, forbidden: 2, passed: 3} {
		if got := testutil.ToFloat64(v.metrics.checks[result]); got != want {
			t.Errorf("%v counted %v times, want %v", result, got, want)
		}
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func TestClaimsAndHeaders(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	c := configOf(i)
	c.Claims = map[string][]string{
		"realm_access.roles": {"provision", "admin"}, "scope": {"tink:write"}, "email_verified": {"true"}, "org_id": nil,
	}
	c.Forward = map[string]string{
		"x-user": "sub", "X-Org": "org_id", "X-Roles": "realm_access.roles", "X-Name": "name", "X-Level": "level",
		"X-Odd": "odd", "X-Absent": "absent", "X-Evil": "evil", "X-Address": "address",
	}
	v := start(t, c, Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	good := goodClaims(i).with("scope", "openid tink:write").with("email_verified", true).
		with("realm_access", map[string]any{"roles": []string{"view", "admin"}}).
		with("name", "José 100%").with("level", 12345678901234567).with("odd", []any{"a,b", 1}).
		with("evil", "x\r\nX-Admin: yes").with("address", map[string]any{"c": "DE"})
	header := bearing(sign(t, k, good, nil))
	for name, value := range map[string]string{
		"X-User": "root", "X_user": "root", "X-Absent": "forged", "X-Org_": "other", "X-Kept": "kept",
	} {
		header[name] = []string{value}
	}
	w := ask(h, header)
	if w.Code != http.StatusOK {
		t.Fatalf("got %d %v", w.Code, w.Header())
	}
	want := http.Header{
		"Saw-Authorization": header["Authorization"], "Saw-X-User": {"user-123"}, "Saw-X-Org": {"org-abc"}, "Saw-X-Roles": {"view,admin"},
		"Saw-X-Name": {"Jos%C3%A9%20100%25"}, "Saw-X-Level": {"12345678901234567"}, "Saw-X-Odd": {`["a,b",1]`},
		"Saw-X-Evil": {"x%0D%0AX-Admin:%20yes"}, "Saw-X-Address": {`{"c":"DE"}`}, "Saw-X-Kept": {"kept"},
		"Saw-X-Org_": {"other"},
	}
	if diff := cmp.Diff(want, w.Header()); diff != "" {
		t.Errorf("the backend's headers differ (-want +got):\n%s", diff)
	}
	for name, c := range map[string]claims{
		"no role":       good.with("realm_access", map[string]any{"roles": []string{"view"}}),
		"roles absent":  good.with("realm_access", nil),
		"roles is text": good.with("realm_access", "admin"),
		"scope":         good.with("scope", "tink:writer"),
		"not verified":  good.with("email_verified", false),
		"no org":        good.with("org_id", nil),
	} {
		if got := ask(h, bearing(sign(t, k, c, nil))).Code; got != http.StatusForbidden {
			t.Errorf("%s: got %d", name, got)
		}
	}
}

// TestTokenWithoutSubjectPassesUnlessAskedFor, as docs/edge.md says.
func TestTokenWithoutSubjectPassesUnlessAskedFor(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	nobody := goodClaims(i)
	delete(nobody, "sub")
	for want, wanted := range map[int]map[string][]string{
		http.StatusOK: nil, http.StatusForbidden: {"sub": {}},
	} {
		c := configOf(i)
		c.Claims, c.Forward = wanted, map[string]string{"X-Subject": "sub"}
		v := start(t, c, Options{})
		testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
		header := bearing(sign(t, k, nobody, nil))
		header.Set("X-Subject", "root")
		w := ask(v.Wrap(echo), header)
		if w.Code != want || w.Header().Get("Saw-X-Subject") != "" {
			t.Errorf("got %d %v, want %d", w.Code, w.Header(), want)
		}
	}
}

// TestRotation replaces the keys while many ask: whoever has a token of a key that the issuer lists gets through.
func TestRotation(t *testing.T) {
	i := newIssuer(t)
	i.delay = time.Millisecond
	c := configOf(i)
	old := newKey(t, "0", "ES256")
	i.set(old)
	v := start(t, c, Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	var refused, asked atomic.Int64
	for n := 1; n <= 2*budgetMost; n++ {
		fresh := newKey(t, fmt.Sprint(n), "ES256")
		i.set(old, fresh)
		tokens := []string{sign(t, old, goodClaims(i), nil), sign(t, fresh, goodClaims(i), nil)}
		var clients sync.WaitGroup
		for client := range 20 {
			clients.Go(func() {
				for turn := range 10 {
					asked.Add(1)
					if w := ask(h, bearing(tokens[(client+turn)%2])); w.Code != http.StatusOK {
						refused.Add(1)
						t.Logf("rotation %d: %d %s", n, w.Code, w.Body)
					}
				}
			})
		}
		clients.Wait()
		old = fresh
	}
	if refused.Load() != 0 {
		t.Errorf("%d of %d were refused", refused.Load(), asked.Load())
	}
	// A key that is taken off the list is refused as soon as the list is read.
	gone := sign(t, old, goodClaims(i), nil)
	if got := ask(h, bearing(gone)).Code; got != http.StatusOK {
		t.Errorf("got %d", got)
	}
	last := newKey(t, "last", "ES256")
	i.set(last)
	v.source.mu.Lock()
	v.source.budget = newBudget()
	v.source.mu.Unlock()
	if got := ask(h, bearing(sign(t, last, goodClaims(i), nil))).Code; got != http.StatusOK {
		t.Errorf("got %d", got)
	}
	v.source.mu.Lock()
	v.source.budget = rate.NewLimiter(0, 0)
	v.source.mu.Unlock()
	if got := ask(h, bearing(gone)).Code; got != http.StatusUnauthorized {
		t.Errorf("a token of a revoked key: got %d", got)
	}
}

func TestUnknownKeysDoNotFloodTheIssuer(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	v := start(t, configOf(i), Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	before := i.count()
	h := v.Wrap(echo)
	var clients sync.WaitGroup
	for client := range 20 {
		clients.Go(func() {
			made := newKey(t, fmt.Sprintf("made-up-%d", client), "ES256")
			for range 10 {
				if got := ask(h, bearing(sign(t, made, goodClaims(i), nil))).Code; got != http.StatusUnauthorized {
					t.Errorf("got %d", got)
				}
			}
		})
	}
	clients.Wait()
	// Each refresh is two requests, for the discovery and the keys.
	if got := i.count() - before; got > 2*(budgetMost+1) {
		t.Errorf("200 made up keys caused %d requests", got)
	}
	if got := ask(h, bearing(sign(t, k, goodClaims(i), nil))).Code; got != http.StatusOK {
		t.Errorf("a good token meanwhile: got %d", got)
	}
}

func TestIssuerDown(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	i.fail(true)
	registry := prometheus.NewPedanticRegistry()
	v := start(t, configOf(i), Options{Route: "tink", Metrics: NewMetrics(registry)})
	h := v.Wrap(echo)
	testwait.Until(t, "a failure", func() bool { return v.Ready() != nil && strings.Contains(v.Ready().Error(), "status 502") })
	token := sign(t, k, goodClaims(i), nil)
	if w := ask(h, bearing(token)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("without keys: got %d", w.Code)
	}
	if w := ask(h, http.Header{}); w.Code != http.StatusUnauthorized {
		t.Errorf("without a token: got %d", w.Code)
	}
	i.fail(false)
	testwait.Until(t, "recovery", func() bool { return v.Ready() == nil })
	i.fail(true)
	v.source.await(t.Context())
	testwait.Until(t, "a counted failure", func() bool { return testutil.ToFloat64(v.metrics.refreshes[1]) >= 2 })
	if w := ask(h, bearing(token)); w.Code != http.StatusOK || v.Ready() != nil {
		t.Errorf("the keys that were good do not go on: got %d, %v", w.Code, v.Ready())
	}
}

// TestPrivateCA fetches keys by TLS of a certificate that only the settings trust, and whose CA is replaced.
func TestPrivateCA(t *testing.T) {
	i := &issuer{}
	i.Server = httptest.NewTLSServer(i)
	t.Cleanup(i.Close)
	k := newKey(t, "k", "ES256")
	i.set(k)
	c := configOf(i)
	c.CA = filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(c.CA, []byte("not yet"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := start(t, c, Options{})
	testwait.Until(t, "a failure", func() bool { return v.Ready() != nil && strings.Contains(v.Ready().Error(), "no certificate") })
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw})
	if err := os.WriteFile(c.CA, text, 0o600); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "trust", func() bool { return v.Ready() == nil })
	if got := ask(v.Wrap(echo), bearing(sign(t, k, goodClaims(i), nil))).Code; got != http.StatusOK {
		t.Errorf("got %d", got)
	}
	stranger := configOf(i) // trusts the system's
	s := start(t, stranger, Options{})
	testwait.Until(t, "a refusal", func() bool { return s.Ready() != nil && strings.Contains(s.Ready().Error(), "certificate") })
}

func TestKeysByFile(t *testing.T) {
	i := newIssuer(t)
	name := filepath.Join(t.TempDir(), "jwks.json")
	c := configOf(i)
	c.Issuer, c.JWKS = "me", name
	v := start(t, c, Options{})
	write := func(k jose.JSONWebKey) {
		t.Helper()
		text, err := k.Public().MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name+".new", []byte(`{"keys":[`+string(text)+`]}`), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
	a, b := newKey(t, "a", "EdDSA"), newKey(t, "b", "RS256")
	write(a)
	testwait.Until(t, "reading the file", func() bool { return v.Ready() == nil })
	h := v.Wrap(echo)
	mine := goodClaims(i).with("iss", "me")
	if got := ask(h, bearing(sign(t, a, mine, nil))).Code; got != http.StatusOK {
		t.Errorf("got %d", got)
	}
	write(b)
	if got := ask(h, bearing(sign(t, b, mine, nil))).Code; got != http.StatusOK {
		t.Errorf("a key that the file has by now: got %d", got)
	}
	if got := ask(h, bearing(sign(t, a, mine, nil))).Code; got != http.StatusUnauthorized {
		t.Errorf("a key that the file had: got %d", got)
	}
}

func TestWriterIsPassedOn(t *testing.T) {
	i := newIssuer(t)
	k := newKey(t, "k", "ES256")
	i.set(k)
	v := start(t, configOf(i), Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	server := httptest.NewServer(v.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no ReadFrom: no sendfile")
		}
	})))
	defer server.Close()
	r, _ := http.NewRequest(http.MethodGet, server.URL, nil)
	r.Header = bearing(sign(t, k, goodClaims(i), nil))
	answer, err := server.Client().Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("got %v, %v", answer, err)
	}
	answer.Body.Close()
}

func TestValidate(t *testing.T) {
	text := `
issuer: me
audience: [""]
algorithms: [HS256, none]
forward: {Host: sub, X-Forwarded-For: sub, "a b": sub, X_user: sub, X-A: "", grpc-status: x}
`
	var c Config
	if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	err := c.Validate()
	for _, want := range []string{
		"audience: one is empty", "jwks: missing", `algorithms[0]: "HS256"`, `algorithms[1]: "none"`, "forward: Host",
		"forward: X-Forwarded-For", `forward: "a b"`, `forward: "X_user"`, "forward: X-A has", "forward: Grpc-Status",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	if _, err := New(Config{}, Options{}); err == nil || !strings.Contains(err.Error(), "issuer: missing") ||
		!strings.Contains(err.Error(), "audience: missing") {
		t.Errorf("got %v", err)
	}
	if err := (&Config{Issuer: "x", Audience: []string{"a"}, JWKS: "keys.json"}).Validate(); err == nil {
		t.Error("a relative path was accepted")
	}
}

func FuzzToken(f *testing.F) {
	i := newIssuer(f)
	k := newKey(f, "k", "ES256")
	i.set(k)
	v := start(f, configOf(i), Options{})
	testwait.Until(f, "fetching keys", func() bool { return v.Ready() == nil })
	v.source.mu.Lock()
	v.source.budget = rate.NewLimiter(0, 0)
	v.source.mu.Unlock()
	token := sign(f, k, goodClaims(i), nil)
	f.Add("Bearer " + token)
	f.Add("Bearer eyJhbGciOiJub25lIn0.e30.")
	f.Add("bearer a.b.c")
	h := v.Wrap(echo)
	f.Fuzz(func(t *testing.T, value string) {
		w := ask(h, http.Header{"Authorization": {value}})
		if w.Code == http.StatusOK && !strings.HasSuffix(strings.TrimRight(value, " "), token) {
			t.Errorf("accepted %q", value)
		}
	})
}

func FuzzKeys(f *testing.F) {
	for _, a := range []string{"RS256", "ES256", "EdDSA", "HS256"} {
		k := newKey(f, a, a)
		if a != "HS256" {
			k = k.Public()
		}
		text, err := k.MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(`{"keys":[` + string(text) + `]}`)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := parseKeys([]byte(text))
		if (err == nil) != (set != nil) || err == nil && len(set.keys) == 0 {
			t.Errorf("got %v, %v", set, err)
		}
	})
}

// TestNoRedirectToHTTP: keys that were asked for by https are not fetched by http.
func TestNoRedirectToHTTP(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("asked by http") }))
	defer plain.Close()
	secure := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer secure.Close()
	s := newSource(Config{}, slog.New(slog.DiscardHandler), nil)
	s.client.Transport = secure.Client().Transport
	if _, err := s.get(t.Context(), secure.URL); err == nil || !strings.Contains(err.Error(), "from https to http") {
		t.Errorf("got %v", err)
	}
}
