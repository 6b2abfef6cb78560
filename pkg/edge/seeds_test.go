package edge_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/internal/testcert"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/edge/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	serverHost = "tinkerbell-server.orch.example.org"
	filesHost  = "tinkerbell-nginx.orch.example.org"
)

// site is the seeds' outer edge: one TLS port, and behind it Tink Server by h2c and the files of 8080.
type site struct {
	addr   string
	roots  *x509.CertPool
	key    jose.JSONWebKey
	issuer string
	seen   atomic.Pointer[http.Request] // by Tink Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	dir := t.TempDir()
	s.certificate(t, dir)
	s.identityProvider(t)
	gates := s.gates(t, dir)
	files := filepath.Join(dir, "files")
	if err := os.MkdirAll(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "hook.ipxe"), []byte("#!ipxe\nboot\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	handler := artifacts.New(artifacts.Config{Directory: files})
	t.Cleanup(func() { handler.Close() })
	mux, err := host.New([]host.Hosts{{serverHost}, {filesHost}})
	if err != nil {
		t.Fatal(err)
	}
	routes := []http.Handler{gates["tink"].Wrap(s.tinkServer(t)), gates["files"].Wrap(handler)}
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := mux.Choose(r); at != host.None {
			routes[at].ServeHTTP(w, r)
			return
		}
		mux.Refuse(w, r)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	server := &http.Server{
		Handler: serve, TLSConfig: gates["files"].TLS(), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(l, gates["files"].TLS()))
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return s
}

// gates reads the two routes' settings as a file would have them.
func (s *site) gates(t *testing.T, dir string) map[string]*edge.Gate {
	t.Helper()
	text := strings.NewReplacer("DIR", dir, "ISSUER", s.issuer).Replace(`
tink:
  hosts: [` + serverHost + `]
  jwt:
    issuer: ISSUER
    audience: [tink]
    forward: {X-Auth-Subject: sub, X-Auth-Org: org_id}
files:
  hosts: [` + filesHost + `]
  tls:
    certificates: [{certificate: DIR/tls.crt, key: DIR/tls.key}]
  limit: {preset: files}
  rewrite: {regex: "/tink-stack(/|$)(.*)", replacement: /$2}
`)
	var configs map[string]edge.Config
	if err := yaml.UnmarshalStrict([]byte(text), &configs); err != nil {
		t.Fatal(err)
	}
	metrics := edge.NewMetrics(prometheus.NewPedanticRegistry())
	gates := map[string]*edge.Gate{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, c := range configs {
		g, err := edge.New(c, edge.Options{
			Route: name, Metrics: metrics, Protocols: []string{"h2", "http/1.1"},
			Client: func(r *http.Request) netip.Addr { return netip.MustParseAddrPort(r.RemoteAddr).Addr() },
		})
		if err != nil {
			t.Fatal(err)
		}
		gates[name] = g
		running.Go(func() { _ = g.Run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for name, g := range gates {
		testwait.Success(t, name+" is ready", g.Ready)
	}
	return gates
}

func (s *site) certificate(t *testing.T, dir string) {
	t.Helper()
	var cert tls.Certificate
	cert, s.roots = testcert.SelfSigned(t, elliptic.P384(), time.Hour, "*.orch.example.org") // a key as the seed's
	testcert.Write(t, dir, cert)
}

// identityProvider is the seed's Keycloak, as far as keys go.
func (s *site) identityProvider(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.key = jose.JSONWebKey{Key: key, KeyID: "1", Algorithm: "ES256", Use: "sig"}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/certs" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{s.key.Public()}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/certs"})
	}))
	t.Cleanup(server.Close)
	s.issuer = server.URL
}

func (s *site) token(t *testing.T, lives time.Duration) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: s.key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := josejwt.Signed(signer).Claims(map[string]any{
		"iss": s.issuer, "aud": "tink", "sub": "user-123", "org_id": "org-abc", "exp": time.Now().Add(lives).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// tinkServer speaks gRPC's way of HTTP/2, without TLS, behind a reverse proxy as the front has it.
func (s *site) tinkServer(t *testing.T) http.Handler {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen.Store(r.Clone(context.Background()))
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_ = http.NewResponseController(w).Flush() // as grpc-go does for a stream: headers before any message
		buffer := make([]byte, 1024)
		for { // a stream: each message is answered when it comes
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(buffer[:n])
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
	}))
	backend.Config.Protocols = &protocols
	backend.Start()
	t.Cleanup(backend.Close)
	target, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: transport, FlushInterval: -1,
	}
}

// client makes HTTP requests to the site whatever the name.
func (s *site) client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: h2,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.addr)
		},
		MaxIdleConnsPerHost: 100,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

