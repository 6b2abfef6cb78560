package spans

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	pb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver takes spans by OTLP, as the protocol's own generated code reads them.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu     sync.Mutex
	spans  []*pb.Span
	from   []*common.KeyValue
	header http.Header
}

func (r *receiver) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rs := range in.GetResourceSpans() {
		r.from = rs.GetResource().GetAttributes()
		for _, ss := range rs.GetScopeSpans() {
			r.spans = append(r.spans, ss.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.header = q.Header
	r.mu.Unlock()
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(q.Body)
	}
	text, _ := io.ReadAll(body)
	var in collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &in); err != nil || q.URL.Path != "/v1/traces" {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	out, _ := r.Export(q.Context(), &in)
	text, _ = proto.Marshal(out)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(text)
}

func attributes(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			m[kv.GetKey()] = v.StringValue
		case *common.AnyValue_ArrayValue:
			m[kv.GetKey()] = v.ArrayValue.GetValues()[0].GetStringValue()
		default:
			m[kv.GetKey()] = fmt.Sprint(kv.GetValue().GetIntValue(), kv.GetValue().GetDoubleValue())
		}
	}
	return m
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// changes are those of one boot: DHCP, a script that is not there, its cause, and the end.
func changes(text string) []journal.Change {
	m := journal.MachineView{
		MAC: "52:54:00:5e:00:01", OtherMACs: []string{"52:54:00:5e:00:02"}, Address: netip.MustParseAddr("192.0.2.101"),
		Name: text, Hardware: "tink/m1", UUID: text, Arch: text,
	}
	b := journal.BootView{ID: "boot-1", Begin: at(0), State: journal.Booting, At: journal.DHCP}
	cause := &journal.Cause{Name: "not-found", Text: "It is not there. " + text, Remedy: text, Since: at(3)}
	stuck := journal.BootView{ID: "boot-1", Begin: at(0), End: at(10), State: journal.StateFailed, At: journal.Script, Cause: cause}
	slow := b
	slow.Cause = &journal.Cause{Name: "slow", Since: at(1)} // by which it is not stuck
	return []journal.Change{
		{Kind: journal.StepEnded, At: at(1), Machine: m, Boot: b, Step: journal.StepView{
			Step: journal.DHCP, Result: journal.OK, Begin: at(0), End: at(1), From: "192.0.2.3", Text: "192.0.2.101",
			Answers: []journal.Answer{{Begin: at(0), End: at(.1), Kind: "DISCOVER", Text: text, Result: "passed", OK: true, Count: 2}},
		}},
		{Kind: journal.StepEnded, At: at(3), Machine: m, Boot: b, Step: journal.StepView{
			Step: journal.Script, Result: journal.Failed, Begin: at(2), End: at(3), Bytes: 1 << 63, From: "192.0.2.3:7171", Text: text,
			Answers: slices.Repeat([]journal.Answer{{
				Begin: at(2), End: at(3), Kind: "GET", Text: text, Result: "404", Bytes: 19, From: netip.MustParseAddrPort("192.0.2.3:7171"),
			}}, 100),
		}},
		{Kind: journal.CauseChanged, At: at(3), Machine: m, Boot: slow},
		{Kind: journal.CauseChanged, At: at(4), Machine: m, Boot: stuck},
		{Kind: journal.StateChanged, At: at(4), Machine: m, Boot: stuck},
		{Kind: journal.BootEnded, At: at(10), Machine: m, Boot: stuck},
	}
}

// A boot arrives by either protocol, as one trace.
func TestABootIsATrace(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) {
			r := &receiver{}
			var endpoint string
			if protocol == protocolGRPC {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				collector.RegisterTraceServiceServer(server, r)
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
				endpoint = "http://" + listener.Addr().String()
			} else {
				server := httptest.NewServer(r)
				defer server.Close()
				endpoint = server.URL
				t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
				t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=lab")
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
			b, err := New(t.Context(), Options{Getenv: os.Getenv, Pod: "pod-1", Version: "v1.2.3"})
			if err != nil || b == nil {
				t.Fatal(b, err)
			}
			for _, c := range changes("m1") {
				b.Changed(c)
			}
			b.Close()
			checkTrace(t, r)
			if from := attributes(r.from); from["service.name"] != "stack-boots" || from["service.version"] != "v1.2.3" ||
				from["k8s.pod.name"] != "pod-1" || from["deployment.environment.name"] != "lab" || from["telemetry.sdk.name"] != "opentelemetry" {
				t.Errorf("resource %v", from)
			}
			if protocol == protocolHTTP && r.header.Get("X-Tenant") != "lab" {
				t.Errorf("headers %v", r.header)
			}
		})
	}
}

