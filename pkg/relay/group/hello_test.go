package group

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var helloTime = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func sample() Hello {
	return Hello{State: State{ID: 0x0102030405060708, Able: true, Owner: true}, Stamp: helloTime.UnixNano()}
}

func TestHello(t *testing.T) {
	key := []byte("0123456789abcdef")
	ours := NewCodec("192.0.2.2 macvlan0", key)
	good := ours.Append(nil, sample())
	change := func(at int) []byte {
		b := append([]byte(nil), good...)
		b[at] ^= 1
		return b
	}
	tests := map[string]struct {
		b     []byte
		codec *Codec
		wall  time.Time
		want  Refusal
	}{
		"good":                   {b: good},
		"padded":                 {b: append(append([]byte(nil), good...), 0, 0)},
		"clocks differ a little": {b: good, wall: helloTime.Add(MaxSkew)},
		"recorded":               {b: good, wall: helloTime.Add(MaxSkew + time.Second), want: BadTime},
		"of the future":          {b: good, wall: helloTime.Add(-MaxSkew - time.Second), want: BadTime},
		"recorded, no key": {
			b: NewCodec("n", nil).Append(nil, sample()), codec: NewCodec("n", nil), wall: helloTime.Add(time.Hour),
		},
		"cut":                  {b: good[:HelloLen-1], want: NoHello},
		"empty":                {want: NoHello},
		"other magic":          {b: change(0), want: NoHello},
		"other version":        {b: change(4), want: NoHello},
		"forged flags":         {b: change(5), want: BadCode},
		"forged ID":            {b: change(16), want: BadCode},
		"forged stamp":         {b: change(31), want: BadCode},
		"forged code":          {b: change(HelloLen - 1), want: BadCode},
		"other group":          {b: change(8), want: OtherGroup},
		"of another listener":  {b: good, codec: NewCodec("192.0.2.2 macvlan1", key), want: OtherGroup},
		"we have no key":       {b: good, codec: NewCodec("192.0.2.2 macvlan0", nil), want: BadCode},
		"we have another key":  {b: good, codec: NewCodec("192.0.2.2 macvlan0", []byte("fedcba9876543210")), want: BadCode},
		"the other has no key": {b: NewCodec("192.0.2.2 macvlan0", nil).Append(nil, sample()), want: BadCode},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			codec, wall := test.codec, test.wall
			if codec == nil {
				codec = ours
			}
			if wall.IsZero() {
				wall = helloTime
			}
			got, refusal := codec.Parse(test.b, wall)
			if refusal != test.want {
				t.Fatalf("got %v, want %v", refusal, test.want)
			}
			want := sample()
			if refusal != Accepted {
				want = Hello{}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzHello(f *testing.F) {
	codec := NewCodec("192.0.2.2 macvlan0", nil)
	f.Add(codec.Append(nil, sample()))
	f.Add(codec.Append(nil, Hello{State: State{ID: 1, Leaving: true}, Stamp: -1}))
	f.Add([]byte("stkr\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, refusal := codec.Parse(b, helloTime)
		if refusal != Accepted {
			return
		}
		again, refusal := codec.Parse(codec.Append(nil, h), helloTime)
		if refusal != Accepted || again != h {
			t.Errorf("%+v became %+v (%v)", h, again, refusal)
		}
	})
}
