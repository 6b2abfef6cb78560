package strict

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type inner struct {
	Port  uint16         `json:"port"`
	Share float64        `json:"share,omitempty"`
	Of    []netip.Prefix `json:"of,omitempty"`
}

type outer struct {
	Name  string            `json:"name"`
	On    bool              `json:"on,omitempty"`
	Count int               `json:"count,omitempty"`
	One   *inner            `json:"one,omitempty"`
	List  []inner           `json:"list,omitempty"`
	Words map[string]string `json:"words,omitempty"`
}

func TestDecode(t *testing.T) {
	var d Decoder
	var got outer
	d.Decode([]byte(`
name: &n x
on: true
count: -3
one: {port: 80, share: 0.5}
list: {port: 1, of: 10.0.0.0/8}
words: {a: *n, b: ~}
`), &got)
	want := outer{
		Name: "x", On: true, Count: -3, One: &inner{Port: 80, Share: 0.5},
		List:  []inner{{Port: 1, Of: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		Words: map[string]string{"a": "x", "b": ""},
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, same); diff != "" || len(d.Mistakes()) > 0 {
		t.Errorf("%v\n%s", d.Mistakes(), diff)
	}
	for field, line := range map[string]int{"list[0].of[0]": 6, "list[0].share": 6, "one.port": 5, "nothing": 0} {
		if got := d.Line(field); got != line {
			t.Errorf("%s is on line %d, want %d", field, got, line)
		}
	}
}

// What the YAML parser says of itself is often the line above, or where the block around began.
func TestLinesOfSyntax(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"too far in":       {"a:\n- name: x\n  on: true\n   count: 1\n  one: {}\n", "line 4: not YAML: mapping values"},
		"too far out":      {"a:\n- name: x\n  on: true\n count: 1\n", "line 4: not YAML: did not find expected key"},
		"far from a begin": {"a:\n  b:\n" + strings.Repeat("  - c\n", 50) + "   d: e\n", "line 53: not YAML: "},
		"tab":              {"a:\n- name: x\n\ton: true\n", "line 3: not YAML: found a tab"},
		"no colon":         {"a:\n- name: x\n  on true\n  count: 1\n", "line 3: not YAML: could not find expected ':'"},
		"open bracket":     {"a:\n- name: x\n  list: [1, 2\n  on: true\n", "line 3: not YAML: did not find expected ',' or ']'"},
		"open brace":       {"a: {b: 1\nc: 2\n", "line 1: not YAML: did not find expected ',' or '}'"},
		"open quote":       {"a: 1\nname: \"x\non: true\ncount: 1\n", "line 2: not YAML: found unexpected end of stream"},
		"reserved":         {"a: 1\nb: @x\n", "line 2: not YAML: found character that cannot start any token"},
		"unknown anchor":   {"a: 1\nb: *x\nc: 1\n", "line 2: not YAML: unknown anchor 'x'"},
		"last line":        {"a: 1\nb: [", "line 2: not YAML: "},
		"not UTF-8":        {"a: 1\nb: \xff\n", "line 2: not YAML: "},
		"two documents":    {"name: x\n---\nname: y\n", "line 3: a second document begins here"},
		"an end":           {"name: x\n---\n", ""},
		"nothing":          {"# only a comment\n", "the file is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			var d Decoder
			d.Decode([]byte(test.text), new(outer))
			got := d.Mistakes().Error()
			if !strings.HasPrefix(got, test.want) || (test.want == "") != (got == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	var d Decoder
	d.Decode([]byte(`nam: x
on: 1
count: 1.5
one: {port: 65536, share: much, of: [10.0.0.1, x]}
list: [{port: 1, port: 2}, 7]
words: [a]
count: 2
`), new(outer))
	want := []string{
		"line 1: nam: no such field (did you mean name?)",
		`line 2: on: "1" is neither true nor false`,
		`line 3: count: "1.5" is not a whole number`,
		`line 4: one.of[0]: "10.0.0.1" is no prefix: write it as 192.0.2.0/24 or 2001:db8::/64`,
		`line 4: one.of[1]: "x" is no prefix: write it as 192.0.2.0/24 or 2001:db8::/64`,
		`line 4: one.port: "65536" is not a whole number from 0 to 65535`,
		`line 4: one.share: "much" is not a number`,
		"line 5: list[0].port: given before, on line 5",
		`line 5: list[1]: expected fields (port, share, of), found "7"`,
		"line 6: words: expected names and values, found a list",
		"line 7: count: given before, on line 3",
	}
	if diff := cmp.Diff(want, strings.Split(d.Mistakes().Error(), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestAddAndDrop(t *testing.T) {
	var d Decoder
	d.Decode([]byte("name: x\ncount: many\none: 5\n"), new(outer))
	read := d.Mistakes()
	d.Add(errors.Join(
		errors.New("name: too short"), errors.New("count: missing"), errors.New("one.port: missing"), errors.New("list: missing"),
	))
	d.Add(nil)
	d.DropAfter(read)
	want := "list: missing\nline 1: name: too short\nline 2: count: \"many\" is not a whole number\n" +
		"line 3: one: expected fields (port, share, of), found \"5\""
	if diff := cmp.Diff(want, d.Mistakes().Error()); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"name: x\none: {port: 1}\n", "a:\n- name: x\n count: 1\n", "a: &a [*a]\n", "? [x] : y", "a: {b\n", "<<: {name: x}\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d Decoder
		d.Decode(text, new(outer))
		lines := strings.Count(string(text), "\n") + strings.Count(string(text), "\r") + 1
		for _, each := range d.Mistakes() {
			if each.Line < 0 || each.Line > lines {
				t.Errorf("line %d of %d: %v", each.Line, lines, each)
			}
		}
	})
}