func checkTrace(t *testing.T, r *receiver) {
	t.Helper()
	var got []string
	var root *pb.Span
	for _, s := range r.spans {
		if s.GetName() == "boot" {
			root = s
		}
	}
	if root == nil || len(root.GetParentSpanId()) != 0 {
		t.Fatalf("no root span: %v", r.spans)
	}
	for _, s := range r.spans {
		if !bytes.Equal(s.GetTraceId(), root.GetTraceId()) || s != root && !bytes.Equal(s.GetParentSpanId(), root.GetSpanId()) {
			t.Errorf("%s is not of the boot's trace", s.GetName())
		}
		if a := attributes(s.GetAttributes()); a["host.mac"] != "52-54-00-5E-00-01" || a["client.address"] != "192.0.2.101" || a["tinkerbell.hardware"] != "tink/m1" || a["host.name"] != "m1" {
			t.Errorf("%s: %v", s.GetName(), a)
		}
		got = append(got, fmt.Sprintf("%s %g-%g %s %s", s.GetName(), seconds(s.GetStartTimeUnixNano()), seconds(s.GetEndTimeUnixNano()),
			s.GetStatus().GetCode(), s.GetStatus().GetMessage()))
	}
	want := []string{
		"dhcp 0-1 STATUS_CODE_UNSET ", "script 2-3 STATUS_CODE_ERROR 404", "stuck 3-4 STATUS_CODE_ERROR It is not there. m1",
		"boot 0-10 STATUS_CODE_ERROR It is not there. m1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	script := r.spans[1]
	a := attributes(script.GetAttributes())
	for key, want := range map[string]string{"server.address": "192.0.2.3", "server.port": "7171 0", "tinkerbell.boot.step": "script", "tinkerbell.boot.result": "failed", "error.type": "404"} {
		if a[key] != want {
			t.Errorf("%s is %q, want %q", key, a[key], want)
		}
	}
	if n := len(script.GetEvents()); n != mostAnswers {
		t.Errorf("%d events", n)
	}
	e := attributes(script.GetEvents()[0].GetAttributes())
	if script.GetEvents()[0].GetName() != "GET" || e["http.response.status_code"] != "404 0" || e["url.path"] != "m1" || e["http.request.method"] != "GET" {
		t.Errorf("event %v", e)
	}
}

func seconds(nanoseconds uint64) float64 { return time.Unix(0, int64(nanoseconds)).Sub(noon).Seconds() }

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		want settings
		err  string
	}{
		"nothing":        {nil, settings{}, ""},
		"endpoint":       {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, settings{true, protocolHTTP, 2048}, ""},
		"for traces":     {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://a/x"}, settings{true, protocolHTTP, 2048}, ""},
		"disabled":       {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "True"}, settings{}, ""},
		"none":           {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "none"}, settings{}, ""},
		"other exporter": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_TRACES_EXPORTER": "zipkin"}, settings{}, `OTEL_TRACES_EXPORTER="zipkin": neither otlp nor none`},
		"traces' protocol counts more": {map[string]string{
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
		}, settings{true, protocolGRPC, 2048}, ""},
		"JSON":     {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, settings{}, `OTEL_EXPORTER_OTLP_PROTOCOL="http/json": neither grpc nor http/protobuf`},
		"no URL":   {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, settings{}, `OTEL_EXPORTER_OTLP_ENDPOINT="collector:4317": no URL`},
		"queue":    {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_BSP_MAX_QUEUE_SIZE": "10"}, settings{true, protocolHTTP, 10}, ""},
		"no queue": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_BSP_MAX_QUEUE_SIZE": "1e9"}, settings{}, "OTEL_BSP_MAX_QUEUE_SIZE"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := read(func(variable string) string { return test.env[variable] })
			switch {
			case (err != nil) != (test.err != ""), err != nil && !strings.HasPrefix(err.Error(), test.err):
				t.Errorf("%v, want %q", err, test.err)
			case err == nil && got != test.want:
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
	if b, err := New(t.Context(), Options{Getenv: func(string) string { return "" }}); b != nil || err != nil {
		t.Errorf("%v, %v", b, err)
	}
}

// A sampler that takes no trace leaves nothing of a boot, and not its steps alone.
func TestSampler(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
	whole := map[int]int{}
	client := &stub{}
	b := start(Options{Pod: "p", Logger: slog.New(slog.DiscardHandler)}, settings{queue: 2048}, client, resource.Empty())
	for i := range 100 {
		for _, c := range changes("m1") {
			c.Boot.ID = fmt.Sprint("boot-", i)
			b.Changed(c)
		}
	}
	b.Close()
	byTrace := map[string]int{}
	for _, s := range client.spans {
		byTrace[s.SpanContext().TraceID().String()]++
	}
	for _, n := range byTrace {
		whole[n]++
	}
	if len(whole) != 1 || whole[4] < 20 || whole[4] > 80 {
		t.Errorf("traces by number of spans: %v", whole)
	}
}

// stub is a collector that may hang.
type stub struct {
	mu    sync.Mutex
	spans []sdk.ReadOnlySpan
	hangs bool
	fails error
}

func (s *stub) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails == nil {
		s.spans = append(s.spans, spans...)
	}
	return s.fails
}

