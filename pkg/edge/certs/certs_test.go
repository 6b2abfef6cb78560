package certs

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
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/internal/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs the tests' certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	pool *x509.CertPool
	age  time.Duration // of the certificates that it issues; they are good for an hour
}

var serial atomic.Int64

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

// issue makes a certificate, for names or addresses, and its key.
func (a *authority) issue(t testing.TB, kind string, names ...string) (cert, key []byte) {
	t.Helper()
	var private crypto.Signer
	var err error
	if kind == "RSA" {
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour - a.age), NotAfter: time.Now().Add(time.Hour - a.age),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

func write(t testing.TB, dir, name string, text []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// pair issues a certificate into a directory.
func (a *authority) pair(t testing.TB, dir, name, kind string, names ...string) Pair {
	t.Helper()
	cert, key := a.issue(t, kind, names...)
	return Pair{write(t, dir, name+".crt", cert), write(t, dir, name+".key", key)}
}

// listen serves a few bytes by TLS.
func listen(t testing.TB, config *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), TLSConfig: config,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(tls.NewListener(l, config))
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return l.Addr().String()
}

// dial makes one handshake, and returns what was agreed on.
func dial(t testing.TB, addr string, config *tls.Config) (*tls.ConnectionState, error) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	// With TLS 1.3 the server's opinion of our certificate comes after the handshake.
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if config.NextProtos == nil {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
			return nil, err
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return nil, err
		}
	}
	state := conn.(*tls.Conn).ConnectionState()
	return &state, nil
}

