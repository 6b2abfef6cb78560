package dhcp

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestAppendOption82(t *testing.T) {
	agent := AppendSub(AppendSub(nil, SubCircuitID, []byte("vlan7")), SubLinkSelection, []byte{192, 0, 2, 1})
	option := append([]byte{82, byte(len(agent))}, agent...)
	added := func(tail ...byte) []byte { return append(append([]byte{53, 1, 1}, option...), tail...) }
	tests := map[string]struct {
		m     Message
		limit int
		want  []byte // options, nil if they stay
	}{
		"before the end":        {m: with(53, 1, 1, 255), want: added(255)},
		"over the pads":         {m: with(append([]byte{53, 1, 1, 255}, make([]byte, 17)...)...), want: added(255, 0, 0)},
		"end is missing":        {m: with(53, 1, 1), want: added(255)},
		"another agent's first": {m: with(82, 2, 1, 0, 255), want: append(append([]byte{82, 2, 1, 0}, option...), 255)},
		"just fits":             {m: with(53, 1, 1, 255), limit: 244 + 15, want: added(255)},
		"too long by one":       {m: with(53, 1, 1, 255), limit: 244 + 14},
		"options are cut off":   {m: with(53, 1, 1, 61, 9, 1)},
		"BOOTP":                 {m: fixed()},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			slot := make([]byte, len(test.m), 600)
			copy(slot, test.m)
			if test.limit == 0 {
				test.limit = 600
			}
			got, ok := Message(slot).AppendOption82(agent, test.limit)
			want := []byte(test.m)
			if test.want != nil {
				want = with(test.want...)
			}
			if diff := cmp.Diff(want, []byte(got)); diff != "" || ok != (test.want != nil) {
				t.Errorf("got %v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func TestJoinAgent(t *testing.T) {
	link := []byte{5, 4, 198, 51, 100, 1}
	long := func(n int) []byte { return append([]byte{82, byte(n), 1, byte(n - 2)}, make([]byte, n-2)...) }
	tests := map[string]struct {
		m    Message
		want []byte // options, nil if they stay
	}{
		"last before the end": {
			m:    with(82, 10, 1, 4, 0, 20, 0, 5, 2, 2, 0xab, 0xcd, 255),
			want: []byte{82, 16, 1, 4, 0, 20, 0, 5, 2, 2, 0xab, 0xcd, 5, 4, 198, 51, 100, 1, 255},
		},
		"not last, pads, and 0xff behind the end": {
			m: with(53, 1, 1, 0, 0, 82, 6, 1, 4, 0, 20, 0, 5, 0, 55, 2, 1, 3, 255, 255, 255, 255),
			want: []byte{
				53, 1, 1, 0, 0, 82, 12, 1, 4, 0, 20, 0, 5, 5, 4, 198, 51, 100, 1, 0, 55, 2, 1, 3, 255,
			},
		},
		"no end":                 {m: with(53, 1, 1, 82, 3, 1, 1, 'x'), want: append([]byte{53, 1, 1, 82, 9, 1, 1, 'x'}, append(link, 255)...)},
		"several":                {m: with(82, 4, 1, 2, 0, 1, 55, 1, 3, 82, 4, 2, 2, 0, 2, 255), want: []byte{82, 14, 1, 2, 0, 1, 2, 2, 0, 2, 5, 4, 198, 51, 100, 1, 55, 1, 3, 255}},
		"empty":                  {m: with(82, 0, 255), want: append([]byte{82, 6}, append(link, 255)...)},
		"just fits one option":   {m: with(append(long(249), 255)...), want: append(append(append([]byte{82, 255}, long(249)[2:]...), link...), 255)},
		"too long by one":        {m: with(append(long(250), 255)...)},
		"sub-options are cut":    {m: with(82, 4, 1, 9, 0, 20, 255)},
		"another is cut":         {m: with(82, 3, 1, 1, 'x', 82, 32, 1, 4)},
		"no option 82":           {m: with(53, 1, 1, 255)},
		"BOOTP":                  {m: fixed()},
		"too long for the limit": {m: with(append(append([]byte{82, 3, 1, 1, 'x', 200, 250}, make([]byte, 250)...), 201, 93)...)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			slot := make([]byte, len(test.m), 900)
			copy(slot, test.m)
			got, ok := Message(slot).JoinOption82(link, 560)
			want := []byte(test.m)
			if test.want != nil {
				want = with(test.want...)
			}
			if diff := cmp.Diff(want, []byte(got[:min(len(got), len(want))])); diff != "" || ok != (test.want != nil) {
				t.Errorf("got %v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

func TestStripSubs(t *testing.T) {
	both := SetOf(SubCircuitID) | SetOf(SubLinkSelection)
	_, sum := SumSubs([]byte{5, 1, 9, 1, 1, 'm'})
	tests := map[string]struct {
		m, want Message
		strip   func(Message) Message
	}{
		"the only one": {with(53, 1, 2, 82, 2, 1, 0, 255, 0), with(53, 1, 2, 255, 0), Message.StripOption82},
		"all":          {with(82, 2, 1, 0, 53, 1, 2, 82, 0, 255), with(53, 1, 2, 255), Message.StripOption82},
		"none":         {with(53, 1, 2, 255), with(53, 1, 2, 255), Message.StripOption82},
		"before no end": {
			with(53, 1, 2, 82, 2, 1, 0), with(53, 1, 2), Message.StripOption82,
		},
		"BOOTP":           {fixed(), fixed(), Message.StripOption82},
		"as sent":         {with(82, 9, 1, 1, 't', 1, 1, 'm', 5, 1, 9, 255), with(82, 3, 1, 1, 't', 255), ours(both, sum)},
		"sorted":          {with(82, 12, 1, 1, 't', 1, 1, 'm', 2, 1, 't', 5, 1, 9, 255), with(82, 6, 1, 1, 't', 2, 1, 't', 255), ours(both, sum)},
		"two options":     {with(82, 3, 1, 1, 't', 82, 6, 1, 1, 'm', 5, 1, 9, 255), with(82, 3, 1, 1, 't', 255), ours(both, sum)},
		"echoed twice":    {with(82, 9, 1, 1, 't', 1, 1, 'm', 5, 1, 9, 82, 9, 1, 1, 't', 1, 1, 'm', 5, 1, 9, 255), with(82, 3, 1, 1, 't', 255), ours(both, sum)},
		"theirs alone":    {with(82, 3, 1, 1, 't', 255), with(82, 3, 1, 1, 't', 255), ours(both, sum)},
		"one is added":    {with(82, 12, 1, 1, 't', 1, 1, 'm', 5, 1, 9, 7, 1, 's', 255), with(82, 6, 1, 1, 't', 7, 1, 's', 255), ours(both, sum)},
		"sum not known":   {with(82, 6, 1, 1, 't', 5, 1, 9, 255), with(82, 3, 1, 1, 't', 255), last(SetOf(SubLinkSelection))},
		"not echoed":      {with(53, 1, 2, 255), with(53, 1, 2, 255), ours(both, sum)},
		"cut sub-options": {with(82, 4, 1, 9, 0, 0, 255), with(82, 4, 1, 9, 0, 0, 255), last(both)},
		"none, BOOTP":     {fixed(), fixed(), ours(both, sum)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff([]byte(test.want), []byte(test.strip(bytes.Clone(test.m)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func ours(subs Subs, sum uint32) func(Message) Message {
	return func(m Message) Message { return m.StripSubsOfSum(subs, sum) }
}

func last(subs Subs) func(Message) Message {
	return func(m Message) Message { return m.StripSubs(subs) }
}

func TestSub(t *testing.T) {
	agent := []byte{1, 2, 'a', 'b', 5, 4, 1, 2, 3, 4, 9, 9, 0}
	for code, want := range map[byte]string{1: "ab", 5: "\x01\x02\x03\x04", 9: "", 2: ""} {
		got, found := Sub(agent, code)
		if string(got) != want || found != (code == 1 || code == 5) {
			t.Errorf("sub-option %d: got %q %v", code, got, found)
		}
	}
}

// FuzzAgent adds and removes an option 82: what is left is what was there.
func FuzzAgent(f *testing.F) {
	f.Add([]byte(with(53, 1, 1, 255)), []byte{1, 1, 'x'})
	f.Add([]byte(with(53, 1, 1)), []byte{})
	f.Add([]byte(with(53, 1, 1, 82, 2, 1, 0, 255, 0, 0)), []byte{5, 4, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, b, agent []byte) {
		m := make(Message, len(b), len(b)+300)
		copy(m, b)
		if m.Check() != OK {
			return
		}
		had := m.HasOption82()
		end, _ := m.end()
		added, ok := m.AppendOption82(agent, 1<<16)
		if !ok {
			if !bytes.Equal(added, b) {
				t.Fatal("changed though it did not fit")
			}
			return
		}
		if !bytes.Equal(added[:end], b[:end]) {
			t.Fatal("an earlier byte changed")
		}
		if !had {
			// The library reads what we wrote, wherever it could read the message at all.
			if oracle, err := dhcpv4.FromBytes(added); err == nil && len(agent) > 0 {
				if got := oracle.Options.Get(dhcpv4.OptionRelayAgentInformation); !bytes.Equal(got, agent) {
					t.Fatalf("the library reads %x, want %x", got, agent)
				}
			}
		}
		if stripped := added.StripOption82(); stripped.HasOption82() {
			t.Fatal("an option 82 is left")
		}
	})
}

// FuzzJoin joins sub-options to an option 82, and removes them: every option is there as it was.
func FuzzJoin(f *testing.F) {
	f.Add([]byte(with(53, 1, 1, 82, 2, 1, 0, 255, 0, 0)), []byte{198, 51, 100, 1})
	f.Add([]byte(with(82, 4, 1, 2, 0, 1, 0, 55, 1, 3, 82, 4, 2, 2, 0, 2)), []byte{1})
	f.Fuzz(func(t *testing.T, b, link []byte) {
		m := make(Message, len(b), len(b)+300)
		copy(m, b)
		if m.Check() != OK || len(link) > 200 {
			return
		}
		var before []byte // the other options, and what the agents say
		collect := func(m Message) (all []byte) {
			var agents []byte
			for code, value := range m.Options {
				if code == OptionAgent {
					agents = append(agents, value...)
				} else {
					all = append(append(all, code, byte(len(value))), value...)
				}
			}
			return append(all, agents...)
		}
		before = collect(m)
		value := AppendSub(nil, SubLinkSelection, link)
		subs, sum := SumSubs(value)
		joined, ok := m.JoinOption82(value, 1<<16)
		if !ok {
			if !bytes.Equal(joined, b) {
				t.Fatal("changed though it did not fit")
			}
			return
		}
		agents := 0
		for range joined.Options82 {
			agents++
		}
		if agents != 1 {
			t.Fatalf("%d options 82", agents)
		}
		if got := collect(joined.StripSubsOfSum(subs, sum)); !bytes.Equal(got, before) {
			t.Fatalf("got %x, want %x", got, before)
		}
	})
}
