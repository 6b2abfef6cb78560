package proxy

import (
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/route"
)

// A tftp route whose source changes with a reload is opened anew; its bounds change in place.
func TestSourceChangesByReload(t *testing.T) {
	before := route.Route{Name: "pxe", Protocol: route.TFTP, TFTP: route.TFTPOptions{Source: "proxy"}}
	for name, tt := range map[string]struct {
		change func(*route.Route)
		same   bool
	}{
		"source": {func(r *route.Route) { r.TFTP.Source = "transparent" }, false},
		"bounds": {func(r *route.Route) { r.Timeouts.Idle = setting.Duration(time.Minute) }, true},
	} {
		after := before
		tt.change(&after)
		if got := sameDatagram(before, after); got != tt.same {
			t.Errorf("%s changed: kept open %v, want %v", name, got, tt.same)
		}
		if transparent := tftpConfig(after).Transparent; transparent != (after.TFTP.Source == "transparent") {
			t.Errorf("%s changed: transparent %v", name, transparent)
		}
	}
}
