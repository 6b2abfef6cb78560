package tcp

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A client that asks a dead backend again and again, as firmware does, does not fill the log. What is left out is told.
func TestDeadBackendDoesNotFillTheLog(t *testing.T) {
	notTold(t, Settings{}, "no endpoint took the connection", "backend", running.refusal)
}

// Nor does one that sends wrong PROXY headers.
func TestRefusedHeadersDoNotFillTheLog(t *testing.T) {
	settings := Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	notTold(t, settings, "PROXY header refused", "proxy_header", func(r running) error {
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
		_, err = io.ReadAll(conn)
		return err
	})
}

// notTold has a front refuse many connections, and expects few lines of them and the number of the others.
func notTold(t *testing.T, s Settings, line, refusal string, connect func(running) error) {
	t.Helper()
	var log bytes.Buffer
	r := startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: s, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, refused(t))
	const connections = 300
	for range connections {
		_ = connect(r)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	lines := strings.Count(log.String(), `msg="`+line+`"`)
	told := 0
	for _, m := range regexp.MustCompile(`msg="lines about clients were left out" lines=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		told += n
	}
	if lines == 0 || lines > 200 || lines+told != connections {
		t.Errorf("%d lines, %d are left out, of %d connections", lines, told, connections)
	}
	if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", refusal)); n != connections {
		t.Errorf("%v are counted", n)
	}
}
