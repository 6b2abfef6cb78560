package web

import (
	"crypto/tls"
	"io"
	"net"
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

// A client that ends the connection at our certificate without an alert, as UEFI does, is recorded; one that says
// nothing at all, as a look whether the port is open, is not.
func TestClientThatLeavesAtTheCertificateIsRecorded(t *testing.T) {
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	r := start(t, Settings{Pool: pool(refused(t)), TLS: &tls.Config{Certificates: certificates.TLS.Certificates}})
	_ = r.talk(t).Conn.Close()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		mute := &oneWrite{Conn: r.talk(t).Conn}
		if err := tls.Client(mute, &tls.Config{MinVersion: version, MaxVersion: version, ServerName: "other.example"}).Handshake(); err == nil {
			t.Error("the certificate is trusted")
		}
		if version == tls.VersionTLS12 { // edk2 resets it
			_ = mute.Conn.(*net.TCPConn).SetLinger(0)
		}
		_ = mute.Close()
	}
	for _, x := range r.log.Await(t, 2) {
		if x.Reason != boot.ReasonHandshake || !strings.Contains(x.Message, "closed the connection at our certificate") ||
			!strings.Contains(x.Message, "(certificate valid from 1970-01-01 to 2084-01-29)") {
			t.Errorf("recorded %+v", x)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := len(r.log.Await(t, 2)); got != 2 {
		t.Errorf("%d connections are recorded, not 2", got)
	}
}

// oneWrite is a connection that passes on the first of what is written.
type oneWrite struct {
	net.Conn
	wrote bool
}

func (c *oneWrite) Write(b []byte) (int, error) {
	if c.wrote {
		return len(b), nil
	}
	c.wrote = true
	return c.Conn.Write(b)
}
