package hardware

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// start runs a watcher until the test ends, or stop is called.
func start(t *testing.T, o Options) (w *Watcher, stop func()) {
	t.Helper()
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Namespaces == nil {
		o.Namespaces = []string{"tink"}
	}
	w = New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return w, stop
}

func (w *Watcher) is(text string, want journal.Hardware) func() bool {
	return func() bool {
		c := [6]byte{}
		_, _ = fmt.Sscanf(text, "%02x:%02x:%02x:%02x:%02x:%02x", &c[0], &c[1], &c[2], &c[3], &c[4], &c[5])
		got, ok := w.Lookup(c)
		got.Workflow, got.Workflows = nil, false
		return ok && got == want
	}
}

func TestObjectsAreFollowed(t *testing.T) {
	for name, streams := range map[string]bool{"streamed": true, "listed": false} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.streams = streams
			a.objects = []string{
				hardware("m1", "1", "52:54:00:5e:00:01 true", "52:54:00:5e:00:11 false"),
				hardware("m2", "2", "52:54:00:5E:00:02"), // nothing said of netboot
			}
			for i := range 600 {
				a.objects = append(a.objects, hardware(fmt.Sprint("x", i), "3", fmt.Sprintf("aa:aa:aa:aa:%02x:%02x true", i/256, i%256)))
			}
			w, _ := start(t, Options{Config: a.config()})
			if _, ok := w.Lookup(mac(t, "52:54:00:5e:00:77")); ok {
				t.Error("something is said of an unknown MAC before the objects were read")
			}
			testwait.Until(t, "m1", w.is("52:54:00:5e:00:01", journal.Hardware{Known: true, Name: "tink/m1", Netboot: true}))
			for text, want := range map[string]journal.Hardware{
				"52:54:00:5e:00:11": {Known: true, Name: "tink/m1"},
				"52:54:00:5e:00:02": {Known: true, Name: "tink/m2"},
				"52:54:00:5e:00:22": {Closest: "52:54:00:5e:00:02 (tink/m2)"},
				"be:ef:be:ef:be:ef": {},
			} {
				testwait.Until(t, text, w.is(text, want))
			}
			a.change(t, "MODIFIED", hardware("m1", "101", "52:54:00:5e:00:03 true"))
			testwait.Until(t, "another MAC", w.is("52:54:00:5e:00:03", journal.Hardware{Known: true, Name: "tink/m1", Netboot: true}))
			testwait.Until(t, "the former MAC's end", w.is("52:54:00:5e:00:01", journal.Hardware{Closest: "52:54:00:5e:00:02 (tink/m2)"}))
			a.change(t, "DELETED", hardware("m2", "102", "52:54:00:5e:00:02"))
			testwait.Until(t, "an object's end", w.is("52:54:00:5e:00:02", journal.Hardware{Closest: "52:54:00:5e:00:03 (tink/m1)"}))
			if got := testutil.ToFloat64(w.metrics.objects); got != 601 {
				t.Errorf("%v objects", got)
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if !streams && a.pages != 2 {
				t.Errorf("%d pages", a.pages)
			}
			for _, asked := range a.asked {
				if asked != "GET /apis/tinkerbell.org/v1alpha1/namespaces/tink/hardware" {
					t.Errorf("asked for %s", asked)
				}
			}
		})
	}
}

// Two objects with one MAC: the first by name is told of, and the other when that is gone.
func TestSharedMAC(t *testing.T) {
	a := newAPI(t)
	a.objects = []string{hardware("b", "1", "52:54:00:5e:00:01 true", "52:54:00:5e:00:01 false"), hardware("a", "2", "52:54:00:5e:00:01")}
	w, _ := start(t, Options{Config: a.config()})
	testwait.Until(t, "the first", w.is("52:54:00:5e:00:01", journal.Hardware{Known: true, Name: "tink/a", Also: "tink/b"}))
	a.change(t, "DELETED", hardware("a", "3", "52:54:00:5e:00:01"))
	testwait.Until(t, "the other", w.is("52:54:00:5e:00:01", journal.Hardware{Known: true, Name: "tink/b", Netboot: true}))
}

