package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/history"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
)

// runView runs a view of its own until it is stopped.
func runView(t *testing.T, s settings, log *bytes.Buffer) (v *view, stop func()) {
	t.Helper()
	return runViewWith(t, s, slog.New(slog.NewTextHandler(log, nil)), admin.NewRegistry(nil))
}

// runViewWith is runView with a log and metrics.
func runViewWith(
	t *testing.T, s settings, log *slog.Logger, registry *prometheus.Registry,
) (v *view, stop func()) {
	t.Helper()
	s.ListenAddress, s.Memory = filepath.Join(t.TempDir(), "e"), 1
	v, err := newView(&s, log, registry)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, task := range v.tasks {
		group.Go(func() {
			if err := task.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return v, sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
}

// list is what the API says of all machines.
func list(t *testing.T, v *view) (l page.List) {
	t.Helper()
	recorder := httptest.NewRecorder()
	v.server.Handlers()["GET /api/v1/boots"].ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/api/v1/boots", nil))
	if err := json.Unmarshal(recorder.Body.Bytes(), &l); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRestartForgetsNothing: machines and their steps are there again, and nothing of it is told twice. Without room for
// a history everything else goes on.
func TestRestartForgetsNothing(t *testing.T) {
	s := settings{HistoryFile: filepath.Join(t.TempDir(), "history")}
	var log bytes.Buffer
	v, stop := runView(t, s, &log)
	defer stop()
	begin := time.Now().Add(-10 * time.Second)
	for i := range 3 {
		e := &boot.Event{Kind: boot.DHCPRequest, At: begin.Add(time.Duration(i) * time.Second).UnixNano(), DHCP: 1, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}}
		boot.SetText(e, boot.VendorClass, 60, "PXEClient:Arch:00007:UNDI:003000")
		v.event(e)
	}
	testwait.Until(t, "the machines are there", func() bool { return len(list(t, v).Machines) == 3 })
	was := list(t, v)
	stop()
	log.Reset()
	v, stop = runView(t, s, &log)
	defer stop()
	now := list(t, v)
	if len(now.Machines) != 3 {
		t.Fatalf("%d machines after a restart", len(now.Machines))
	}
	for i, m := range now.Machines {
		if before := was.Machines[i]; m.ID != before.ID || !m.Boots[0].Begin.Equal(before.Boots[0].Begin) || m.Boots[0].At != before.Boots[0].At {
			t.Errorf("was %+v, is %+v", before, m)
		}
	}
	stop()
	if strings.Contains(log.String(), "boot step") {
		t.Errorf("told again:\n%s", &log)
	}
	s.HistoryFile = filepath.Join(t.TempDir(), "none", "history")
	log.Reset()
	_, stop = runView(t, s, &log)
	stop()
	if !strings.Contains(log.String(), "failed to keep the history of boots") {
		t.Errorf("the log says:\n%s", &log)
	}
}

// TestWitness: a relay that is gone, and each proxy that is, leave something unheard; one relay of two hears all.
func TestWitness(t *testing.T) {
	relay, proxy := feed.Source{Program: "dhcp-relay"}, feed.Source{Program: "stack-proxy"}
	heard := func(s feed.Source) feed.Source { s.Heard = true; return s }
	for name, test := range map[string]struct {
		sources []feed.Source
		want    journal.Witness
	}{
		"nobody yet":    {nil, journal.Witness{}},
		"all":           {[]feed.Source{heard(relay), heard(proxy)}, journal.Witness{}},
		"relay gone":    {[]feed.Source{relay, heard(proxy)}, journal.Witness{RelayLost: true}},
		"another relay": {[]feed.Source{heard(relay), relay, heard(proxy)}, journal.Witness{}},
		"proxy gone":    {[]feed.Source{heard(relay), heard(proxy), proxy}, journal.Witness{Proxies: "1 of 2"}},
	} {
		test.want.Dropped = 7
		if got := witnessOf(test.sources, 7); got != test.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestFutureIsNotReplayed: an event of a wrong clock does not make the machines of a history silent.
func TestFutureIsNotReplayed(t *testing.T) {
	s := settings{HistoryFile: filepath.Join(t.TempDir(), "history")}
	now := time.Now()
	h, _, err := history.Open(s.HistoryFile, historySize, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range []time.Time{now.Add(-time.Second), now.Add(100 * 24 * time.Hour)} {
		e := &boot.Event{Kind: boot.DHCPRequest, At: at.UnixNano(), DHCP: 1, MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}}
		boot.SetText(e, boot.VendorClass, 60, "PXEClient:Arch:00007:UNDI:003000")
		if err := h.Add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	v, stop := runView(t, s, new(bytes.Buffer))
	defer stop()
	machines := list(t, v).Machines
	if len(machines) != 2 {
		t.Fatalf("%d machines", len(machines))
	}
	for _, m := range machines {
		if m.Boots[0].State != "booting" || m.Boots[0].Begin.After(time.Now()) {
			t.Errorf("%s is %s since %v", m.ID, m.Boots[0].State, m.Boots[0].Begin)
		}
	}
}
