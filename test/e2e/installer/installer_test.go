package installer_test

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

const commandLine = "loglevel=4 facility= syslog_host=192.0.2.2 grpc_authority=192.0.2.2:42113 tinkerbell_tls=false " +
	"worker_id=w hw_addr=52:54:00:00:00:01 console=ttyS1,115200\n"

func TestParseCommandLine(t *testing.T) {
	got, err := installer.ParseCommandLine(commandLine)
	if err != nil {
		t.Fatal(err)
	}
	want := installer.Config{
		WorkerID: "w", HWAddr: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, Syslog: "192.0.2.2:514",
		Tink: "192.0.2.2:42113", Metadata: "http://192.0.2.2:50061",
	}
	if got.WorkerID != want.WorkerID || got.HWAddr.String() != want.HWAddr.String() || got.Syslog != want.Syslog ||
		got.Tink != want.Tink || got.Metadata != want.Metadata {
		t.Errorf("got %+v", got)
	}
	got, err = installer.ParseCommandLine(commandLine + " metadata=http://192.0.2.2:7080 agent=http://192.0.2.2:7173/agent")
	if err != nil || got.Metadata != "http://192.0.2.2:7080" || got.Agent != "http://192.0.2.2:7173/agent" {
		t.Errorf("of the modern Tinkerbell: got %+v, %v", got, err)
	}
	_, err = installer.ParseCommandLine("grpc_authority=192.0.2.2 hw_addr=x worker_id=w")
	if err == nil {
		t.Fatal("a bad command line is taken")
	}
	for _, fault := range []string{"no syslog_host=", "missing port", "invalid MAC"} {
		if !strings.Contains(err.Error(), fault) {
			t.Errorf("the error does not name %q: %v", fault, err)
		}
	}
}

func TestParseCommandLineIPv6(t *testing.T) {
	line := strings.NewReplacer("192.0.2.2:", "[2001:db8:1::2]:", "192.0.2.2", "2001:db8:1::2").Replace(commandLine)
	got, err := installer.ParseCommandLine(line)
	if err != nil {
		t.Fatal(err)
	}
	if got.Syslog != "[2001:db8:1::2]:514" || got.Metadata != "http://[2001:db8:1::2]:50061" || !got.IPv6() {
		t.Errorf("got %+v, IPv6 %v", got, got.IPv6())
	}
	if got, err = installer.ParseCommandLine(commandLine); err != nil || got.IPv6() {
		t.Errorf("of IPv4: got IPv6 %v, %v", got.IPv6(), err)
	}
}

func TestLine(t *testing.T) {
	report := installer.Report{Step: "grpc", OK: true, Detail: `a "b"` + "\n", Data: map[string]string{"x": "y"}}
	line := report.Line()
	if strings.Contains(line, "\n") {
		t.Errorf("%q is more than a line", line)
	}
	got, ok := installer.ParseLine([]byte("[    1.23] kernel says " + line))
	if !ok {
		t.Fatalf("no report in %q", line)
	}
	if diff := cmp.Diff(report, got); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{"", "@@step", "@@step {", "init: hello"} {
		if _, ok := installer.ParseLine([]byte(line)); ok {
			t.Errorf("a report in %q", line)
		}
	}
}

func FuzzParseLine(f *testing.F) {
	f.Add([]byte(installer.Report{Step: "x"}.Line()))
	f.Add([]byte("@@step {}"))
	f.Fuzz(func(t *testing.T, line []byte) {
		if report, ok := installer.ParseLine(line); ok && strings.Contains(report.Line(), "\n") {
			t.Error("a report of more than a line")
		}
	})
}

// site is a machine's view of Tinkerbell: everything behind one dialer, by port.
type site struct {
	metadata, files *httptest.Server
	tink            net.Listener
	syslog          net.PacketConn
	workflows       map[string][]tink.Workflow
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{}
	values := map[string]string{
		"/2009-04-04/meta-data/instance-id": "52:54:00:00:00:01",
		"/2009-04-04/meta-data/hostname":    "m1", "/2009-04-04/meta-data/public-ipv4": "192.0.2.101",
	}
	s.metadata = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(values[r.URL.Path]))
	}))
	t.Cleanup(s.metadata.Close)
	s.files = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("image"))
	}))
	t.Cleanup(s.files.Close)
	sum := sha512.Sum512([]byte("image"))
	s.workflows = map[string][]tink.Workflow{"w": {{ID: "f", Actions: []tink.Action{{
		Name: "stream", WorkerID: "w",
		Environment: []string{"IMG_URL=http://192.0.2.2:8080/x", "IMG_SHA512=" + hex.EncodeToString(sum[:])},
	}}}}}
	var err error
	if s.tink, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	server := tink.NewGRPC(&tink.Server{Workflows: s.workflows})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.tink) }()
	t.Cleanup(func() { server.Stop(); <-ended })
	if s.syslog, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.syslog.Close() })
	return s
}

func (s *site) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	to := map[string]net.Addr{
		"50061": s.metadata.Listener.Addr(), "8080": s.files.Listener.Addr(), "42113": s.tink.Addr(),
		"514": s.syslog.LocalAddr(),
	}[port]
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, to.String())
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*site, *installer.Config)
		failed string // step
		fault  string
	}{
		{"all is well", func(*site, *installer.Config) {}, "", ""},
		{"another machine's metadata", func(_ *site, c *installer.Config) {
			c.Addr = netip.MustParseAddr("192.0.2.102")
		}, installer.StepMetadata, `public-ipv4 is "192.0.2.101", mine is "192.0.2.102"`},
		{"no workflow", func(_ *site, c *installer.Config) { c.WorkerID = "v" }, installer.StepGRPC, "no workflow for worker v"},
		{"no Tink", func(s *site, _ *installer.Config) { _ = s.tink.Close() }, installer.StepGRPC, "workflow stream"},
		{"another image", func(s *site, _ *installer.Config) {
			s.workflows["w"][0].Actions[0].Environment[1] = "IMG_SHA512=00"
		}, installer.StepArtifact, "SHA-512 is"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			config, err := installer.ParseCommandLine(commandLine)
			if err != nil {
				t.Fatal(err)
			}
			var steps []string
			var last installer.Report
			config.Addr, config.Hostname = netip.MustParseAddr("192.0.2.101"), "m1"
			config.Dial, config.Attempts = s.dial, time.Millisecond
			config.Report = func(r installer.Report) {
				last = r
				steps = append(steps, r.Step)
			}
			test.change(s, &config)
			err = installer.Run(t.Context(), config)
			if test.failed == "" {
				if err != nil {
					t.Fatal(err)
				}
				want := []string{
					installer.StepSyslog, installer.StepMetadata, installer.StepGRPC, installer.StepArtifact,
				}
				if diff := cmp.Diff(want, steps); diff != "" {
					t.Error(diff)
				}
				line := make([]byte, 2048)
				if err := s.syslog.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
				n, _, err := s.syslog.ReadFrom(line)
				if err != nil {
					t.Fatal(err)
				}
				got := string(line[:n])
				if !strings.HasPrefix(got, "<133>") ||
					!strings.HasSuffix(got, " installer[1]: machine 52:54:00:00:00:01 at 192.0.2.101 begins") {
					t.Errorf("syslog line is %q", got)
				}
				return
			}
			if err == nil || last.OK || last.Step != test.failed || !strings.Contains(last.Detail, test.fault) {
				t.Errorf("got %+v, %v", last, err)
			}
		})
	}
}
