package edge_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bufbuild/protocompile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestSeedsGRPCPath is the first document's path, step by step, by the shipped file: a worker on the LAN finds the
// name, ends in TLS 1.3, shows its token, and reaches Tink Server by h2c, which is told the worker.
func TestSeedsGRPCPath(t *testing.T) {
	t.Parallel() // labs do not see each other
	s := newSite(t)
	proto := loadProto(t)
	token, err := s.fetchToken()
	if err != nil {
		t.Fatal(err)
	}
	worker := s.connect(t, proto, fixed(token), nil)

	t.Run("unary", func(t *testing.T) { s.testUnary(t, worker) })
	t.Run("stream", func(t *testing.T) { testStream(t, worker) })
	t.Run("refused", func(t *testing.T) { s.testRefused(t, proto, token) })
	t.Run("counted", func(t *testing.T) { s.testCounted(t) })
	t.Run("keys rotated", func(t *testing.T) { s.testRotation(t, proto) })
	t.Run("issuer away", func(t *testing.T) { s.testIssuerAway(t, proto) })
	t.Run("limit", func(t *testing.T) { s.testLimit(t, proto) })
}

func (s *site) testUnary(t *testing.T, worker *workflows) {
	actions, err := worker.actions(t.Context(), metadata.Pairs("x-auth-subject", "root", "x_auth_org", "org-root"))
	if err != nil || actions != 2 {
		t.Fatalf("got %d actions, %v", actions, err)
	}
	seen, _ := s.lastSeen()
	for name, want := range map[string]string{
		"x-auth-subject": "worker", "x-auth-org": "org-abc", "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.50",
		"x_auth_org": "", ":authority": tinkHost,
	} {
		if got := strings.Join(seen[name], "|"); got != want {
			t.Errorf("Tink Server saw %s %q, want %q", name, got, want)
		}
	}
	if state := worker.state.Load(); state == nil || state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" {
		t.Errorf("by %+v", state)
	}
}

func testStream(t *testing.T, worker *workflows) {
	got, err := worker.contexts(t.Context())
	if err != nil || strings.Join(got, " ") != workflow+" w2" {
		t.Errorf("got %v, %v", got, err)
	}
	worker.id = "" // the server's own refusal passes, which is an answer of trailers only
	defer func() { worker.id = workerID }()
	for i := range 300 {
		if _, err := worker.contexts(t.Context()); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), "invalid worker id") {
			t.Fatalf("call %d: got %v", i, err)
		}
	}
}

