package web

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// hiding is a gate that hides /2 and what is below it, and is sure of paths without a percent sign only.
type hiding struct{}

func (hiding) Ready() error { return nil }

func (hiding) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/2" || strings.HasPrefix(r.URL.Path, "/2/") {
			http.Error(w, "no such path", http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (hiding) PassesTarget() func([]byte) bool {
	return func(target []byte) bool {
		path, _, _ := bytes.Cut(target, []byte("?"))
		return !bytes.Contains(path, []byte("%")) && !bytes.Equal(path, []byte("/2")) && !bytes.HasPrefix(path, []byte("/2/"))
	}
}

// What a gate hides, it hides in every way that a request can take, in the midst of a connection too, and what it does
// not hide stays on the ways that cost least.
func TestHiddenPathsAreHiddenInEveryWay(t *testing.T) {
	withAndWithout(t, testHiddenPathsAreHiddenInEveryWay)
}

func testHiddenPathsAreHiddenInEveryWay(t *testing.T, start starter) {
	var mu sync.Mutex
	var reached []string
	settings := Settings{Gate: hiding{}, Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, r.RequestURI)
		fmt.Fprint(w, "here")
	}))}
	r := start(t, settings)
	requests := map[string]string{"body": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"}
	for way, request := range ways {
		requests[way] = request
	}
	hidden := 0
	for way, request := range requests {
		c := r.talk(t)
		for range 2 {
			for path, code := range map[string]int{"/1": 200, "/2": 404, "/2/x": 404, "/22": 200, "/%32": 404, "/%31": 200} {
				got, body := c.ask(t, strings.Replace(request, " / ", " "+path+"?a=/2 ", 1))
				if got.StatusCode != code || (body == "here") != (code == 200) {
					t.Errorf("%s: %s is answered %d %q", way, path, got.StatusCode, body)
				}
				if code == 404 {
					hidden++
				}
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, uri := range reached {
		if strings.HasPrefix(uri, "/2?") || strings.HasPrefix(uri, "/2/") || strings.HasPrefix(uri, "/%32") {
			t.Errorf("%s has reached the endpoint", uri)
		}
	}
	if n := testutil.ToFloat64(r.requests.WithLabelValues("r", "404")); int(n) != hidden {
		t.Errorf("%v requests are counted as 404, want %d", n, hidden)
	}
}

// A gate that looks at the path alone leaves connections in the loop, and one of which nothing is known does not.
func TestGateOfPathsLeavesConnectionsInTheLoop(t *testing.T) {
	addr, _ := raw(t, fine)
	got := map[string]bool{}
	for name, gate := range map[string]Gate{"none": nil, "paths": hiding{}, "any": &open{}} {
		r := start(t, Settings{Pool: pool(addr), Gate: gate})
		p := r.current.Load().plain
		got[name] = p != nil
	}
	if diff := cmp.Diff(map[string]bool{"none": true, "paths": true, "any": false}, got); diff != "" {
		t.Error(diff)
	}
}
