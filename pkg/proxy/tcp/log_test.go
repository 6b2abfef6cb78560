package tcp

import (
	"bytes"
	"log/slog"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A client that asks a dead backend again and again, as firmware does, does not fill the log. What is left out is told.
func TestDeadBackendDoesNotFillTheLog(t *testing.T) {
	var log bytes.Buffer
	r := startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, refused(t))
	const connections = 300
	for range connections {
		_ = r.refusal()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	lines := strings.Count(log.String(), `msg="no endpoint took the connection"`)
	told := 0
	for _, m := range regexp.MustCompile(`msg="lines about clients were left out" lines=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		told += n
	}
	if lines == 0 || lines > 200 || lines+told != connections {
		t.Errorf("%d lines, %d are left out, of %d connections", lines, told, connections)
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", "backend")); n != connections {
		t.Errorf("%v are counted", n)
	}
}