// Workflows are those of a Hardware object, or of a MAC, in both layouts that Tinkerbell has had; the newest counts.
func TestWorkflowsAreFollowed(t *testing.T) {
	workflow := func(name, made, spec, status string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"tink","creationTimestamp":%q},"spec":{%s},"status":{%s}}`, name, made, spec, status)
	}
	a := newAPI(t)
	a.objects = []string{hardware("m1", "1", "52:54:00:5e:00:01 true"), hardware("m2", "2", "52:54:00:5e:00:02 true"), hardware("m3", "3", "52:54:00:5e:00:03 true")}
	a.workflows = []string{
		workflow("old", "2026-11-22T08:00:00Z", `"hardwareRef":"m1"`, `"state":"STATE_SUCCESS"`),
		workflow("new", "2026-11-23T08:00:00Z", `"hardwareRef":"m1"`, `"state":"STATE_RUNNING","currentAction":"stream-image"`),
		workflow("map", "2026-11-23T08:00:00Z", `"hardwareMap":{"device_1":"52:54:00:5E:00:02"}`, `"state":"FAILED","currentState":{"actionName":"kexec"},`+
			`"tasks":[{"actions":[{"name":"stream-image","state":"FAILED","message":"no route to host"}]}]`),
		workflow("waits", "2026-11-23T08:00:00Z", `"hardwareRef":"m3"`, ``),
	}
	w, _ := start(t, Options{Config: a.config()})
	for text, want := range map[string]*journal.Workflow{
		"52:54:00:5e:00:01": {State: "RUNNING", Action: "stream-image"},
		"52:54:00:5e:00:02": {State: "FAILED", Action: "stream-image", Message: "no route to host"},
		"52:54:00:5e:00:03": {},
		"52:54:00:5e:00:04": nil,
	} {
		testwait.Until(t, text, func() bool {
			got, ok := w.Lookup(mac(t, text))
			return ok && got.Workflows && cmp.Equal(got.Workflow, want)
		})
	}
	want := []journal.Expected{{MAC: mac(t, "52:54:00:5e:00:03"), Since: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)}}
	got := w.Expected()
	for i := range got {
		got[i].Since = got[i].Since.UTC()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An API that refuses is told of once, counted each time, and asked again.
func TestOutageIsToldOnce(t *testing.T) {
	a := newAPI(t)
	a.refuse = http.StatusForbidden
	var log syncBuffer
	w, _ := start(t, Options{Config: a.config(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	testwait.Until(t, "the second failure", func() bool { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("tink")) >= 2 })
	if _, ok := w.Lookup(mac(t, "52:54:00:5e:00:01")); ok {
		t.Error("something is said of a MAC without the objects")
	}
	a.set(func(a *api) { a.refuse, a.objects = 0, []string{hardware("m1", "1", "52:54:00:5e:00:01 true")} })
	testwait.Until(t, "m1", w.is("52:54:00:5e:00:01", journal.Hardware{Known: true, Name: "tink/m1", Netboot: true}))
	testwait.Until(t, "the metric", func() bool { return testutil.ToFloat64(w.metrics.watching.WithLabelValues("tink")) == 1 })
	if n := strings.Count(log.String(), "failed to watch objects\" resource=hardware"); n != 1 || strings.Count(log.String(), "watching objects\" resource=hardware") != 1 ||
		strings.Count(log.String(), "failed to watch objects") > 2 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}

func TestOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var log syncBuffer
	w, stop := start(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	testwait.Until(t, "the log line", func() bool { return strings.Contains(log.String(), "failed to watch objects") })
	if err := w.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	stop()
}

// Nobody listens: the watcher ends at once when it is told to.
func TestStopsWhileTheAPIIsAway(t *testing.T) {
	w, stop := start(t, Options{Config: &rest.Config{Host: "http://127.0.0.1:1"}})
	testwait.Until(t, "a failure", func() bool { return testutil.ToFloat64(w.metrics.errors.WithLabelValues("tink")) >= 1 })
	begin := time.Now()
	stop()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %s to stop", took)
	}
}

// What an object says cannot grow what is kept of it.
func TestHostileObjects(t *testing.T) {
	o := &object{}
	o.Name, o.Namespace, o.Annotations = "m", "tink", map[string]string{"a": strings.Repeat("a", 1<<16)}
	for _, text := range []string{"", "52:54:00:5e:00", "52:54:00:5e:00:01:02:03", "zz:54:00:5e:00:01", "00:00:00:00:00:00", strings.Repeat("a", 1<<16)} {
		i := nic{}
		i.DHCP.MAC, i.DHCP.Arch = text, strings.Repeat("x", 1<<16)
		o.Spec.Interfaces = append(o.Spec.Interfaces, i)
	}
	for i := range 1000 {
		n := nic{}
		n.DHCP.MAC, n.DHCP.Arch = fmt.Sprintf("52:54:00:5e:%02x:%02x", i/256, i%256), strings.Repeat("x", 1<<16)
		o.Spec.Interfaces = append(o.Spec.Interfaces, n)
	}
	for range 2 { // the library may trim twice
		kept, err := trim(o)
		if o = kept.(*object); err != nil || len(o.ports) != maxInterfaces || len(o.Spec.Interfaces)+len(o.Annotations) > 0 || len(o.ports[9].arch) > maxArch {
			t.Errorf("%v: %+v", err, o)
		}
	}
	if got, err := trim("no object"); err != nil || got != "no object" {
		t.Errorf("%v, %v", got, err)
	}
}

// Questions about MACs that somebody invents, each asked once: what is remembered does not grow, and no more are
// searched for than there is time for.
func TestInventedMACs(t *testing.T) {
	w := many(t, 10)
	answered := 0
	for i := range 3 * maxRemembered {
		got, ok := w.Lookup([6]byte{0x0c, 0xc4, 0x7a, 9, byte(i >> 8), byte(i)})
		if got.Closest != "" {
			answered++
		}
		if !ok || got.Known || len(w.closest.answers) > maxRemembered {
			t.Fatalf("%+v, %d answers are kept", got, len(w.closest.answers))
		}
	}
	if answered < searchesAtOnce/4 || answered > 2*searchesAtOnce {
		t.Errorf("%d questions were answered", answered)
	}
}

// many is a watcher that knows objects of two interfaces.
func many(t testing.TB, number int) *Watcher {
	a := &api{events: map[string]*core.Event{}, watchers: map[chan string]bool{}}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	for i := range number {
		at := func(j int) string { return fmt.Sprintf("0c:c4:7a:%02x:%02x:%02x", j, i/256, i%256) }
		a.objects = append(a.objects, strings.Replace(hardware(fmt.Sprintf("machine-%05d", i), "1", at(0), at(1)), "uid-machine", "0b3a6d2e-1f6c-4d0f-9a52", 1))
	}
	ctx, cancel := context.WithCancel(context.Background())
	w, done := New(Options{Namespaces: []string{"tink"}, Config: &rest.Config{Host: server.URL}}), make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	for !synced(w.hardware) {
		time.Sleep(10 * time.Millisecond)
	}
	a.set(func(a *api) { a.objects = nil })
	return w
}

func TestTenThousandObjectsAreSmall(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := many(t, 10_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / 10_000; each > 2500 {
		t.Errorf("%d bytes for each object", each)
	} else {
		t.Logf("%d bytes for each object", each)
	}
	if got, ok := w.Lookup([6]byte{0x0c, 0xc4, 0x7a, 1, 0x12, 0x34}); !ok || !got.Known {
		t.Fatalf("%+v", got)
	}
	got, ok := w.Lookup([6]byte{0x0c, 0xc4, 0x7a, 9, 0x12, 0x34})
	if !ok || got.Known || got.Closest != "0c:c4:7a:00:12:34 (tink/machine-04660)" {
		t.Errorf("%+v", got)
	}
}

func BenchmarkLookup(b *testing.B) {
	w := many(b, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		if got, ok := w.Lookup([6]byte{0x0c, 0xc4, 0x7a, 0, 0x12, 0x34}); !ok || !got.Known {
			b.Fatal(got)
		}
	}
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
