package proxy

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/route"
)

// rateOf reads a gauge or counter of the route r.
func (p testProxy) rateOf(t *testing.T, name string) float64 {
	t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == "r" {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// A reload gives a route a rate, changes it, and takes it away. A file that is on its way follows, and comes whole; the
// route's addresses have one rate together.
func TestRateFollowsReloads(t *testing.T) {
	directory := t.TempDir()
	content := make([]byte, 48<<20)
	_, _ = rand.Read(content)
	if err := os.WriteFile(filepath.Join(directory, "image"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	r := row("r", route.Files, free(t))
	r.Listen = append(r.Listen, free(t))
	r.Files.Directory = directory
	rated := func(rate setting.Rate) route.Table {
		next := r
		next.Limits.Rate = rate
		return table(next)
	}
	p := start(t, Options{Table: rated(0)})
	get := func(l route.Listen) *http.Response {
		response, err := http.Get("http://" + l.AddrPort().String() + "/image")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	body := get(r.Listen[0]).Body
	got := make([]byte, len(content))
	if _, err := io.ReadFull(body, got[:1<<20]); err != nil {
		t.Fatal(err)
	}
	p.apply(t, rated(800e6))
	if n := p.rateOf(t, "stack_proxy_rate_limit_bytes_per_second"); n != 100e6 {
		t.Errorf("the rate is %v bytes a second", n)
	}
	if _, err := io.ReadFull(body, got[1<<20:32<<20]); err != nil {
		t.Fatal(err)
	}
	before := p.rateOf(t, "stack_proxy_rate_sent_bytes_total")
	if before == 0 {
		t.Error("what is under way does not follow the new rate")
	}
	second := get(r.Listen[1]).Body
	if _, err := io.ReadFull(second, make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	if more := p.rateOf(t, "stack_proxy_rate_sent_bytes_total") - before; more < 8<<20 {
		t.Errorf("%.0f bytes were taken from the rate for the other address", more)
	}
	p.apply(t, rated(1e6)) // half a minute for every 4 MiB
	time.Sleep(50 * time.Millisecond)
	p.apply(t, rated(0))
	if _, err := io.ReadFull(body, got[32<<20:]); err != nil || !bytes.Equal(got, content) {
		t.Errorf("got something else, or %v", err)
	}
	if n := p.rateOf(t, "stack_proxy_rate_limit_bytes_per_second"); n != 0 {
		t.Errorf("the rate is still %v bytes a second", n)
	}
}
