package edge_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
	"github.com/tinkerbell/stack/test/e2e/tink"

	"google.golang.org/grpc"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

const (
	tinkHost  = "tinkerbell-server.orch.example.org"
	filesHost = "tinkerbell-nginx.orch.example.org"
	proxyUser = 65532 // the user of stack-proxy in the lab
	workflow  = "w1"
	workerID  = "edge-node-001"
	bigSize   = 64 << 20 // does not fit into what sockets buffer
)

// site is a lab in which stack-proxy is the outer edge by docs/examples/edge.yaml, word for word: certificates in
// /certs, an issuer that is found by its name, Tink Server behind h2c, and a client on the LAN.
type site struct {
	*lab.Lab
	dir       string // certs/, routes/ and artifacts/, as mounted
	authority *authority
	roots     *x509.CertPool
	issuer    provider
	worker    string // network namespace

	mu   sync.Mutex
	seen []metadata.MD // by Tink Server
}

func newSite(t *testing.T) *site {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: it starts a lab")
	}
	s := &site{dir: t.TempDir(), authority: newAuthority(t)}
	s.roots = x509.NewCertPool()
	s.roots.AddCert(s.authority.cert)
	for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // another user reads it
			t.Fatal(err)
		}
	}
	s.write(t, "roots/ca-certificates.crt", s.authority.pem)
	s.write(t, "artifacts/hook.ipxe", []byte("#!ipxe\nboot\n"))
	s.write(t, "artifacts/big.img", make([]byte, bigSize))
	s.write(t, "routes/edge.yaml", []byte("preset: classic\n"))
	s.certificates(t)
	s.Lab = lab.ForTest(t, lab.Options{
		Without:   []string{lab.RA, lab.Smee, lab.Hegel, lab.BroadcastInit, lab.DHCPRelay},
		Artifacts: filepath.Join(s.dir, "artifacts"),
		Env:       map[string][]string{lab.StackProxy: {"STACK_PROXY_ROUTES_FILE=/routes/edge.yaml"}},
		Security: map[string]*lab.Security{lab.StackProxy: {UID: proxyUser, Mounts: map[string]string{
			"/artifacts": filepath.Join(s.dir, "artifacts"), "/routes": filepath.Join(s.dir, "routes"),
			"/certs":         filepath.Join(s.dir, "certs"),
			"/etc/ssl/certs": filepath.Join(s.dir, "roots"), // as in the image
		}}},
	})
	keycloak := s.authority.issue(t, true, issuerHost)
	if program := os.Getenv("EDGE_ISSUER"); program != "" { // make test-issuer
		s.issuer = startFosite(t, s, program, keycloak)
	} else {
		s.issuer = serveIssuer(t, s.listen(t, lab.RoleHegel, netip.AddrPortFrom(lab.HegelIP, 443)), keycloak.pair(t))
	}
	if err := s.SetRecord(issuerHost, lab.HegelIP); err != nil {
		t.Fatal(err)
	}
	s.tinkServer(t)
	var err error
	if s.worker, err = s.AddHost("worker", net.HardwareAddr{0x52, 0x54, 0, 0, 4, 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Configure(s.worker, netip.MustParsePrefix("192.0.2.50/24"), lab.GatewayIP); err != nil {
		t.Fatal(err)
	}
	// The proxy runs already. The one file makes it the outer edge.
	example, err := os.ReadFile("../../../docs/examples/edge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, string(example))
	return s
}

// apply replaces the routes file, and waits until it is in force and ready.
func (s *site) apply(t *testing.T, routes string) {
	t.Helper()
	before := s.metric(t, `stack_proxy_config_reloads_total{result="ok"}`)
	s.write(t, "routes/edge.yaml", []byte(routes))
	s.await(t, "the reload", func() bool {
		return s.metric(t, `stack_proxy_config_reloads_total{result="ok"}`) != before && s.page(t, "/readyz") == "ok\n"
	})
}

func (s *site) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	progress.Await(t, what, func() error {
		if !ok() {
			return errors.New("/readyz says " + s.page(t, "/readyz"))
		}
		return nil
	})
}

// write replaces a file, as the kubelet does: in one step.
func (s *site) write(t *testing.T, name string, text []byte) {
	t.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// certificates makes those of the two hosts, as one wildcard, anew: by ECDSA, and by RSA for iPXE, which also wants to
// be shown the root.
func (s *site) certificates(t *testing.T) {
	t.Helper()
	for name, elliptic := range map[string]bool{"tls": true, "rsa": false} {
		made := s.authority.issue(t, elliptic, "*.orch.example.org")
		if !elliptic {
			made.cert = append(made.cert, s.authority.pem...)
		}
		s.write(t, "certs/"+name+".crt", made.cert)
		s.write(t, "certs/"+name+".key", made.key)
	}
}

func (s *site) listen(t *testing.T, role string, at netip.AddrPort) net.Listener {
	t.Helper()
	var listener net.Listener
	if err := s.Do(role, func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return listener
}

// tinkServer serves Tink's WorkflowService without TLS, and notes what each call brought.
func (s *site) tinkServer(t *testing.T) {
	t.Helper()
	server := tink.NewGRPC(&tink.Server{Workflows: map[string][]tink.Workflow{
		workerID: {{ID: workflow, Actions: []tink.Action{{Name: "stream-image"}, {Name: "reboot"}}}, {ID: "w2"}},
	}}, grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, info.Header)
		return ctx, nil
	}))
	listener := s.listen(t, lab.RoleTink, netip.AddrPortFrom(lab.TinkIP, 42113))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-ended
	})
}

// lastSeen is what Tink Server was told by the last call, and how many there were.
func (s *site) lastSeen() (metadata.MD, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return nil, 0
	}
	return s.seen[len(s.seen)-1], len(s.seen)
}

// dial connects to the service IP's 443 from the LAN, whatever the name.
func (s *site) dial(ctx context.Context) (net.Conn, error) {
	return s.Dial(s.worker)(ctx, "tcp", netip.AddrPortFrom(lab.ServiceIP, 443).String())
}

// page reads a page of the proxy's admin port.
func (s *site) page(t *testing.T, path string) string {
	t.Helper()
	answer, err := s.Client(lab.RolePod).Get("http://" + netip.AddrPortFrom(lab.PodIP, lab.ProxyAdminPort).String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// metric is a sample's value, empty where there is none.
func (s *site) metric(t *testing.T, series string) string {
	t.Helper()
	for line := range strings.Lines(s.page(t, "/metrics")) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// client speaks HTTP to the edge.
func (s *site) client(t *testing.T, protocol string) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetHTTP1(protocol == "http/1.1")
	protocols.SetHTTP2(protocol == "h2")
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx) },
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: progress.Transport{
		RoundTripper: transport, Patience: progress.Patience{Quiet: time.Minute},
	}}
}

// authority signs the site's certificates.
type authority struct {
	cert *x509.Certificate
	key  *rsa.PrivateKey // iPXE knows no ECDSA
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := template("the site's authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

// issued is a certificate and its key, in PEM.
type issued struct{ cert, key []byte }

func (i issued) pair(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(i.cert, i.key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func (a *authority) issue(t *testing.T, byECDSA bool, name string) issued {
	t.Helper()
	var private crypto.Signer
	var err error
	if byECDSA {
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	template := template(name)
	template.DNSNames = []string{name}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return issued{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}
}
