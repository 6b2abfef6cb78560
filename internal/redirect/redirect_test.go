package redirect

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// chain is a transport that leads from each URL of a list to the next, and answers the last one.
type chain []string

func (c chain) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	answer := func() *http.Response {
		a := w.Result()
		a.Request = r
		return a
	}
	for i, url := range c[:len(c)-1] {
		if r.URL.String() == url {
			http.Redirect(w, r, c[i+1], http.StatusFound)
			return answer(), nil
		}
	}
	return answer(), nil
}

func TestRedirects(t *testing.T) {
	hops := func(n int) chain {
		list := chain{"https://host/0"}
		for range n {
			list = append(list, list[len(list)-1]+"0")
		}
		return list
	}
	for name, test := range map[string]struct {
		chain chain
		fault string // of Secure
	}{
		"none":                      {chain{"http://a/"}, ""},
		"to another host":           {chain{"https://a/", "https://b/"}, ""},
		"to https":                  {chain{"http://a/", "https://b/"}, ""},
		"http to http":              {chain{"http://a/", "http://b/"}, ""},
		"to http":                   {chain{"https://a/", "http://b/"}, "redirect refused: from https to http"},
		"to https and back to http": {chain{"http://a/", "https://b/", "http://c/"}, "redirect refused: from https to http"},
		"four":                      {hops(4), ""},
		"five":                      {hops(5), "redirect refused: more than 4 in a row"},
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := (&http.Client{Transport: test.chain, CheckRedirect: Secure}).Get(test.chain[0])
			switch {
			case test.fault != "" && (err == nil || !strings.Contains(err.Error(), test.fault)):
				t.Errorf("got %v, want %q", err, test.fault)
			case test.fault == "" && err != nil:
				t.Error(err)
			case test.fault == "" && answer.Request.URL.String() != test.chain[len(test.chain)-1]:
				t.Errorf("ended at %s", answer.Request.URL)
			}
			answer, err = (&http.Client{Transport: test.chain, CheckRedirect: None}).Get(test.chain[0])
			if err != nil || (answer.StatusCode == http.StatusFound) != (len(test.chain) > 1) ||
				answer.Request.URL.String() != test.chain[0] {
				t.Errorf("None: got %v, %v", answer, err)
			}
		})
	}
}
