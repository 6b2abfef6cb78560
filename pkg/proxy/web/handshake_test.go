package web

import (
	"crypto/tls"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/record"
)

// A client that speaks TLS where the route does not is recorded.
func TestTLSOnAPlainRouteIsRecorded(t *testing.T) {
	r := start(t, Settings{Pool: pool(refused(t))})
	mistaken := tls.Client(r.talk(t).Conn, &tls.Config{InsecureSkipVerify: true})
	if err := mistaken.Handshake(); err == nil {
		t.Error("a plain route speaks TLS")
	}
	if x := r.log.Await(t, 1)[0]; x.Kind != record.Stream || x.Outcome != record.Refused || x.Reason != boot.ReasonTLSOnPlain ||
		x.Client != here {
		t.Errorf("recorded %+v", x)
	}
}

// Handshakes that fail are counted, and are no lines at the usual level: whoever scans the port makes them.
func TestFailedHandshakesAreCounted(t *testing.T) {
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	var log strings.Builder
	r := startLogged(t, Settings{
		Pool: pool(refused(t)), TLS: &tls.Config{Certificates: certificates.TLS.Certificates, MinVersion: tls.VersionTLS13},
	}, &log)
	stranger := tls.Client(r.talk(t).Conn, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err := stranger.Handshake(); err == nil {
		t.Error("TLS 1.2 is taken")
	}
	plain := r.talk(t)
	_, _ = io.WriteString(plain.Conn, plainGet)
	_, _ = io.Copy(io.Discard, plain.Reader) // until it is closed
	friend := tls.Client(r.talk(t).Conn, &tls.Config{InsecureSkipVerify: true})
	if err := friend.Handshake(); err != nil {
		t.Error(err)
	}
	_ = friend.Close()
	failed := r.refusals.WithLabelValues("r", "tls")
	for deadline := time.Now().Add(time.Minute); testutil.ToFloat64(failed) < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v handshakes are counted as failed, not 2", testutil.ToFloat64(failed))
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := testutil.ToFloat64(failed); got != 2 {
		t.Errorf("%v handshakes are counted as failed, not 2", got)
	}
	told := r.log.Await(t, 2) // in any order: each connection has a goroutine of its own
	slices.SortFunc(told, func(a, b record.Exchange) int { return strings.Compare(b.Message, a.Message) })
	for i, why := range []string{"tls: ", "HTTPS server"} {
		if x := told[i]; x.Reason != boot.ReasonHandshake || x.Outcome != record.Refused || !strings.Contains(x.Message, why) ||
			x.Client != here {
			t.Errorf("recorded %+v, want %q", x, why)
		}
	}
	if strings.Contains(log.String(), "handshake") {
		t.Errorf("logged:\n%s", log.String())
	}
}
