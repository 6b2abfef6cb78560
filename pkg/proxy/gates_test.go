package proxy

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
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	josejwt "github.com/go-jose/go-jose/v4/jwt"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testcert"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/route"
)

const (
	tinkHost  = "tinkerbell-server.orch.example.org"
	filesHost = "tinkerbell-nginx.orch.example.org"
)

// outside is what stands around the seeds' outer edge: clients, an issuer of tokens, Tink Server.
type outside struct {
	proxy testProxy
	addr  netip.AddrPort
	dir   string
	roots *x509.CertPool
	key   jose.JSONWebKey
	text  string                       // of the routes file
	seen  atomic.Pointer[http.Request] // by Tink Server
	iss   string
}

const edgeRoutes = `
routes:
- name: tink
  protocol: grpc
  listen: LISTEN
  hosts: ` + tinkHost + `
  backends: TINK
  tls: {certificates: {certificate: DIR/tls.crt, key: DIR/tls.key}, minVersion: "1.3"}
  jwt:
    issuer: ISSUER
    audience: tink
    forward: {X-Auth-Subject: sub, X-Auth-Org: org_id}
- name: os
  protocol: files
  listen: LISTEN
  hosts: ` + filesHost + `
  tls: {certificates: {certificate: DIR/tls.crt, key: DIR/tls.key}}
  limits: {requests: {preset: files, perClient: {perSecond: 500, burst: BURST}}}
  rewrite: {regex: "/tink-stack(/|$)(.*)", replacement: /$2}
  files: {directory: DIR/files}
`

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{dir: t.TempDir(), addr: free(t).AddrPort()}
	o.certificate(t)
	o.text = strings.NewReplacer("LISTEN", o.addr.String(), "TINK", o.tinkServer(t), "ISSUER", o.issuer(t), "DIR", o.dir).
		Replace(edgeRoutes)
	if err := os.Mkdir(filepath.Join(o.dir, "files"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.dir, "files", "hook.ipxe"), []byte("#!ipxe\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.proxy = start(t, Options{Table: o.table(t, "100")})
	testwait.Success(t, "the proxy is ready", o.proxy.Ready)
	return o
}

func (o *outside) table(t *testing.T, burst string) route.Table {
	t.Helper()
	made, err := route.Parse([]byte(strings.ReplaceAll(o.text, "BURST", burst)),
		route.Defaults{Drain: setting.Duration(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (o *outside) certificate(t *testing.T) {
	t.Helper()
	o.certificateFor(t, time.Hour)
}

// certificateFor makes a certificate that ends so much later.
func (o *outside) certificateFor(t *testing.T, validity time.Duration) {
	t.Helper()
	var cert tls.Certificate
	cert, o.roots = testcert.SelfSigned(t, elliptic.P256(), validity, "*.orch.example.org")
	testcert.Write(t, o.dir, cert)
}

func (o *outside) issuer(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o.key = jose.JSONWebKey{Key: key, KeyID: "1", Algorithm: "ES256"}
	var server *httptest.Server
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{o.key.Public()}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"})
	}))
	t.Cleanup(server.Close)
	o.iss = server.URL
	return server.URL
}

func (o *outside) token(t *testing.T) string { return o.tokenFor(t, time.Hour) }

func (o *outside) tokenFor(t *testing.T, lives time.Duration) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: o.key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := josejwt.Signed(signer).Claims(map[string]any{
		"iss": o.iss, "aud": "tink", "sub": "user-123", "org_id": "org-abc", "exp": time.Now().Add(lives).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// tinkServer echoes by h2c, with a gRPC status in the trailer.
func (o *outside) tinkServer(t *testing.T) string {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.seen.Store(r.Clone(context.Background()))
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	}))
	server.Config.Protocols = &protocols
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func (o *outside) client(t *testing.T, maxVersion uint16, protocol string) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(protocol == "http/1.1")
	protocols.SetHTTP2(protocol == "h2")
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: o.roots, MaxVersion: maxVersion}, Protocols: &protocols,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, o.addr.String())
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func (o *outside) call(t *testing.T, c *http.Client, token string) (*http.Response, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		"https://"+tinkHost+"/proto.v1.WorkflowService/GetWorkflowContexts", bytes.NewReader([]byte("message")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Te", "trailers")
	r.Header.Set("X-Auth-Subject", "root") // a lie
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := c.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer, string(body), err
}

// get asks for a file, and returns the status and what came.
func (o *outside) get(t *testing.T, c *http.Client, path string) (int, string) {
	t.Helper()
	answer, err := c.Get("https://" + filesHost + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

// TestSeedsOuterEdge is both paths of the first seed, by one routes file on one port.
func TestSeedsOuterEdge(t *testing.T) {
	o := newOutside(t)
	h2 := o.client(t, 0, "h2")

	answer, body, err := o.call(t, h2, o.token(t))
	if err != nil || body != "message" || answer.Trailer.Get("Grpc-Status") != "0" || answer.TLS.Version != tls.VersionTLS13 {
		t.Fatalf("got %v %q, %v", answer, body, err)
	}
	seen := o.seen.Load()
	if seen.ProtoMajor != 2 || seen.Header.Get("X-Auth-Subject") != "user-123" || seen.Header.Get("X-Auth-Org") != "org-abc" ||
		seen.Header.Get("X-Forwarded-Proto") != "https" || seen.Header.Get("X-Forwarded-For") != "127.0.0.1" {
		t.Errorf("Tink Server saw %s %v", seen.Proto, seen.Header)
	}
	for name, token := range map[string]string{"no token": "", "made up": "a.b.c", "expired": o.tokenFor(t, -time.Hour)} {
		answer, _, err := o.call(t, h2, token)
		if err != nil || answer.Header.Get("Grpc-Status") != "16" {
			t.Errorf("%s: got %v, %v; want UNAUTHENTICATED", name, answer, err)
		}
	}
	if _, _, err := o.call(t, o.client(t, tls.VersionTLS12, "h2"), o.token(t)); err == nil {
		t.Error("TLS 1.2 where the route asks for 1.3")
	}
	if answer, _, err := o.call(t, o.client(t, 0, "http/1.1"), o.token(t)); err != nil ||
		answer.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Errorf("gRPC over HTTP/1.1: got %v, %v", answer, err)
	}

	for _, c := range []*http.Client{o.client(t, tls.VersionTLS12, "http/1.1"), o.client(t, 0, "http/1.1"), o.client(t, 0, "h2")} {
		for path, want := range map[string]int{
			"/tink-stack/hook.ipxe": http.StatusOK, "/hook.ipxe": http.StatusNotFound, "/tink-stack/": http.StatusNotFound,
			"/tink-stacks/hook.ipxe": http.StatusNotFound, "/tink-stack/../tls.key": http.StatusNotFound, "/tink-stack/%2e%2e/tls.key": http.StatusNotFound,
		} {
			if code, body := o.get(t, c, path); code != want || want == http.StatusOK && body != "#!ipxe\n" {
				t.Errorf("%s: got %d %q", path, code, body)
			}
		}
	}
	for host, want := range map[string]string{filesHost: "http/1.1", tinkHost: "h2"} {
		conn, err := tls.Dial("tcp", o.addr.String(), &tls.Config{
			RootCAs: o.roots, ServerName: host, NextProtos: []string{"h2", "http/1.1"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%s: a client that speaks both was given %q, want %q", host, got, want)
		}
		_ = conn.Close()
	}
	// Another name than the connection's: the other route must not be reached past its own TLS.
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+filesHost+"/tink-stack/hook.ipxe", nil)
	r.Host = tinkHost
	elsewhere, err := o.client(t, 0, "http/1.1").Do(r)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere.Body.Close()
	if elsewhere.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("another name: got %d", elsewhere.StatusCode)
	}
	refused := 0
	for range 400 {
		if code, _ := o.get(t, h2, "/tink-stack/hook.ipxe"); code == http.StatusTooManyRequests {
			refused++
		}
	}
	if _, _, err := o.call(t, h2, o.token(t)); err != nil {
		t.Errorf("the other route shares the limit: %v", err)
	}
	t.Logf("%d of 400 files in a row were refused", refused)
}

// TestEdgeReload changes one route's limit and a certificate while a connection is open.
func TestEdgeReload(t *testing.T) {
	o := newOutside(t)
	c := o.client(t, 0, "h2")
	if code, _ := o.get(t, c, "/tink-stack/hook.ipxe"); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	before := o.proxy.gates["tink"]
	if err := o.proxy.Apply(t.Context(), o.table(t, "1")); err != nil {
		t.Fatal(err)
	}
	if o.proxy.gates["tink"] != before {
		t.Error("the gate of a route that did not change is another")
	}
	passed := 0
	for range 50 {
		if code, _ := o.get(t, c, "/tink-stack/hook.ipxe"); code == http.StatusOK {
			passed++
		}
	}
	if passed == 50 {
		t.Error("the new limit is not in force")
	}
	if _, body, err := o.call(t, o.client(t, 0, "h2"), o.token(t)); err != nil || body != "message" {
		t.Errorf("got %q, %v", body, err)
	}
	// The routes part: each has its own port, and the files lose their TLS.
	next := o.table(t, "100")
	next.Routes[1].TLS, next.Routes[1].Hosts, next.Routes[1].Listen = nil, nil, []route.Listen{free(t)}
	if err := o.proxy.Apply(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	answer, err := http.Get("http://" + next.Routes[1].Listen[0].String() + "/tink-stack/hook.ipxe")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("got %d", answer.StatusCode)
	}
	if _, body, err := o.call(t, o.client(t, 0, "h2"), o.token(t)); err != nil || body != "message" {
		t.Errorf("got %q, %v", body, err)
	}
}

// secureServer is tinkServer by TLS.
func (o *outside) secureServer(t *testing.T) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(o.dir, "tls.crt"), filepath.Join(o.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.Copy(w, r.Body)
		w.Header().Set("Grpc-Status", "0")
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.EnableHTTP2, server.TLS = true, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestBackendTLS reaches the outer edge's files through another proxy, by TLS, and a gRPC server with TLS.
func TestBackendTLS(t *testing.T) {
	o := newOutside(t)
	inner, rpc := free(t), free(t)
	backend := backendAt(net.TCPAddrFromAddrPort(o.addr))
	text := strings.NewReplacer("INNER", inner.String(), "RPC", rpc.String(), "BACKEND", backend.String(), "SECURE", o.secureServer(t),
		"DIR", o.dir).Replace(`
routes:
- name: files
  protocol: http
  listen: INNER
  backends: BACKEND
  backendTLS: {ca: DIR/tls.crt, name: ` + filesHost + `}
- name: tink
  protocol: grpc
  listen: RPC
  backends: SECURE
  backendTLS: {ca: DIR/tls.crt, name: ` + tinkHost + `}
`)
	made, err := route.Parse([]byte(text), route.Defaults{Drain: setting.Duration(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	start(t, Options{Table: made})
	get := func() (int, string) {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inner.String()+"/tink-stack/hook.ipxe", nil)
		r.Host = filesHost
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		defer http.DefaultClient.CloseIdleConnections()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body)
	}
	if code, body := get(); code != http.StatusOK || body != "#!ipxe\n" {
		t.Errorf("got %d %q", code, body)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+rpc.String()+"/x", strings.NewReader("message"))
	r.Header.Set("Content-Type", "application/grpc")
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); string(body) != "message" || answer.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("got %d %q %v, %v", answer.StatusCode, body, answer.Header, err)
	}
}
