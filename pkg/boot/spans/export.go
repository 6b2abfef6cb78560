package spans

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tinkerbell/stack/internal/loglimit"
)

// What became of a span.
const (
	sent    = "sent"
	failed  = "failed"  // the collector did not take it
	dropped = "dropped" // the queue was full
)

// warnEvery bounds the log.
const warnEvery = 10 * time.Minute

// bounded lets a span into the SDK's queue only where that has room, so that each that is dropped is counted.
type bounded struct {
	sdk.SpanProcessor
	*exporter
	room int64
}

// OnEnd implements sdk.SpanProcessor.
func (b *bounded) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if b.waiting.Add(1) > b.room {
		b.waiting.Add(-1)
		b.spans.WithLabelValues(dropped).Inc()
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// Shutdown implements sdk.SpanProcessor.
func (b *bounded) Shutdown(ctx context.Context) error { return b.SpanProcessor.Shutdown(ctx) }

// exporter sends by OTLP, counts, and tells of an outage once in a while. Its sending ends when it is told to.
type exporter struct {
	sdk.SpanExporter
	log     *loglimit.Limiter
	spans   *prometheus.CounterVec
	waiting atomic.Int64 // spans in the queue or on their way

	over context.Context // done when sending has to end
}

// ExportSpans implements sdk.SpanExporter. The SDK would log an error in its own words, and knows nothing else to do.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.over, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.waiting.Add(-int64(len(spans)))
	if err == nil {
		e.spans.WithLabelValues(sent).Add(float64(len(spans)))
		return nil
	}
	e.spans.WithLabelValues(failed).Add(float64(len(spans)))
	e.log.Warn("failed to export spans", func() []any { return []any{"error", err} })
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(ctx context.Context) error { return e.SpanExporter.Shutdown(ctx) }