// testRefused is what is not let in: neither unary nor stream, and Tink Server hears of none.
func (s *site) testRefused(t *testing.T, proto protoreflect.ServiceDescriptor, good string) {
	claims := func(change map[string]any) func() (string, error) {
		all := map[string]any{"iss": issuerURL, "aud": "tink", "sub": "worker", "exp": time.Now().Add(time.Hour).Unix()}
		for name, value := range change {
			all[name] = value
		}
		return func() (string, error) { return s.issuer.sign(all) }
	}
	_, before := s.lastSeen()
	for name, token := range map[string]func() (string, error){
		"no token":         nil,
		"made up":          fixed("a.b.c"),
		"another's bytes":  fixed(good[:len(good)-8] + "AAAAAAAA"),
		"expired":          claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}),
		"another audience": claims(map[string]any{"aud": "hegel"}),
		"another issuer":   claims(map[string]any{"iss": "https://example.net"}),
	} {
		stranger := s.connect(t, proto, token, nil)
		_, unary := stranger.actions(t.Context(), nil)
		_, stream := stranger.contexts(t.Context())
		for _, err := range []error{unary, stream} {
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
	if _, after := s.lastSeen(); after != before {
		t.Errorf("Tink Server heard of %d calls", after-before)
	}
	old := s.connect(t, proto, fixed(good), func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	if _, err := old.actions(t.Context(), nil); status.Code(err) != codes.Unavailable {
		t.Errorf("TLS 1.2: got %v", err)
	}
}

// testCounted is what the calls before have ended with, by gRPC's own codes: HTTP's was 200 for all.
func (s *site) testCounted(t *testing.T) {
	for code, want := range map[string]string{"OK": "2", "InvalidArgument": "300", "Unauthenticated": "12", "Unknown": "0"} {
		if got := s.metric(t, `stack_proxy_grpc_handled_total{grpc_code="`+code+`",route="orchestrator"}`); got != want {
			t.Errorf("%s calls are counted as %s, not %s", got, code, want)
		}
	}
	if got := s.metric(t, `stack_proxy_http_requests_total{code="200",route="orchestrator"}`); got != "314" {
		t.Errorf("%s requests are counted", got)
	}
}

// testRotation has the issuer sign by a new key again and again, while a worker that fetches its tokens as it goes
// makes calls: not one is refused.
func (s *site) testRotation(t *testing.T, proto protoreflect.ServiceDescriptor) {
	worker := s.connect(t, proto, s.fetchToken, nil)
	var stop atomic.Bool
	ended := make(chan int)
	go func() {
		calls := 0
		for ; !stop.Load(); calls++ {
			if _, err := worker.actions(t.Context(), nil); err != nil {
				t.Errorf("call %d: %v", calls, err)
			}
		}
		ended <- calls
	}()
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		s.issuer.rotate(t)
	}
	time.Sleep(200 * time.Millisecond)
	stop.Store(true)
	if calls := <-ended; calls < 6 {
		t.Errorf("only %d calls were made", calls)
	}
}

// testIssuerAway takes the issuer away: tokens of known keys go on, tokens of made up keys do not make the proxy ask
// for keys again and again, and the failures are counted.
func (s *site) testIssuerAway(t *testing.T, proto protoreflect.ServiceDescriptor) {
	token, err := s.fetchToken()
	if err != nil {
		t.Fatal(err)
	}
	worker := s.connect(t, proto, fixed(token), nil)
	if _, err := worker.actions(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	s.issuer.fail(true)
	defer s.issuer.fail(false)
	stranger := &issuer{}
	asked := s.issuer.keysAsked()
	started := time.Now()
	for range 40 {
		stranger.rotate(t)
		made, err := stranger.sign(map[string]any{
			"iss": issuerURL, "aud": "tink", "sub": "root", "exp": time.Now().Add(time.Hour).Unix(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.connect(t, proto, fixed(made), nil).actions(t.Context(), nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a made up key: got %v", err)
		}
		if _, err := worker.actions(t.Context(), nil); err != nil {
			t.Errorf("a known key: %v", err)
		}
	}
	// Some in a row, one in ten seconds, and the retries of those that failed, which double from a second on.
	most := 5 + int(time.Since(started)/(10*time.Second)) + 7
	if more := s.issuer.keysAsked() - asked; more == 0 || more > most {
		t.Errorf("the issuer was asked %d times, want some and at most %d", more, most)
	}
	failures := s.metric(t, `stack_proxy_jwt_key_refreshes_total{result="error",route="orchestrator"}`)
	if failures == "" || failures == "0" {
		t.Errorf("%q failures are counted", failures)
	}
}

// testLimit adds a limit to the shipped file, and uses it up.
func (s *site) testLimit(t *testing.T, proto protoreflect.ServiceDescriptor) {
	worker := s.connect(t, proto, s.fetchToken, nil)
	example, err := os.ReadFile(filepath.Join(s.dir, "routes/edge.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, strings.Replace(string(example), "  jwt:\n", "  limits: {requests: {perClient: {perSecond: 0.01, burst: 3}}}\n  jwt:\n", 1))
	var got []string
	for range 5 {
		_, err := worker.actions(t.Context(), nil)
		got = append(got, status.Code(err).String())
	}
	if want := "OK OK OK ResourceExhausted ResourceExhausted"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if _, err := worker.contexts(t.Context()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("stream: got %v", err)
	}
}

func fixed(token string) func() (string, error) { return func() (string, error) { return token, nil } }

// fetchToken asks the issuer for one, as a program with a secret does.
func (s *site) fetchToken() (string, error) {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return s.Dial(lab.RoleTink)(ctx, network, net.JoinHostPort(lab.HegelIP.String(), "443"))
		},
	}}
	request, err := http.NewRequest(http.MethodPost, issuerURL+"/token",
		strings.NewReader(url.Values{"grant_type": {"client_credentials"}}.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth("worker", "secret of worker")
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var token struct {
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&token); err != nil || token.Access == "" {
		return "", fmt.Errorf("no token: %s, %w", answer.Status, err)
	}
	return token.Access, nil
}

// workflows is a client of Tink's WorkflowService, as its own proto file describes it.
type workflows struct {
	conn  *grpc.ClientConn
	proto protoreflect.ServiceDescriptor
	id    string
	state atomic.Pointer[tls.ConnectionState] // of the last connection
}

// loadProto compiles the proto file of the Tink that go.mod pins.
func loadProto(t *testing.T) protoreflect.ServiceDescriptor {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/tinkerbell/tink")
	cmd.Stdout = &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("failed to find Tink's module: %v: %s", err, said.String())
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(said.Bytes(), &module); err != nil {
		t.Fatal(err)
	}
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{
		ImportPaths: []string{filepath.Join(module.Dir, "internal", "proto")},
	})}
	files, err := compiler.Compile(t.Context(), "workflow.proto")
	if err != nil {
		t.Fatal(err)
	}
	return files[0].Services().ByName("WorkflowService")
}

// bearer sends a token with every call, over TLS only.
type bearer func() (string, error)

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := b()
	return map[string]string{"authorization": "Bearer " + token}, err
}
func (bearer) RequireTransportSecurity() bool { return true }

// connect makes a client of the edge by grpc-go. token may be nil, change of its TLS too.
func (s *site) connect(t *testing.T, proto protoreflect.ServiceDescriptor, token bearer, change func(*tls.Config)) *workflows {
	t.Helper()
	w := &workflows{proto: proto, id: workerID}
	config := &tls.Config{RootCAs: s.roots, VerifyConnection: func(c tls.ConnectionState) error { w.state.Store(&c); return nil }}
	if change != nil {
		change(config)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.dial(ctx) }),
		grpc.WithAuthority(tinkHost),
	}
	if config.ServerName == "" {
		config.ServerName = tinkHost
	}
	if token != nil {
		options = append(options, grpc.WithPerRPCCredentials(token))
	}
	var err error
	if w.conn, err = grpc.NewClient("passthrough:///"+tinkHost+":443", options...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close() })
	return w
}

