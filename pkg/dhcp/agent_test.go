package dhcp

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestAppendAgent(t *testing.T) {
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
			got, ok := Message(slot).AppendAgent(agent, test.limit)
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

func TestStripAgent(t *testing.T) {
	tests := map[string]struct {
		m, want Message
		strip   func(Message) Message
	}{
		"the only one":   {with(53, 1, 2, 82, 2, 1, 0, 255, 0), with(53, 1, 2, 255, 0), Message.StripAgents},
		"all":            {with(82, 2, 1, 0, 53, 1, 2, 82, 0, 255), with(53, 1, 2, 255), Message.StripAgents},
		"none":           {with(53, 1, 2, 255), with(53, 1, 2, 255), Message.StripAgents},
		"before no end":  {with(53, 1, 2, 82, 2, 1, 0), with(53, 1, 2), Message.StripAgents},
		"BOOTP":          {fixed(), fixed(), Message.StripAgents},
		"ours of two":    {with(82, 2, 1, 0, 82, 3, 5, 1, 9, 255), with(82, 2, 1, 0, 255), ours(3)},
		"ours of joined": {with(82, 5, 1, 0, 5, 1, 9, 255), with(82, 2, 1, 0, 255), ours(3)},
		"not echoed":     {with(53, 1, 2, 255), with(53, 1, 2, 255), ours(3)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff([]byte(test.want), []byte(test.strip(bytes.Clone(test.m)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func ours(n int) func(Message) Message { return func(m Message) Message { return m.StripAgent(n) } }

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
		had := m.HasAgent()
		end, _ := m.end()
		added, ok := m.AppendAgent(agent, 1<<16)
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
		stripped := added.StripAgent(len(agent))
		if !bytes.Equal(stripped[:end], b[:end]) || stripped.HasAgent() != had {
			t.Fatal("something else than ours was removed")
		}
	})
}
