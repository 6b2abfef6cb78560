package fetch

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

func TestReleasesAreFetchedThroughTheProxyThatIsSet(t *testing.T) {
	r := newRelease(t)
	r.set(hook(t, ""))
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Host != "releases.example" {
			t.Errorf("the proxy was asked for %s", req.URL)
		}
		asked.Add(1)
		r.ServeHTTP(w, req)
	}))
	t.Cleanup(proxy.Close)
	c := configFor(t.TempDir(), Set{Name: "hook", URL: "http://releases.example", Arch: "x86_64"})
	c.Proxy = proxy.URL
	f := newFetcher(t, c)
	if err := f.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if asked.Load() != 2 { // checksum.txt and one archive
		t.Errorf("the proxy was asked %d times", asked.Load())
	}
	c.Proxy = "proxy.example:3128"
	if err := c.Validate(); err == nil {
		t.Error("a proxy without a scheme is accepted")
	}
}
