package consent

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func messages() []Message {
	return []Message{
		{Kind: Who, Nonce: Nonce{1, 2}, Boot: 3, Count: 4, From: "node-1_0f3a"},
		{Kind: Ask, Nonce: Nonce{15: 9}, Boot: 1<<64 - 1, Count: 1, From: strings.Repeat("n", MaxFrom)},
		{Kind: Here, From: "node-2", Leases: []ID{IDOf("a")}},
		{Kind: Consents, From: "node-3", Leases: make([]ID, MaxLeases)},
	}
}

func TestMessages(t *testing.T) {
	codec := NewCodec("stack", []byte("a key"))
	for _, want := range messages() {
		b := codec.Append(nil, want)
		got, ok, err := codec.Parse(append(b, 0, 0, 0)) // the padding of a short frame
		if diff := cmp.Diff(want, got); !ok || err != nil || diff != "" {
			t.Errorf("%v, %v: %s", ok, err, diff)
		}
		if len(b) > MaxLen {
			t.Errorf("%d bytes", len(b))
		}
		for _, other := range []*Codec{NewCodec("stack", []byte("b key")), NewCodec("other", []byte("a key"))} {
			if _, ok, err := other.Parse(b); !ok || !errors.Is(err, ErrForged) {
				t.Errorf("with another key: %v, %v", ok, err)
			}
		}
		for i := range b {
			forged := bytes.Clone(b)
			forged[i]++
			if m, ok, err := codec.Parse(forged); ok && err == nil {
				t.Errorf("with byte %d changed: %+v", i, m)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	codec := NewCodec("stack", []byte("a key"))
	for _, m := range messages() {
		f.Add(codec.Append(nil, m))
	}
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok, err := codec.Parse(b)
		if !ok || err != nil {
			return
		}
		if again := codec.Append(nil, m); !bytes.HasPrefix(b, again) {
			t.Errorf("%x is read as %+v, which is %x", b, m, again)
		}
	})
}

func TestRecordedChallengesAreOld(t *testing.T) {
	var m Memory
	for i, step := range []struct {
		boot, count uint64
		fresh       bool
	}{{1, 1, true}, {1, 1, false}, {1, 3, true}, {1, 2, false}, {2, 1, true}, {2, 0, false}} {
		if got := m.Fresh(step.boot, step.count); got != step.fresh {
			t.Errorf("step %d: %v", i, got)
		}
	}
	for boot := range uint64(3 * maxMemory) {
		m.Fresh(boot+10, 1)
	}
	if len(m.last) > maxMemory {
		t.Errorf("%d processes are remembered", len(m.last))
	}
}

func TestRounds(t *testing.T) {
	var r Rounds
	a, b := IDOf("a"), IDOf("b")
	for i := range 10 {
		r.Begin(Nonce{byte(i)}, time.Duration(i), i != 7)
	}
	if r.Answer(Nonce{0}, "n2", []ID{a}, true) {
		t.Error("an answer of long ago counts")
	}
	if !r.Answer(Nonce{8}, "n2", []ID{a}, true) || !r.Answer(Nonce{9}, "n3", []ID{a, b}, true) {
		t.Error("an answer does not count")
	}
	if r.Answer(Nonce{9}, "n2", []ID{b}, false) || !r.Answer(Nonce{7}, "n2", []ID{b}, false) {
		t.Error("who is there is taken for consent")
	}
	for _, test := range []struct {
		lease   ID
		members []string
		want    bool
	}{
		{a, nil, false},
		{a, []string{"n1"}, true},
		{a, []string{"n1", "n2"}, true},
		{a, []string{"n1", "n2", "n3"}, false}, // not in one round
		{b, []string{"n1", "n3"}, true},
		{b, []string{"n1", "n2"}, false},
	} {
		if _, got := r.Start(test.lease, test.members, "n1"); got != test.want {
			t.Errorf("%v of %v consents: %v", test.members, test.lease, got)
		}
	}
}

func TestLists(t *testing.T) {
	for _, text := range []string{"", "17", "17 n1", "17 n1 n2"} {
		if got := ParseList(text).String(); got != text {
			t.Errorf("%q is %q", text, got)
		}
	}
}
