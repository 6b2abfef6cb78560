package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
)

// Settings that do not go together end the start, each named.
func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		set  map[string]string
		want string
	}{
		"no key":        {map[string]string{}, `STACK_BOOTS_LISTEN_ADDRESS=":9072": whoever reaches it would be believed: set STACK_BOOTS_KEY_FILE`},
		"no Kubernetes": {map[string]string{"LISTEN_ADDRESS": "/a", "NAMESPACES": "a"}, `STACK_BOOTS_NAMESPACES=["a"]: goes with STACK_BOOTS_KUBERNETES`},
		"no namespace":  {map[string]string{"LISTEN_ADDRESS": "/a", "KUBERNETES": "true", "NAMESPACES": "a,B"}, `STACK_BOOTS_NAMESPACES="B": no name of a namespace`},
		"no memory":     {map[string]string{"LISTEN_ADDRESS": "/a", "MEMORY": "0"}, "STACK_BOOTS_MEMORY=0: not within 1 and"},
		"no port":       {map[string]string{"LISTEN_ADDRESS": "/a", "ADMIN_ADDRESS": "hello"}, `STACK_BOOTS_ADMIN_ADDRESS="hello": not host:port`},
		"no host":       {map[string]string{"LISTEN_ADDRESS": "/a", "HOSTS": "a.b,http://x/"}, `STACK_BOOTS_HOSTS="http://x/": no name of a host`},
		"no directory":  {map[string]string{"LISTEN_ADDRESS": "/a", "HISTORY_FILE": "/nowhere/h"}, `STACK_BOOTS_HISTORY_FILE="/nowhere/h": /nowhere is no directory`},
		"no Secret":     {map[string]string{"KEY_FILE": "/key", "KEY_SECRET": "a/b"}, `STACK_BOOTS_KEY_SECRET="a/b": no name of a Secret`},
		"several":       {map[string]string{"LISTEN_ADDRESS": "/a", "ADMIN_ADDRESS": "hello", "MEMORY": "0"}, "host:port\n  STACK_BOOTS_MEMORY=0"},
		"all":           {map[string]string{"KEY_FILE": "/key", "KUBERNETES": "true", "NAMESPACES": "a,b", "HOSTS": "boots.example.org"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range test.set {
				t.Setenv(prefix+"_"+variable, value)
			}
			err := daemon.ParseEnv(prefix, &settings{})
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
		})
	}
}

// A variable of OpenTelemetry that cannot be meant ends the start.
func TestWrongOpenTelemetryVariableIsTold(t *testing.T) {
	t.Setenv(prefix+"_LISTEN_ADDRESS", filepath.Join(t.TempDir(), "events.sock"))
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
	var stdout, stderr bytes.Buffer
	if code := run(nil, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), "OTEL_EXPORTER_OTLP_ENDPOINT") {
		t.Errorf("exit status %d: %s", code, stderr.String())
	}
}

// otlp takes traces.
type otlp struct {
	mu    sync.Mutex
	spans []string
}

func (o *otlp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &in); err != nil {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, rs := range in.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				o.spans = append(o.spans, s.GetName())
			}
		}
	}
}

// What a machine does is a metric and a log line at once, and a span at the latest when the program ends.
func TestABootIsToldElsewhere(t *testing.T) {
	receiver := &otlp{}
	collector := httptest.NewServer(receiver)
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	getenv := func(variable string) string {
		return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}[variable]
	}
	registry := admin.NewRegistry(nil)
	var log bytes.Buffer
	v, stop := runViewWith(t, settings{}, getenv, slog.New(slog.NewJSONHandler(&log, nil)), registry)
	defer stop()
	begin := time.Now().Add(-5 * time.Second)
	say := func(after time.Duration, e boot.Event, file string) {
		e.At = begin.Add(after).UnixNano()
		boot.SetText(&e, boot.VendorClass, 60, "PXEClient:Arch:00007:UNDI:003000")
		boot.SetText(&e, boot.File, 60, file)
		v.event(&e)
	}
	given, server := boot.Bytes(netip.MustParseAddr("192.0.2.101")), boot.Bytes(netip.MustParseAddr("192.0.2.2"))
	machine := boot.Event{Kind: boot.DHCPRequest, DHCP: 1, MAC: [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}, HasArch: true, Arch: 7}
	say(0, machine, "")
	reply := boot.Event{Kind: boot.DHCPReply, MAC: machine.MAC, Given: given, Server: server, Next: server, Lease: 3600, Endpoint: server, Port: 67}
	reply.DHCP = 2
	say(time.Second/10, reply, "ipxe.efi")
	machine.DHCP, machine.Requested, machine.Server = 3, given, server
	say(time.Second/5, machine, "")
	reply.DHCP = 5
	say(time.Second/4, reply, "ipxe.efi")
	say(time.Second, boot.Event{Kind: boot.TFTP, Outcome: boot.Done, Client: given, Endpoint: server, Port: 69, AskedPort: 69, Bytes: 1000, Expected: 1000}, "ipxe.efi")
	metric := func(name string) (labels string) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == name {
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						labels += l.GetName() + "=" + l.GetValue() + " "
					}
				}
			}
		}
		return labels
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(metric("stack_boot_steps_total"), "step=dhcp"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no step was counted; machines: %s", metric("stack_boot_machines"))
		}
	}
	if got := metric("stack_boot_machines"); !strings.Contains(got, "state=booting") || !strings.Contains(got, "step=loader") {
		t.Errorf("machines: %s", got)
	}
	stop()
	if len(receiver.spans) == 0 || receiver.spans[0] != "dhcp" {
		t.Errorf("spans: %v", receiver.spans)
	}
	var line struct{ Msg, MAC, Step, Result string }
	if err := json.Unmarshal(log.Bytes()[:bytes.IndexByte(log.Bytes(), '\n')], &line); err != nil {
		t.Fatal(err)
	}
	if line.Msg != "boot step" || line.MAC != "52:54:00:5e:00:01" || line.Step != "dhcp" || line.Result != "ok" {
		t.Errorf("the log says\n%s", log.String())
	}
}
