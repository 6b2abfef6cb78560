package journal

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// choices is a source of randomness that a fuzzer can steer: its bytes, in order, and then something that differs
// each time, since math/rand asks again until it likes what it gets.
type choices struct {
	bytes []byte
	more  uint64
}

func (c *choices) Uint64() uint64 {
	if len(c.bytes) == 0 {
		c.more += 0x9e3779b97f4a7c15
		return c.more
	}
	var b [8]byte
	c.bytes = c.bytes[copy(b[:], c.bytes):]
	return binary.LittleEndian.Uint64(b[:])
}

// FuzzRecord records encoded events as another program could send them, then events that the bytes choose.
func FuzzRecord(f *testing.F) {
	for _, s := range [][]shot{one.toAgent(0), film(one.asks(0), two.lease(4, plain, "x")), one.lease6(0, "x", pxe...)} {
		var b []byte
		for _, shot := range s {
			shot.event.At = after(shot.at).UnixNano()
			b = shot.event.AppendBinary(b)
		}
		f.Add(b)
	}
	source := rand.NewChaCha8([32]byte{1})
	b := make([]byte, 4000)
	_, _ = source.Read(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		limits := Limits{Machines: 5, Boots: 2, Messages: 20, Lines: 3, Bytes: 20_000}
		j := New(Options{Limits: limits, Changed: func(c Change) {
			if c.Kind == 0 || c.Machine.ID == "" || c.Boot.ID == "" {
				t.Fatalf("not a change: %+v", c)
			}
		}})
		rest := b
		for len(rest) > 0 {
			var e boot.Event
			next, err := e.Decode(rest)
			if err != nil {
				break
			}
			rest = next
			j.Record(&e)
			j.Tick(time.Unix(0, e.At).Add(time.Minute))
		}
		check(t, j)
		c := &choices{bytes: rest}
		r := rand.New(c)
		at := start
		for range 200 {
			if len(c.bytes) == 0 {
				break
			}
			at = at.Add(time.Duration(r.Int64N(int64(time.Minute))))
			e := random(r)
			e.At = at.UnixNano()
			j.Record(e)
			j.Tick(at)
		}
		check(t, j)
		for _, m := range j.Machines() {
			if _, ok := j.Machine(m.ID); !ok || len(m.Boots) == 0 {
				t.Fatalf("machine %q is listed: found %v, %d boots", m.ID, ok, len(m.Boots))
			}
		}
	})
}