func TestWhichCertificate(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	s, err := New(Config{Certificates: []Pair{
		a.pair(t, dir, "rsa", "RSA", "boot.example.org", "127.0.0.1"),
		a.pair(t, dir, "ecdsa", "ECDSA", "boot.example.org", "127.0.0.1"),
		a.pair(t, dir, "wild", "ECDSA", "*.orch.example.org"),
		a.pair(t, dir, "exact", "ECDSA", "tink.orch.example.org"),
	}}, Options{Protocols: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s.TLS())
	rsaOnly := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	tests := map[string]struct {
		config *tls.Config
		names  string
		kind   x509.PublicKeyAlgorithm
	}{
		"modern":              {&tls.Config{ServerName: "boot.example.org"}, "boot.example.org", x509.ECDSA},
		"RSA only, as iPXE":   {&tls.Config{ServerName: "boot.example.org", CipherSuites: rsaOnly, MaxVersion: 0x303}, "boot.example.org", x509.RSA},
		"upper case":          {&tls.Config{ServerName: "BOOT.example.org"}, "boot.example.org", x509.ECDSA},
		"no name":             {&tls.Config{ServerName: "127.0.0.1"}, "boot.example.org", x509.ECDSA},
		"no name, RSA only":   {&tls.Config{ServerName: "127.0.0.1", CipherSuites: rsaOnly, MaxVersion: 0x303}, "boot.example.org", x509.RSA},
		"another name":        {&tls.Config{ServerName: "else.example.org"}, "boot.example.org", x509.ECDSA},
		"wildcard":            {&tls.Config{ServerName: "files.orch.example.org"}, "*.orch.example.org", x509.ECDSA},
		"exact before wild":   {&tls.Config{ServerName: "tink.orch.example.org"}, "tink.orch.example.org", x509.ECDSA},
		"wildcard, one level": {&tls.Config{ServerName: "a.files.orch.example.org"}, "boot.example.org", x509.ECDSA},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.config.InsecureSkipVerify = true
			state, err := dial(t, addr, test.config)
			if err != nil {
				t.Fatal(err)
			}
			leaf := state.PeerCertificates[0]
			if leaf.DNSNames[0] != test.names || leaf.PublicKeyAlgorithm != test.kind {
				t.Errorf("got %v by %v, want %s by %v", leaf.DNSNames, leaf.PublicKeyAlgorithm, test.names, test.kind)
			}
		})
	}
	// An RSA only client that asks for a name of which there is no RSA certificate: refused, in order.
	if _, err := dial(t, addr, &tls.Config{
		ServerName: "tink.orch.example.org", CipherSuites: rsaOnly, MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true,
	}); err == nil || !strings.Contains(err.Error(), "handshake failure") {
		t.Errorf("got %v", err)
	}
	// A name that no certificate has: an RSA only client gets the first one's variant, which has one name more.
	s, err = New(Config{Certificates: []Pair{
		a.pair(t, dir, "first", "ECDSA", "boot.example.org"), a.pair(t, dir, "more", "RSA", "boot.example.org", "www.example.org"),
	}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, listen(t, s.TLS()), &tls.Config{
		ServerName: "else.example.org", CipherSuites: rsaOnly, MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true,
	}); err != nil {
		t.Errorf("a variant with one name more: %v", err)
	}
	for _, protocol := range []string{"h2", "http/1.1"} {
		state, err := dial(t, addr, &tls.Config{ServerName: "boot.example.org", RootCAs: a.pool, NextProtos: []string{protocol}})
		if err != nil || state.NegotiatedProtocol != protocol {
			t.Errorf("%s: got %+v, %v", protocol, state, err)
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("https://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); string(text) != "HTTP/2.0" {
		t.Errorf("got %s", text)
	}
}

func TestVersions(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	pair := a.pair(t, dir, "rsa", "RSA", "boot.example.org")
	oldCipher := []uint16{tls.TLS_RSA_WITH_AES_128_CBC_SHA256}
	tests := map[string]struct {
		config   Config
		max      uint16
		ciphers  []uint16
		accepted bool
	}{
		"1.2":                      {Config{}, tls.VersionTLS12, nil, true},
		"1.1":                      {Config{}, tls.VersionTLS11, nil, false},
		"1.2 where 1.3 is asked":   {Config{MinVersion: "1.3"}, tls.VersionTLS12, nil, false},
		"1.3 where 1.3 is asked":   {Config{MinVersion: "1.3"}, tls.VersionTLS13, nil, true},
		"old iPXE":                 {Config{}, tls.VersionTLS12, oldCipher, false},
		"old iPXE, asked for":      {Config{FirmwareCiphers: true}, tls.VersionTLS12, oldCipher, true},
		"modern beside old iPXE":   {Config{FirmwareCiphers: true}, tls.VersionTLS13, nil, true},
		"1.1 is not for firmware":  {Config{FirmwareCiphers: true}, tls.VersionTLS11, nil, false},
		"1.2 modern beside old":    {Config{FirmwareCiphers: true}, tls.VersionTLS12, nil, true},
		"3DES is not for firmware": {Config{FirmwareCiphers: true}, tls.VersionTLS12, []uint16{tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.config.Certificates = []Pair{pair}
			s, err := New(test.config, Options{})
			if err != nil {
				t.Fatal(err)
			}
			state, err := dial(t, listen(t, s.TLS()), &tls.Config{
				ServerName: "boot.example.org", RootCAs: a.pool, MaxVersion: test.max, MinVersion: tls.VersionTLS10,
				CipherSuites: test.ciphers,
			})
			if (err == nil) != test.accepted {
				t.Errorf("got %v", err)
			}
			if err == nil && test.ciphers == nil && test.max == tls.VersionTLS12 &&
				!strings.Contains(tls.CipherSuiteName(state.CipherSuite), "ECDHE") {
				t.Errorf("agreed on %s, without forward secrecy", tls.CipherSuiteName(state.CipherSuite))
			}
		})
	}
}

func TestClientsWithCertificates(t *testing.T) {
	a, stranger, dir := newAuthority(t), newAuthority(t), t.TempDir()
	pair := a.pair(t, dir, "server", "ECDSA", "tink.example.org")
	ca := write(t, dir, "ca.crt", a.pem)
	own := func(a *authority) []tls.Certificate {
		cert, key := a.issue(t, "ECDSA", "worker")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	tests := map[string]struct {
		optional bool
		certs    []tls.Certificate
		accepted bool
	}{
		"ours": {false, own(a), true}, "none": {false, nil, false}, "a stranger's": {false, own(stranger), false},
		"optional, ours": {true, own(a), true}, "optional, none": {true, nil, true},
		"optional, a stranger's": {true, own(stranger), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := New(Config{Certificates: []Pair{pair}, ClientCA: ca, ClientOptional: test.optional}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = dial(t, listen(t, s.TLS()), &tls.Config{
				ServerName: "tink.example.org", RootCAs: a.pool,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if test.certs == nil {
						return &tls.Certificate{}, nil
					}
					return &test.certs[0], nil // whatever the server says that it accepts
				},
			})
			if (err == nil) != test.accepted {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestReplacedUnderLoad replaces the files, also by halves and with rubbish, while clients connect: not one
// handshake fails.
func TestReplacedUnderLoad(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	pair := a.pair(t, dir, "tls", "ECDSA", "boot.example.org")
	registry := prometheus.NewPedanticRegistry()
	s, err := New(Config{Certificates: []Pair{pair}}, Options{Route: "edge", Metrics: NewMetrics(registry)})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s.TLS())
	var failed, made atomic.Int64
	serials := sync.Map{}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				state, err := dial(t, addr, &tls.Config{ServerName: "boot.example.org", RootCAs: a.pool, NextProtos: []string{}})
				made.Add(1)
				if err != nil {
					failed.Add(1)
					t.Log(err)
					continue
				}
				serials.Store(state.PeerCertificates[0].SerialNumber.String(), true)
			}
		})
	}
	const turns = 20
	for range turns {
		cert, key := a.issue(t, "ECDSA", "boot.example.org")
		write(t, dir, "tls.crt", cert) // beside the old key: no pair
		s.load()
		if s.Ready() != nil {
			t.Error("not ready, though the old is in force")
		}
		write(t, dir, "tls.key", key)
		if s.load(); s.fault != nil {
			t.Error(s.fault)
		}
		write(t, dir, "tls.crt", cert[:len(cert)/2])
		s.load()
		_ = os.Remove(pair.Key)
		s.load()
		write(t, dir, "tls.crt", cert)
		write(t, dir, "tls.key", key)
		s.load()
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	clients.Wait()
	seen := 0
	serials.Range(func(any, any) bool { seen++; return true })
	if failed.Load() != 0 || seen < turns/2 {
		t.Errorf("%d of %d handshakes failed; %d certificates were seen", failed.Load(), made.Load(), seen)
	}
	if got := testutil.ToFloat64(s.metrics.loads[1]); got < turns {
		t.Errorf("%v failed loads were counted", got)
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestSecret replaces the files as the kubelet does, and waits for Run to notice.
func TestSecret(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	mount := func(n int) {
		t.Helper()
		data := filepath.Join(dir, fmt.Sprint("..", n))
		if err := os.Mkdir(data, 0o755); err != nil {
			t.Fatal(err)
		}
		a.pair(t, data, "tls", "ECDSA", fmt.Sprintf("v%d.example.org", n))
		if err := os.Symlink(filepath.Base(data), filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(Config{Certificates: []Pair{{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Ready() == nil {
		t.Error("ready without files")
	}
	addr := listen(t, s.TLS())
	if _, err := dial(t, addr, &tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Error("a handshake without a certificate")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for n := range 2 {
		mount(n)
		want := fmt.Sprintf("v%d.example.org", n)
		testwait.Success(t, want+" is noticed", func() error {
			state, err := dial(t, addr, &tls.Config{InsecureSkipVerify: true})
			if err == nil && state.PeerCertificates[0].DNSNames[0] != want {
				err = fmt.Errorf("the certificate is of %v", state.PeerCertificates[0].DNSNames)
			}
			return err
		})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTrust(t *testing.T) {
	a, stranger, dir := newAuthority(t), newAuthority(t), t.TempDir()
	server, err := New(Config{
		Certificates: []Pair{a.pair(t, dir, "server", "ECDSA", "tink.example.org")}, ClientCA: write(t, dir, "ca.crt", a.pem),
	}, Options{Protocols: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen(t, server.TLS())
	own := a.pair(t, dir, "client", "RSA", "proxy")
	tests := map[string]struct {
		backend Backend
		bad     string
	}{
		"right":         {Backend{CA: server.config.ClientCA}, ""},
		"another name":  {Backend{CA: server.config.ClientCA, Name: "hegel.example.org"}, "not hegel.example.org"},
		"another CA":    {Backend{CA: write(t, dir, "other.crt", stranger.pem)}, "unknown authority"},
		"the system's":  {Backend{}, "unknown authority"},
		"CA is missing": {Backend{CA: filepath.Join(dir, "none")}, "no such file"},
		"CA is rubbish": {Backend{CA: write(t, dir, "rubbish", []byte("x"))}, "no certificate"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.backend.Name == "" {
				test.backend.Name = "tink.example.org"
			}
			test.backend.Certificate, test.backend.Key = own.Certificate, own.Key
			trust, err := NewTrust(test.backend, Options{Route: "tink"})
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			secured, err := trust.Client(t.Context(), conn, "h2")
			switch {
			case test.bad != "" && (err == nil || !strings.Contains(err.Error(), test.bad)):
				t.Errorf("got %v, want %q", err, test.bad)
			case test.bad == "" && err != nil:
				t.Error(err)
			case test.bad == "" && secured.ConnectionState().NegotiatedProtocol != "h2":
				t.Errorf("agreed on %q", secured.ConnectionState().NegotiatedProtocol)
			}
		})
	}
}

// TestOpenSSL asks somebody else's opinion.
func TestOpenSSL(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("needs openssl")
	}
	a, dir := newAuthority(t), t.TempDir()
	ca := write(t, dir, "ca.crt", a.pem)
	s, err := New(Config{Certificates: []Pair{
		a.pair(t, dir, "rsa", "RSA", "boot.example.org"), a.pair(t, dir, "ecdsa", "ECDSA", "boot.example.org"),
	}}, Options{Protocols: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen(t, s.TLS())
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"1.3":      {[]string{"-tls1_3", "-alpn", "h2"}, "TLSv1.3"},
		"1.2":      {[]string{"-tls1_2"}, "Peer signature type: ECDSA"},
		"1.2, RSA": {[]string{"-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"}, "Peer signature type: RSA"},
		"alpn":     {[]string{"-alpn", "http/1.1"}, "ALPN protocol: http/1.1"},
	} {
		args := append([]string{
			"s_client", "-connect", addr, "-servername", "boot.example.org", "-verify_hostname", "boot.example.org",
			"-CAfile", ca, "-verify_return_error",
		}, test.args...)
		cmd := exec.CommandContext(t.Context(), openssl, args...)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), test.want) || !strings.Contains(string(out), "Verify return code: 0") {
			t.Errorf("%s: %v, want %q in\n%s", name, err, test.want, out)
		}
	}
	for _, args := range [][]string{{"-tls1_1"}, {"-tls1_2", "-cipher", "AES128-SHA"}} {
		cmd := exec.CommandContext(t.Context(), openssl, append([]string{"s_client", "-connect", addr}, args...)...)
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("%v was accepted:\n%s", args, out)
		}
	}
}

func TestValidate(t *testing.T) {
	var c Config
	err := yaml.UnmarshalStrict([]byte(
		"certificates: [{certificate: a.crt, key: ''}]\nminVersion: '1.1'\nclientCA: ca\n"), &c)
	if err != nil {
		t.Fatal(err)
	}
	all := c.Validate().Error() + (&Config{ClientOptional: true}).Validate().Error() +
		(&Config{MinVersion: "1.3", FirmwareCiphers: true}).Validate().Error() + (&Backend{CA: "x", Key: "/k"}).Validate().Error()
	for _, want := range []string{
		"certificates[0].certificate", "certificates[0].key", "minVersion", "clientCA: \"ca\"", "certificates: missing",
		"clientOptional", "firmwareCiphers", "ca: \"x\"", "goes with a key", "name: missing",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if _, err := New(Config{}, Options{}); err == nil {
		t.Error("accepted nothing")
	}
	if _, err := NewTrust(Backend{CA: "x"}, Options{}); err == nil {
		t.Error("accepted a relative path")
	}
}

func BenchmarkHandshake(b *testing.B) {
	a, dir := newAuthority(b), b.TempDir()
	for _, kind := range []string{"ECDSA", "RSA"} {
		s, err := New(Config{Certificates: []Pair{a.pair(b, dir, kind, kind, "boot.example.org")}}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		config := s.TLS()
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				client, server := net.Pipe()
				done := make(chan error, 1)
				go func() { done <- tls.Server(server, config).Handshake() }()
				if err := tls.Client(client, &tls.Config{ServerName: "boot.example.org", RootCAs: a.pool}).Handshake(); err != nil {
					b.Fatal(err)
				}
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				client.Close()
				server.Close()
			}
		})
	}
}
