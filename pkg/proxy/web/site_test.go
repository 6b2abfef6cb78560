package web

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Of routes that share a port, a line is about the one that the request was for; the first has what is for none.
func TestLinesAreOfTheirRoute(t *testing.T) {
	var log strings.Builder
	level := AccessLog("all")
	second := Settings{Hosts: []string{"b.example"}, Pool: pool(refused(t)), AccessLog: level}
	r := startLogged(t, Settings{
		Hosts: []string{"a.example"}, Pool: pool(refused(t)), AccessLog: level, Sites: []Site{{Route: "second", Settings: second}},
	}, &log)
	for _, host := range []string{"a.example", "b.example", "c.example"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/"+host, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		response, err := r.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	r.http.CloseIdleConnections()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(r.requests.WithLabelValues("r", "404")); got != 1 {
		t.Errorf("%v requests for no route are counted", got)
	}
	for path, route := range map[string]string{"/a.example": "r", "/b.example": "second", "/c.example": "r"} {
		lines := 0
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, " path="+path+" ") {
				continue
			}
			lines++
			if !strings.Contains(line, " route="+route+" ") || strings.Count(line, " route=") != 1 {
				t.Errorf("%s is of route %s: %s", path, route, line)
			}
		}
		if lines != 1 {
			t.Errorf("%d lines have path %s, not one", lines, path)
		}
	}
}
