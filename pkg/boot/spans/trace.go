package spans

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Bounds of a span.
const (
	textRoom    = 256 // bytes of a text
	mostAnswers = 32  // events of a span
)

// Attributes that no convention has a name for.
const (
	keyBoot     = attribute.Key("tinkerbell.boot.id")
	keyState    = attribute.Key("tinkerbell.boot.state")
	keyStep     = attribute.Key("tinkerbell.boot.step")
	keyResult   = attribute.Key("tinkerbell.boot.result")
	keyCause    = attribute.Key("tinkerbell.boot.cause")
	keyRemedy   = attribute.Key("tinkerbell.boot.remedy")
	keyBytes    = attribute.Key("tinkerbell.boot.bytes")
	keyText     = attribute.Key("tinkerbell.boot.text")
	keyCount    = attribute.Key("tinkerbell.boot.count")
	keyHardware = attribute.Key("tinkerbell.hardware")
	keyHostMAC  = attribute.Key("host.mac")
)

// Changed makes spans of what is over, and never waits. It may be the journal's Options.Changed.
func (b *Boots) Changed(c journal.Change) {
	switch c.Kind {
	case journal.StepEnded:
		b.step(c)
	case journal.CauseChanged:
		if c.Boot.IsStuck() {
			b.stuck(c)
		}
	case journal.BootEnded:
		_, span := b.boot(c)
		if cause := c.Boot.Cause; c.Boot.IsStuck() {
			span.SetAttributes(keyCause.String(cause.Name), semconv.ErrorTypeKey.String(cause.Name))
			span.SetStatus(codes.Error, clean(cause.Text))
		}
		span.SetAttributes(keyState.String(string(c.Boot.State)), keyStep.String(string(c.Boot.At)))
		span.End(trace.WithTimestamp(c.Boot.End))
	case journal.StateChanged: // the boot's own span comes when it is over
	}
}

// boot starts a boot's own span anew: it has the same IDs each time, the sampler's verdict is the same, and it costs
// nothing where it is not ended.
func (b *Boots) boot(c journal.Change) (context.Context, trace.Span) {
	ctx := context.WithValue(context.Background(), idsKey{}, b.pod+"\x00"+c.Boot.ID)
	return b.tracer.Start(ctx, "boot", trace.WithNewRoot(), trace.WithTimestamp(c.Boot.Begin),
		trace.WithAttributes(machine(c)...))
}

func (b *Boots) step(c journal.Change) {
	s := &c.Step
	ctx, _ := b.boot(c)
	_, span := b.tracer.Start(ctx, string(s.Step), trace.WithTimestamp(s.Begin), trace.WithAttributes(machine(c)...))
	span.SetAttributes(keyStep.String(string(s.Step)), keyResult.String(string(s.Result)), size(keyBytes, s.Bytes))
	span.SetAttributes(server(s.From)...)
	if s.Text != "" {
		span.SetAttributes(keyText.String(clean(s.Text)))
	}
	if span.IsRecording() {
		for _, a := range s.Answers[max(len(s.Answers)-mostAnswers, 0):] {
			span.AddEvent(clean(a.Kind), trace.WithTimestamp(a.Begin), trace.WithAttributes(answer(a)...))
		}
	}
	if s.Result == journal.Failed {
		why := "failed"
		if n := len(s.Answers); n > 0 {
			why = clean(s.Answers[n-1].Result)
		}
		span.SetStatus(codes.Error, why)
		span.SetAttributes(semconv.ErrorTypeKey.String(why))
	}
	span.End(trace.WithTimestamp(s.End))
}

// stuck makes a span from the cause's begin to when it was told, so that a machine that never gets on is seen while
// its boot goes on.
func (b *Boots) stuck(c journal.Change) {
	cause := c.Boot.Cause
	ctx, _ := b.boot(c)
	begin := cause.Since
	if begin.IsZero() || begin.After(c.At) {
		begin = c.At
	}
	_, span := b.tracer.Start(ctx, "stuck", trace.WithTimestamp(begin), trace.WithAttributes(machine(c)...))
	span.SetAttributes(keyStep.String(string(c.Boot.At)), keyCause.String(cause.Name),
		semconv.ErrorTypeKey.String(cause.Name), keyRemedy.String(clean(cause.Remedy)))
	span.SetStatus(codes.Error, clean(cause.Text))
	span.End(trace.WithTimestamp(c.At))
}

// machine tells whose boot it is. The convention writes a MAC in capitals with hyphens.
func machine(c journal.Change) []attribute.KeyValue {
	m := &c.Machine
	all := []attribute.KeyValue{keyBoot.String(clean(c.Boot.ID))}
	if m.MAC != "" {
		macs := []string{ieee(m.MAC)}
		for _, other := range m.OtherMACs[:min(len(m.OtherMACs), 8)] {
			macs = append(macs, ieee(other))
		}
		all = append(all, keyHostMAC.StringSlice(macs))
	}
	if m.Address.IsValid() {
		all = append(all, semconv.ClientAddress(m.Address.String()))
	}
	for key, text := range map[attribute.Key]string{
		semconv.HostIDKey: m.UUID, semconv.HostNameKey: m.Name, semconv.HostArchKey: m.Arch, keyHardware: m.Hardware,
	} {
		if text != "" {
			all = append(all, key.String(clean(text)))
		}
	}
	return all
}

func ieee(mac string) string { return strings.ToUpper(strings.ReplaceAll(clean(mac), ":", "-")) }

// server tells an endpoint by address and port, or by whatever it is called.
func server(from string) []attribute.KeyValue {
	if from == "" {
		return nil
	}
	if at, err := netip.ParseAddrPort(from); err == nil {
		return endpoint(at)
	}
	return []attribute.KeyValue{semconv.ServerAddress(clean(from))}
}

func endpoint(at netip.AddrPort) []attribute.KeyValue {
	if !at.Addr().IsValid() {
		return nil
	}
	return []attribute.KeyValue{semconv.ServerAddress(at.Addr().String()), semconv.ServerPort(int(at.Port()))}
}

// answer tells of a message, transfer or request within a step.
func answer(a journal.Answer) []attribute.KeyValue {
	all := append(endpoint(a.From), keyText.String(clean(a.Text)), keyResult.String(clean(a.Result)))
	if a.Count > 1 {
		all = append(all, keyCount.Int(a.Count))
	}
	if a.Bytes > 0 {
		all = append(all, size(keyBytes, a.Bytes))
	}
	switch a.Kind {
	case "GET", "HEAD", "POST", "PUT":
		all = append(all, semconv.HTTPRequestMethodKey.String(a.Kind), semconv.URLPath(clean(a.Text)))
		if code, err := strconv.Atoi(a.Result); err == nil {
			all = append(all, semconv.HTTPResponseStatusCode(code))
		}
	}
	if took := a.End.Sub(a.Begin); took > 0 {
		all = append(all, attribute.Float64("tinkerbell.boot.seconds", took.Round(time.Microsecond).Seconds()))
	}
	return all
}

func size(key attribute.Key, n uint64) attribute.KeyValue { return key.Int64(int64(min(n, 1<<62))) }

// clean makes a text of a machine fit for a trace.
func clean(text string) string { return boot.CleanCut(text, textRoom) }
