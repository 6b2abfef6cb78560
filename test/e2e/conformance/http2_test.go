// Package conformance holds stack-proxy to what others have written down about the protocols that it terminates.
package conformance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// HTTP/2, in the clear and by TLS, as h2spec reads RFC 7540 and RFC 7541: no case that a bare net/http server passes may
// fail through the proxy.
func TestHTTP2(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.Repeat("answer", 10))
	})
	certificate, key := pair(t)
	backend, clear, secure := free(t), free(t), free(t)
	serve(t, backend, answer, "", "")
	run(t, fmt.Sprintf(`routes:
- {name: clear, protocol: grpc, listen: "127.0.0.1:%d", backends: "127.0.0.1:%d"}
- {name: secure, protocol: grpc, listen: "127.0.0.1:%d", backends: "127.0.0.1:%d",
   tls: {certificates: {certificate: %s, key: %s}}}
`, clear, backend, secure, backend, certificate, key))
	bare := free(t)
	serve(t, bare, answer, certificate, key)
	for _, test := range []struct {
		name       string
		port, peer int
		tls        bool
	}{{"h2c", clear, backend, false}, {"TLS", secure, bare, true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // nearly all of it is waiting
			var ours, theirs map[string]string
			var cases int
			var both sync.WaitGroup
			both.Go(func() { ours, cases = failures(test.port, test.tls, 3*time.Second) })
			both.Go(func() { theirs, _ = failures(test.peer, test.tls, 3*time.Second) })
			both.Wait()
			if cases < 140 {
				t.Errorf("only %d cases were run", cases)
			}
			for _, id := range slices.Sorted(maps.Keys(ours)) {
				if _, ok := theirs[id]; ok {
					continue
				}
				// A busy machine may take longer than the cases wait.
				if again, _ := failures(test.port, test.tls, 15*time.Second, id); again[id] != "" {
					t.Errorf("%s: %s", id, ours[id])
				}
			}
			for _, id := range slices.Sorted(maps.Keys(theirs)) {
				_, ok := ours[id]
				t.Logf("net/http fails %s (we too: %v): %s", id, ok, theirs[id])
			}
			t.Logf("%d cases, %d fail with us, %d with net/http", cases, len(ours), len(theirs))
		})
	}
}

// failures runs all cases, or some, and names those that fail.
func failures(port int, secure bool, wait time.Duration, some ...string) (failed map[string]string, cases int) {
	c := &config.Config{
		Host: "127.0.0.1", Port: port, Path: "/test.Echo/Talk", Timeout: wait, MaxHeaderLen: 4000, Strict: true,
		TLS: secure, Insecure: true, Sections: some,
	}
	failed = map[string]string{}
	var collect func(g *spec.TestGroup)
	collect = func(g *spec.TestGroup) {
		for i, test := range append(slices.Clone(g.Tests), g.StrictTests...) {
			if test.Result == nil || test.Result.Skipped {
				continue
			}
			cases++
			if test.Result.Failed {
				failed[fmt.Sprintf("%s/%d", g.ID(), i+1)] = test.Desc
			}
		}
		for _, each := range g.Groups {
			collect(each)
		}
	}
	for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		group.Test(c)
		collect(group)
	}
	return failed, cases
}

func free(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// serve runs net/http's server: HTTP/2 in the clear, or by TLS where there is a certificate.
func serve(t *testing.T, port int, handler http.Handler, certificate, key string) {
	t.Helper()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: handler, Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ReadHeaderTimeout: time.Minute,
	}
	server.Protocols.SetUnencryptedHTTP2(certificate == "")
	server.Protocols.SetHTTP2(certificate != "")
	done := make(chan error, 1)
	go func() {
		if certificate == "" {
			done <- server.Serve(listener)
		} else {
			done <- server.ServeTLS(listener, certificate, key)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// run builds the proxy and runs it with some routes.
func run(t *testing.T, routes string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "routes.yaml")
	if err := os.WriteFile(file, []byte(routes), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := fmt.Sprintf("127.0.0.1:%d", free(t))
	cmd := exec.Command(program.ForTest(t, "stack-proxy"))
	cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
		"STACK_PROXY_DRAIN_TIMEOUT=5s", "STACK_PROXY_ADMIN_ADDRESS="+admin)
	p, err := process.Start(t.Context(), cmd, process.Options{Ready: process.Answers("http://" + admin + "/readyz")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.End(30 * time.Second); err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
		if t.Failed() {
			t.Logf("the proxy said:\n%s", p.Said())
		}
	})
}

// pair makes a certificate and its key, as files.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	certificate, key = filepath.Join(directory, "tls.crt"), filepath.Join(directory, "tls.key")
	for name, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: encoded},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		t.Fatal(err)
	}
	return certificate, key
}
