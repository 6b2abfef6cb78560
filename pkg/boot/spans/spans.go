// Package spans tells an OpenTelemetry collector of boots, by OTLP: one trace a boot, a span a step. It is off unless
// an endpoint is set by the standard variables. A collector that is away or slow costs spans, which are counted,
// and nothing else.
package spans

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/internal/metric"
)

// scope names the instrumentation.
const scope = "github.com/tinkerbell/stack/pkg/boot/spans"

// DefaultFlushTimeout is how long Close may send what waits.
const DefaultFlushTimeout = 5 * time.Second

// Options are what an exporter of boots needs.
type Options struct {
	// Getenv reads the standard variables of OpenTelemetry. The SDK looks for the others in the process'
	// environment.
	Getenv func(string) string
	// Pod is the name of this replica: it makes the traces of two pods different, and is an attribute of both.
	Pod string
	// Version is the program's.
	Version string
	// FlushTimeout is how long Close may take; 0 means DefaultFlushTimeout.
	FlushTimeout time.Duration
	// Logger may be nil.
	Logger *slog.Logger
	// Registry may be nil.
	Registry prometheus.Registerer
}

// Boots makes spans of what changes in a journal.
type Boots struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	pod      string
	flush    time.Duration
	log      *slog.Logger
	stop     context.CancelFunc // ends what is being sent
}

// New reads the variables; nil where no endpoint is set, or tracing is switched off.
func New(ctx context.Context, o Options) (*Boots, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := read(o.Getenv)
	if err != nil || !s.on {
		return nil, err
	}
	// The SDK knows one logger and one handler of errors for the whole process.
	otel.SetLogger(logr.FromSlogHandler(o.Logger.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		o.Logger.Warn("failed to trace boots", "error", err)
	}))
	var client sdk.SpanExporter
	if s.protocol == protocolGRPC {
		client, err = otlptracegrpc.New(ctx)
	} else {
		client, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to make an OTLP client: %w", err)
	}
	attributes, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		semconv.ServiceName("stack-boots"), semconv.ServiceVersion(o.Version), semconv.ServiceInstanceID(o.Pod),
		semconv.K8SPodName(o.Pod),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("failed to read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return start(o, s, client, attributes), nil
}

// start makes what New promises, on any client.
func start(o Options, s settings, client sdk.SpanExporter, attributes *resource.Resource) *Boots {
	counter := metric.New(o.Registry, "stack_boot").
		Counter("spans_total", "Spans of boots, by what became of them: sent, failed, dropped.", "result")
	for _, result := range []string{sent, failed, dropped} {
		counter.WithLabelValues(result)
	}
	over, stop := context.WithCancel(context.Background())
	e := &exporter{SpanExporter: client, log: loglimit.New(o.Logger, 1, warnEvery), spans: counter, over: over}
	queue := sdk.NewBatchSpanProcessor(e, sdk.WithMaxQueueSize(s.queue), sdk.WithMaxExportBatchSize(min(s.queue, batch)))
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(&bounded{queue, e, int64(s.queue)}),
		sdk.WithIDGenerator(ids{}), sdk.WithResource(attributes))
	b := &Boots{provider: provider, pod: o.Pod, flush: o.FlushTimeout, log: o.Logger, stop: stop}
	b.tracer = provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version))
	if b.flush == 0 {
		b.flush = DefaultFlushTimeout
	}
	return b
}

// batch is how many spans are sent at once.
const batch = 512

// Close sends what waits, for a time, and ends. Changed does nothing after it.
func (b *Boots) Close() {
	defer time.AfterFunc(b.flush, b.stop).Stop()
	defer b.stop()
	if err := b.provider.Shutdown(context.Background()); err != nil {
		b.log.Warn("failed to trace boots", "error", err)
	}
}