func (*stub) Shutdown(context.Context) error { return nil }

func count(t *testing.T, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		all[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	return all
}

// A collector that takes a connection and never answers: Changed does not wait, the queue does not grow, what has no
// place is counted, and Close ends in its time.
func TestDeadCollector(t *testing.T) {
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	client := &stub{hangs: true}
	b := start(Options{Pod: "p", Logger: slog.New(slog.NewTextHandler(&log, nil)), Registry: registry, FlushTimeout: 50 * time.Millisecond},
		settings{queue: 100}, client, resource.Empty())
	const boots = 1000
	begin := time.Now()
	for i := range boots {
		for _, c := range changes("m1") {
			c.Boot.ID = fmt.Sprint("boot-", i)
			b.Changed(c)
		}
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("%d boots took %s", boots, took)
	}
	b.Close()
	got := count(t, registry)
	if got[sent] != 0 || got[failed] == 0 || got[failed] > 100 || got[failed]+got[dropped] != 4*boots {
		t.Errorf("%v", got)
	}
	if n := strings.Count(log.String(), "failed to export spans"); n != 1 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
	for _, c := range changes("m1") {
		b.Changed(c) // after the end
	}
}

// Nobody listens there.
func TestNoCollector(t *testing.T) {
	for _, protocol := range []string{protocolHTTP, protocolGRPC} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
		registry := prometheus.NewRegistry()
		b, err := New(t.Context(), Options{Getenv: os.Getenv, Registry: registry, FlushTimeout: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes("m1") {
			b.Changed(c)
		}
		b.Close()
		if got := count(t, registry); got[failed] != 4 {
			t.Errorf("%s: %v", protocol, got)
		}
	}
}

// What waits when the program is told to stop is sent.
func TestCloseSendsWhatWaits(t *testing.T) {
	registry := prometheus.NewRegistry()
	client := &stub{}
	b := start(Options{Pod: "p", Logger: slog.New(slog.DiscardHandler), Registry: registry}, settings{queue: 2048}, client, resource.Empty())
	for i := range 300 {
		for _, c := range changes("m1") {
			c.Boot.ID = fmt.Sprint("boot-", i)
			b.Changed(c)
		}
	}
	b.Close()
	if got := count(t, registry); got[sent] != 1200 || len(client.spans) != 1200 {
		t.Errorf("%v", got)
	}
}

// Whatever a machine says: valid, short, without control characters.
func TestHostileTexts(t *testing.T) {
	for _, text := range []string{
		"<script>alert(1)</script>", "\x1b[2J\x1b]0;owned\a", "a\nb\r\nc\x00", "\xff\xfe\xfd", strings.Repeat("ä", 32<<10),
		"\u202etxt.exe", strings.Repeat("\xf0\x9f\x92", 3000),
	} {
		r := &receiver{}
		server := httptest.NewServer(r)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
		b, err := New(t.Context(), Options{Getenv: os.Getenv})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range changes(text) {
			b.Changed(c)
		}
		b.Close()
		server.Close()
		if len(r.spans) != 4 {
			t.Fatalf("%q: %d spans", text[:10], len(r.spans))
		}
		check := func(text string) {
			if len(text) > textRoom+64 || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\n\r\x00\a\u202e") {
				t.Errorf("%d bytes: %q", len(text), text)
			}
		}
		for _, s := range r.spans {
			check(s.GetStatus().GetMessage())
			for _, a := range attributes(s.GetAttributes()) {
				check(a)
			}
			for _, e := range s.GetEvents() {
				check(e.GetName())
				for _, a := range attributes(e.GetAttributes()) {
					check(a)
				}
			}
		}
	}
}

func BenchmarkStep(b *testing.B) {
	spans := start(Options{Pod: "p", Logger: slog.New(slog.DiscardHandler)}, settings{queue: 2048}, &stub{fails: io.EOF}, resource.Empty())
	defer spans.Close()
	c := changes("m1")[1]
	b.ReportAllocs()
	for b.Loop() {
		spans.Changed(c)
	}
}
