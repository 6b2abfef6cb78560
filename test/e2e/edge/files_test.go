package edge_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"

	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestSeedsFilePath is the second document's path, step by step, by the shipped file: TLS by the files' name, the
// prefix, 500 requests a second and 70 at a time for a client, and the file of 8080; without a token.
func TestSeedsFilePath(t *testing.T) {
	t.Parallel() // labs do not see each other
	s := newSite(t)
	t.Run("paths", func(t *testing.T) { s.testPaths(t) })
	t.Run("curl", func(t *testing.T) { s.testCurl(t) })
	t.Run("openssl", func(t *testing.T) { s.testOpenSSL(t) })
	t.Run("70 at a time", func(t *testing.T) { s.testConcurrent(t) })
	t.Run("certificates replaced", func(t *testing.T) { s.testReplaced(t) })
	t.Run("500 a second", func(t *testing.T) { s.testRate(t) })
}

const script = "#!ipxe\nboot\n"

func (s *site) testPaths(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "h2"} {
		c := s.client(t, protocol)
		for path, want := range map[string]int{
			"/tink-stack/hook.ipxe": 200, "/hook.ipxe": 404, "/tink-stack": 404, "/tink-stack/": 404, "/tink-stacks/hook.ipxe": 404,
			"/tink-stack/../tls.key": 404, "/tink-stack/%2e%2e/certs/tls.key": 404, "/tink-stack//hook.ipxe": 200,
		} {
			answer, err := c.Get("https://" + filesHost + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != want || want == 200 && string(body) != script {
				t.Errorf("%s, %s: got %d %q", protocol, path, answer.StatusCode, body)
			}
		}
		// Another name than the connection's: that route asked for a token, and TLS 1.3.
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+filesHost+"/tink-stack/hook.ipxe", nil)
		r.Host = tinkHost
		answer, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%s, another name: got %d", protocol, answer.StatusCode)
		}
	}
	// The port of the stack itself stays as it was.
	answer, err := s.Client(s.worker).Get("http://192.0.2.2:8080/hook.ipxe")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("8080: got %d", answer.StatusCode)
	}
}

// run runs a program on the worker and returns what it prints.
func (s *site) run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs Debian's package %s", name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	err = s.Run(ctx, lab.Process{
		Name: fmt.Sprintf("%s-%d", name, time.Now().UnixNano()), Role: s.worker, Path: path, Args: args, Stdout: &out,
		Stdin: strings.NewReader(""),
	})
	return out.String(), err
}

func (s *site) testCurl(t *testing.T) {
	roots := filepath.Join(s.dir, "roots", "ca-certificates.crt")
	// curl's --http2 offers both versions; files are sent by 1.1 to a client that has it.
	for option, version := range map[string]string{"--http1.1": "1.1", "--http2": "1.1"} {
		got, err := s.run(t, "curl", "-sS", option, "--cacert", roots, "--resolve", filesHost+":443:192.0.2.2",
			"--range", "2-5", "-w", "\n%{http_version} %{http_code} %{ssl_verify_result}", "https://"+filesHost+"/tink-stack/hook.ipxe")
		if want := "ipxe\n" + version + " 206 0"; err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", option, got, err, want)
		}
	}
	got, err := s.run(t, "curl", "-sS", "--cacert", roots, "--resolve", tinkHost+":443:192.0.2.2", "--tlsv1.3", "--http2",
		"-w", "%{http_version} %{http_code}", "-H", "Authorization: Bearer a.b.c", "-H", "Content-Type: application/grpc", "-o", "/dev/null",
		"-D", "/dev/stdout", "https://"+tinkHost+"/proto.WorkflowService/GetWorkflowActions")
	if err != nil || !strings.Contains(strings.ToLower(got), "grpc-status: 16") || !strings.HasSuffix(got, "2 200") {
		t.Errorf("without a token that is good: got %q, %v", got, err)
	}
}

// testOpenSSL asks for versions and certificates, as firmware and as a worker would.
func (s *site) testOpenSSL(t *testing.T) {
	roots := filepath.Join(s.dir, "roots", "ca-certificates.crt")
	for name, test := range map[string]struct {
		host string
		args []string
		want []string // what openssl says; none where there is to be no connection
	}{
		"files, TLS 1.2 by RSA": {
			filesHost, []string{"-tls1_2", "-sigalgs", "rsa_pss_rsae_sha256:RSA+SHA256"},
			[]string{"Protocol  : TLSv1.2", "Server public key is 2048 bit", "Verify return code: 0 (ok)"},
		},
		"files, TLS 1.2 by ECDSA": {
			filesHost, []string{"-tls1_2", "-sigalgs", "ECDSA+SHA256"}, []string{"TLSv1.2", "Server public key is 256 bit"},
		},
		"files, TLS 1.3":  {filesHost, []string{"-tls1_3", "-alpn", "h2"}, []string{"TLSv1.3", "ALPN protocol: h2", "Verify return code: 0"}},
		"files, TLS 1.1":  {filesHost, []string{"-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"}, nil},
		"worker, TLS 1.3": {tinkHost, []string{"-tls1_3"}, []string{"TLSv1.3", "Server public key is 256 bit"}},
		"worker, TLS 1.2": {tinkHost, []string{"-tls1_2"}, nil},
	} {
		args := append([]string{
			"s_client", "-connect", "192.0.2.2:443", "-servername", test.host, "-CAfile", roots, "-verify_return_error",
			"-verify_hostname", test.host,
		}, test.args...)
		got, err := s.run(t, "openssl", args...)
		if (err == nil) != (test.want != nil) {
			t.Errorf("%s: %v\n%s", name, err, got)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", name, want, got)
			}
		}
	}
}

