package setting

import (
	"encoding/json"
	"testing"
)

func TestRate(t *testing.T) {
	tests := map[string]struct {
		want  Rate
		again string
		bad   bool
	}{
		`1000000000`:    {want: 1e9, again: `"1G"`},
		`"1G"`:          {want: 1e9, again: `"1G"`},
		`"2.5G"`:        {want: 2.5e9, again: `"2500M"`},
		`"0.125M"`:      {want: 125e3, again: `"125k"`},
		`"500M"`:        {want: 5e8, again: `"500M"`},
		`"64k"`:         {want: 64e3, again: `"64k"`},
		`"7"`:           {want: 7, again: `"7"`},
		`"1000T"`:       {want: 1e15, again: `"1000T"`},
		`"1Gi"`:         {bad: true}, // networks are not measured in powers of 1024
		`"1001T"`:       {bad: true},
		`"1000.1T"`:     {bad: true},
		`"1.5"`:         {bad: true},
		`"1."`:          {bad: true},
		`"1.G"`:         {bad: true},
		`".5G"`:         {bad: true},
		`"1.2345k"`:     {bad: true},
		`"-1M"`:         {bad: true},
		`"+1M"`:         {bad: true},
		`"1 G"`:         {bad: true},
		`"fast"`:        {bad: true},
		`""`:            {bad: true},
		`{}`:            {bad: true},
		`"99999999999"`: {want: 99999999999, again: `"99999999999"`},
	}
	for text, test := range tests {
		var r Rate
		if err := json.Unmarshal([]byte(text), &r); (err != nil) != test.bad || r != test.want {
			t.Errorf("%s: got %d, %v; want %d", text, r, err, test.want)
			continue
		}
		if again, _ := json.Marshal(r); !test.bad && string(again) != test.again {
			t.Errorf("%s: written again as %s, want %s", text, again, test.again)
		}
	}
}

func FuzzRate(f *testing.F) {
	for _, seed := range []string{`"2.5G"`, `1000000`, `"0.001k"`, `"9223372036854775807T"`, `"1.9999999999999T"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r, again Rate
		if json.Unmarshal([]byte(text), &r) != nil {
			return
		}
		written, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(written, &again); err != nil || again != r || r < 0 {
			t.Errorf("%s: read as %d, written as %s, read again as %d, %v", text, r, written, again, err)
		}
	})
}
