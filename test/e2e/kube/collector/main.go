// Command collector is the OTLP receiver of the OpenTelemetry collector, as released, behind which each span becomes a line of
// JSON on standard output: what a collector gets of stack-proxy's boots.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	metric "go.opentelemetry.io/otel/metric/noop"
	trace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

func main() {
	grpc := flag.String("grpc", "127.0.0.1:4317", "address for gRPC")
	http := flag.String("http", "127.0.0.1:4318", "address for HTTP")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *grpc, *http, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "collector:", err)
		os.Exit(1)
	}
}

// run receives until ctx is done.
func run(ctx context.Context, grpc, http string, out io.Writer) error {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	err := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"grpc": map[string]any{"endpoint": grpc}, "http": map[string]any{"endpoint": http},
	}}).Unmarshal(config)
	if err != nil {
		return fmt.Errorf("failed to configure the receiver: %w", err)
	}
	lines := &lines{encoder: json.NewEncoder(out)}
	next, err := consumer.NewTraces(lines.consume)
	if err != nil {
		return err
	}
	r, err := factory.CreateTraces(ctx, receiver.Settings{
		ID: component.NewID(factory.Type()),
		TelemetrySettings: component.TelemetrySettings{
			Logger: zap.NewNop(), TracerProvider: trace.NewTracerProvider(), MeterProvider: metric.NewMeterProvider(),
			Resource: pcommon.NewResource(),
		},
	}, config, next)
	if err != nil {
		return fmt.Errorf("failed to make the receiver: %w", err)
	}
	if err := r.Start(ctx, host{}); err != nil {
		return fmt.Errorf("failed to start the receiver: %w", err)
	}
	<-ctx.Done()
	return r.Shutdown(context.WithoutCancel(ctx))
}

// host is a collector without extensions.
type host struct{}

// GetExtensions implements component.Host.
func (host) GetExtensions() map[component.ID]component.Component { return nil }

// lines writes spans.
type lines struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

// line is a span.
type line struct {
	Trace      string         `json:"trace"`
	Span       string         `json:"span"`
	Parent     string         `json:"parent"`
	Name       string         `json:"name"`
	Seconds    float64        `json:"seconds"`
	Status     string         `json:"status"`
	Events     []string       `json:"events"`
	Attributes map[string]any `json:"attributes"`
	Resource   map[string]any `json:"resource"`
}

func (l *lines) consume(_ context.Context, traces ptrace.Traces) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rs := range traces.ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, s := range ss.Spans().All() {
				events := []string{}
				for _, e := range s.Events().All() {
					events = append(events, e.Name())
				}
				if err := l.encoder.Encode(line{
					Trace: s.TraceID().String(), Span: s.SpanID().String(), Parent: s.ParentSpanID().String(), Name: s.Name(),
					Seconds: s.EndTimestamp().AsTime().Sub(s.StartTimestamp().AsTime()).Seconds(),
					Status:  s.Status().Code().String(), Events: events,
					Attributes: s.Attributes().AsRaw(), Resource: rs.Resource().Attributes().AsRaw(),
				}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
