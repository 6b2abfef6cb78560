package page

import (
	"net/url"
	"testing"
	"time"
)

// Whatever a query says, the filter that is read from it says the same when it is written and read again.
func FuzzFilter(f *testing.F) {
	now := newSnapshot(site(5, time.Now()), nil)
	for _, seed := range []string{
		"", "state=stuck&q=a+b&offset=3&limit=0", "limit=-1", "q=%ff%00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		filter, err := parseFilter(query)
		if err != nil {
			return
		}
		now.matching(filter)
		written, err := url.ParseQuery(trimQuestion(filter.query()))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseFilter(written); err != nil || again != filter {
			t.Errorf("%q: %+v became %+v, %v", text, filter, again, err)
		}
	})
}

func trimQuestion(text string) string {
	if text != "" && text[0] == '?' {
		return text[1:]
	}
	return text
}
