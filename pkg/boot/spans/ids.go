package spans

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"go.opentelemetry.io/otel/trace"
)

// ids makes the IDs of traces and spans of what they are about, which the context carries. Nothing has to be
// remembered of a boot so that its steps, which end one after the other, come into one trace.
type ids struct{}

type idsKey struct{}

// identity is what the next span's IDs are made of.
type identity struct {
	boot string // unique among all pods
	span string // unique in the boot
}

func identified(ctx context.Context, i identity) context.Context {
	return context.WithValue(ctx, idsKey{}, i)
}

// NewIDs implements sdk.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	i, _ := ctx.Value(idsKey{}).(identity)
	sum := sha256.Sum256([]byte("trace\x00" + i.boot))
	t := trace.TraceID(sum[:16])
	t[0] |= 1 // zero would be none
	return t, i.spanID()
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	i, _ := ctx.Value(idsKey{}).(identity)
	return i.spanID()
}

func (i identity) spanID() trace.SpanID {
	sum := sha256.Sum256([]byte("span\x00" + i.boot + "\x00" + i.span))
	var s trace.SpanID
	binary.BigEndian.PutUint64(s[:], binary.BigEndian.Uint64(sum[:])|1)
	return s
}