// testConcurrent holds 70 downloads at once: the next is refused, until one has ended.
func (s *site) testConcurrent(t *testing.T) {
	c := s.client(t, "http/1.1")
	get := func() *http.Response {
		t.Helper()
		answer, err := c.Get("https://" + filesHost + "/tink-stack/big.img")
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var open []*http.Response
	for range 70 {
		answer := get()
		if answer.StatusCode != http.StatusOK || answer.ContentLength != bigSize {
			t.Fatalf("download %d: got %d of %d bytes", len(open), answer.StatusCode, answer.ContentLength)
		}
		open = append(open, answer)
	}
	refused := get()
	refused.Body.Close()
	if refused.StatusCode != http.StatusTooManyRequests || refused.Header.Get("Retry-After") == "" {
		t.Errorf("one more: got %d %v", refused.StatusCode, refused.Header)
	}
	if n, err := io.Copy(io.Discard, open[0].Body); err != nil || n != bigSize {
		t.Errorf("got %d bytes, %v", n, err)
	}
	s.await(t, "a free place", func() bool {
		answer := get()
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	for _, answer := range open {
		answer.Body.Close()
	}
}

// testReplaced replaces both certificates again and again, while clients make handshakes: not one fails.
func (s *site) testReplaced(t *testing.T) {
	var stop atomic.Bool
	var made atomic.Int64
	serials := sync.Map{}
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			config := &tls.Config{RootCAs: s.roots, ServerName: filesHost}
			if i%2 == 0 { // by RSA, as iPXE
				config.MaxVersion = tls.VersionTLS12
				config.CipherSuites = []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
			}
			for !stop.Load() {
				raw, err := s.dial(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				conn := tls.Client(raw, config)
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				if err := conn.HandshakeContext(t.Context()); err != nil {
					t.Errorf("handshake %d: %v", made.Load(), err)
				} else {
					serials.Store(conn.ConnectionState().PeerCertificates[0].SerialNumber.String(), true)
				}
				_ = conn.Close()
				made.Add(1)
			}
		})
	}
	seen := func() (count int) {
		serials.Range(func(any, any) bool { count++; return true })
		return count
	}
	s.await(t, "both certificates", func() bool { return seen() == 2 })
	for range 2 {
		before := seen()
		s.certificates(t)
		s.await(t, "two new certificates", func() bool { return seen() == before+2 })
	}
	stop.Store(true)
	clients.Wait()
	t.Logf("%d handshakes, %d certificates", made.Load(), seen())
}

// testRate makes more requests than the burst of five seconds' worth lets pass.
func (s *site) testRate(t *testing.T) {
	c := s.client(t, "h2")
	time.Sleep(5 * time.Second) // a full bucket again, whatever was before
	var passed, refused atomic.Int64
	started := time.Now()
	var clients sync.WaitGroup
	for range 10 {
		clients.Go(func() {
			for range 500 {
				answer, err := c.Get("https://" + filesHost + "/tink-stack/hook.ipxe")
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
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
	most := 2500 + int64(500*time.Since(started).Seconds()) + 1
	if passed.Load() > most || passed.Load() < min(2500, most) || passed.Load()+refused.Load() != 5000 {
		t.Errorf("%d passed and %d were refused in %s; want at most %d", passed.Load(), refused.Load(), time.Since(started), most)
	}
	counted := s.metric(t, `stack_proxy_limited_total{reason="client_rate",route="outside-files"}`)
	if refused.Load() > 0 && counted == "" {
		t.Error("refusals were not counted")
	}
	t.Logf("%d passed, %d were refused in %s", passed.Load(), refused.Load(), time.Since(started))
}

// TestExampleIsDocumented holds the document to the file that is tested here.
func TestExampleIsDocumented(t *testing.T) {
	example, err := os.ReadFile("../../../docs/examples/edge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../../docs/edge.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(document, []byte("```yaml\n"+string(example)+"```\n")) {
		t.Error("docs/edge.md does not show docs/examples/edge.yaml")
	}
}