const method = "/proto.v1.WorkflowService/GetWorkflowContexts"

// call makes a gRPC call of one message, as bytes.
func (s *site) call(t *testing.T, c *http.Client, token string, body io.Reader) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+serverHost+method, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc+proto")
	r.Header.Set("Te", "trailers")
	r.Header.Set("X-Auth-Subject", "root") // a lie
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer
}

// TestSeedGRPCPath is the first document's section 2: TLS 1.3, the token, h2c to Tink Server, and back.
func TestSeedGRPCPath(t *testing.T) {
	s := newSite(t)
	c := s.client(t, true)
	message := []byte("\x00\x00\x00\x00\x02hi")

	answer := s.call(t, c, s.token(t, time.Hour), bytes.NewReader(message))
	got, err := io.ReadAll(answer.Body)
	if err != nil || !bytes.Equal(got, message) || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %q, trailer %v, %v", got, answer.Trailer, err)
	}
	if answer.TLS.Version != tls.VersionTLS13 || answer.ProtoMajor != 2 {
		t.Errorf("by TLS %x and %s", answer.TLS.Version, answer.Proto)
	}
	seen := s.seen.Load()
	if seen.ProtoMajor != 2 || seen.TLS != nil || seen.URL.Path != method {
		t.Errorf("Tink Server saw %s %s, TLS %t; want h2c", seen.Proto, seen.URL.Path, seen.TLS != nil)
	}
	if got := seen.Header; got.Get("X-Auth-Subject") != "user-123" || got.Get("X-Auth-Org") != "org-abc" {
		t.Errorf("Tink Server saw the claims %v", got)
	}
	for name, token := range map[string]string{"none": "", "expired": s.token(t, -time.Hour), "made up": "a.b.c"} {
		answer := s.call(t, c, token, bytes.NewReader(message))
		if answer.Header.Get("Grpc-Status") != "16" || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d %v, want UNAUTHENTICATED", name, answer.StatusCode, answer.Header)
		}
	}
}

// TestSeedGRPCStream holds a stream open and sees each message pass at once.
func TestSeedGRPCStream(t *testing.T) {
	s := newSite(t)
	reader, writer := io.Pipe()
	answer := s.call(t, s.client(t, true), s.token(t, time.Hour), reader)
	for range 3 {
		if _, err := writer.Write([]byte("message")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 7)
		if _, err := io.ReadFull(answer.Body, got); err != nil || string(got) != "message" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	writer.Close()
	if _, err := io.ReadAll(answer.Body); err != nil || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("trailer %v, %v", answer.Trailer, err)
	}
}

// TestSeedFilePath is the first document's section 3: TLS, the prefix, the limits, a file of 8080; no token.
func TestSeedFilePath(t *testing.T) {
	s := newSite(t)
	for _, h2 := range []bool{false, true} {
		c := s.client(t, h2)
		for path, want := range map[string]int{
			"/tink-stack/hook.ipxe": http.StatusOK, "/hook.ipxe": http.StatusNotFound, "/tink-stack/": http.StatusNotFound,
			"/tink-stacks/hook.ipxe": http.StatusNotFound, "/tink-stack/../tls.key": http.StatusNotFound,
			"/tink-stack/%2e%2e/tls.key": http.StatusNotFound,
		} {
			answer, err := c.Get("https://" + filesHost + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != want || want == http.StatusOK && string(body) != "#!ipxe\nboot\n" {
				t.Errorf("%s: got %d %q", path, answer.StatusCode, body)
			}
		}
	}
	// Another name than the connection's: the other route must not be reached past its own TLS.
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+filesHost+"/tink-stack/hook.ipxe", nil)
	r.Host = serverHost
	answer, err := s.client(t, false).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another name: got %d", answer.StatusCode)
	}
}

// TestSeedLimits sends more than 500 a second after the burst is used up.
func TestSeedLimits(t *testing.T) {
	s := newSite(t)
	c := s.client(t, true)
	var passed, refused atomic.Int64
	start := time.Now()
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			for range 250 {
				answer, err := c.Get("https://" + filesHost + "/tink-stack/hook.ipxe")
				if err != nil {
					t.Error(err)
					return
				}
				answer.Body.Close()
				switch {
				case answer.StatusCode == http.StatusOK:
					passed.Add(1)
				case answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("got %d", answer.StatusCode)
				}
			}
		})
	}
	clients.Wait()
	most := 2500 + int64(500*time.Since(start).Seconds()) + 1
	if passed.Load() > most || passed.Load() < min(2500, most) || passed.Load()+refused.Load() != 5000 {
		t.Errorf("%d passed and %d were refused in %v; want at most %d", passed.Load(), refused.Load(), time.Since(start), most)
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
