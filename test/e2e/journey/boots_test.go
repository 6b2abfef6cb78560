package journey

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDifferences(t *testing.T) {
	wire := []Span{{"dhcp", 0, 1}, {"loader", 2, 30}, {"script", 40, 41}}
	for _, test := range []struct {
		name string
		pod  []Span
		want []string
	}{
		{"same", wire, nil},
		{"within 0.2 s or 5 %", []Span{{"dhcp", 0, 1.19}, {"loader", 1.9, 31.2}, {"script", 41.9, 42.9}}, nil},
		{
			"a step is missing", wire[:2],
			[]string{`m: the wire shows the steps "dhcp loader script", the pod "dhcp loader"`},
		},
		{
			"another order", []Span{wire[1], wire[0], wire[2]},
			[]string{`m: the wire shows the steps "dhcp loader script", the pod "loader dhcp script"`},
		},
		{"times", []Span{{"dhcp", 0, 1.21}, {"loader", 2.25, 30}, {"script", 40, 41.3}}, []string{
			"m: dhcp ends after 1.00 s on the wire, 1.21 s in the pod",
			"m: loader begins after 2.00 s on the wire, 2.25 s in the pod",
		}},
		{"nothing", nil, []string{`m: the wire shows the steps "dhcp loader script", the pod ""`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Boot{Machine: "m", Wire: wire, Pod: test.pod}.Differences()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	together := Boot{
		Machine: "m", Wire: []Span{{"syslog", 0.01, 1}, {"metadata", 0.02, 1}, {"agent", 0.5, 1}},
		Pod: []Span{{"metadata", 0.02, 1}, {"syslog", 0.03, 1}, {"agent", 0.5, 1}},
	}
	if got := together.Differences(); len(got) != 0 {
		t.Errorf("steps that begin at one time have an order: %q", got)
	}
	if got := (Boot{Machine: "m"}).Differences(); len(got) != 1 {
		t.Errorf("two who saw nothing agree: %q", got)
	}
}

func TestWriteBoots(t *testing.T) {
	var text strings.Builder
	err := WriteBoots(&text, []Boot{{
		"bios", []Span{{"dhcp", 0, 1}, {"loader", 2, 3.456}}, []Span{{"dhcp", 0, 1.01}},
	}})
	want := `bios  sniffer               pod
      dhcp 0.00 - 1.00 s    dhcp 0.00 - 1.01 s
      loader 2.00 - 3.46 s  -
`
	if diff := cmp.Diff(want, text.String()); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