func (w *workflows) message(method protoreflect.MethodDescriptor, field protoreflect.Name, value string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(method.Input())
	m.Set(method.Input().Fields().ByName(field), protoreflect.ValueOfString(value))
	return m
}

func (w *workflows) path(method protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", w.proto.FullName(), method.Name())
}

// actions asks for the actions of the workflow, and returns how many there are.
func (w *workflows) actions(ctx context.Context, header metadata.MD) (int, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, header), 30*time.Second)
	defer cancel()
	method := w.proto.Methods().ByName("GetWorkflowActions")
	out := dynamicpb.NewMessage(method.Output())
	if err := w.conn.Invoke(ctx, w.path(method), w.message(method, "workflow_id", workflow), out); err != nil {
		return 0, err
	}
	return out.Get(method.Output().Fields().ByName("action_list")).List().Len(), nil
}

// contexts reads the stream of the worker's workflows, and returns their ids.
func (w *workflows) contexts(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	method := w.proto.Methods().ByName("GetWorkflowContexts")
	stream, err := w.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, w.path(method))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(w.message(method, "worker_id", w.id)); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	var ids []string
	for {
		out := dynamicpb.NewMessage(method.Output())
		err := stream.RecvMsg(out)
		if errors.Is(err, io.EOF) {
			return ids, nil
		}
		if err != nil {
			return ids, err
		}
		ids = append(ids, out.Get(method.Output().Fields().ByName("workflow_id")).String())
	}
}
