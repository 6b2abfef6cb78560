package spans

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"
)

// ids makes the IDs of a boot's trace and own span of the boot's ID, which the context carries, so that nothing has to
// be remembered of a boot for its steps, which end one after the other, to come into one trace. Those of other spans
// are random.
type ids struct{}

type idsKey struct{}

// NewIDs implements sdk.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	boot, _ := ctx.Value(idsKey{}).(string) // unique among all pods
	sum := sha256.Sum256([]byte(boot))
	sum[0] |= 1 // zero would be none
	sum[16] |= 1
	return trace.TraceID(sum[:16]), trace.SpanID(sum[16:24])
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (s trace.SpanID) {
	binary.BigEndian.PutUint64(s[:], rand.Uint64()|1)
	return s
}
