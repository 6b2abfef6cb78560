package setting

import (
	"encoding/json"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	tests := map[string]struct {
		want time.Duration
		bad  bool
	}{
		`"90s"`:   {want: 90 * time.Second},
		`"1h30m"`: {want: 90 * time.Minute},
		`"0"`:     {},
		`90`:      {bad: true},
		`"90"`:    {bad: true},
		`"soon"`:  {bad: true},
	}
	for text, test := range tests {
		var d Duration
		if err := json.Unmarshal([]byte(text), &d); (err != nil) != test.bad || d.D() != test.want {
			t.Errorf("%s: got %v, %v; want %v", text, d, err, test.want)
		}
	}
}

func TestSize(t *testing.T) {
	tests := map[string]struct {
		want  Size
		again string
		bad   bool
	}{
		`4096`:                    {want: 4096, again: `"4Ki"`},
		`"64Mi"`:                  {want: 64 << 20, again: `"64Mi"`},
		`"10G"`:                   {want: 1e10, again: `"9765625Ki"`},
		`"7"`:                     {want: 7, again: `"7"`},
		`"-1"`:                    {bad: true},
		`"9999999999Ti"`:          {bad: true},
		`"9223372036854775808"`:   {bad: true},
		`"1.5Gi"`:                 {bad: true},
		`{}`:                      {bad: true},
		`"9223372036854775807Ki"`: {bad: true},
	}
	for text, test := range tests {
		var b Size
		if err := json.Unmarshal([]byte(text), &b); (err != nil) != test.bad || b != test.want {
			t.Errorf("%s: got %d, %v; want %d", text, b, err, test.want)
			continue
		}
		if again, _ := json.Marshal(b); !test.bad && string(again) != test.again {
			t.Errorf("%s: written again as %s, want %s", text, again, test.again)
		}
	}
}

func FuzzSize(f *testing.F) {
	f.Add(`"10Gi"`)
	f.Fuzz(func(t *testing.T, text string) {
		var b, again Size
		if json.Unmarshal([]byte(text), &b) != nil {
			return
		}
		written, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(written, &again); err != nil || again != b || b < 0 {
			t.Errorf("%s: read as %d, written as %s, read again as %d, %v", text, b, written, again, err)
		}
	})
}
