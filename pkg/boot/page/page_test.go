package page

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

func TestFilters(t *testing.T) {
	now := newSnapshot(site(200, time.Now()), nil)
	all := len(now.entries)
	tests := map[string]struct {
		query string
		want  func(m *journal.MachineView) bool
	}{
		"all":   {"", func(*journal.MachineView) bool { return true }},
		"state": {"state=stuck", func(m *journal.MachineView) bool { return m.Boots[0].State == journal.Stuck }},
		"cause": {"q=no-hardware", func(m *journal.MachineView) bool {
			return m.Boots[0].Cause != nil && m.Boots[0].Cause.Name == "no-hardware"
		}},
		"address": {"q=192.0.2.77", func(m *journal.MachineView) bool { return m.Address.String() == "192.0.2.77" }},
		"states": {"state=stuck,failed", func(m *journal.MachineView) bool {
			return m.Boots[0].State == journal.Stuck || m.Boots[0].State == journal.StateFailed
		}},
		"name": {"q=RACK02-node", func(m *journal.MachineView) bool { return strings.HasPrefix(m.Name, "rack02-node") }},
		"words": {"q=uefi+rack02", func(m *journal.MachineView) bool {
			return strings.HasPrefix(m.Name, "rack02") && strings.Contains(m.Arch, "UEFI")
		}},
		"spelled MAC": {"q=5E-00-05", func(m *journal.MachineView) bool { return m.MAC == "52:54:00:5e:00:05" }},
		"file": {"q=ipxe.efi", func(m *journal.MachineView) bool {
			return len(m.Boots[0].Steps) > 1 && m.Boots[0].Steps[1].Text == "ipxe.efi"
		}},
		"both": {"state=booting&q=ipxe.efi", func(m *journal.MachineView) bool {
			return m.Boots[0].State == journal.Booting && len(m.Boots[0].Steps) > 1 && m.Boots[0].Steps[1].Text == "ipxe.efi"
		}},
		"nothing": {"q=nonsense", func(*journal.MachineView) bool { return false }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			query, err := url.ParseQuery(test.query)
			if err != nil {
				t.Fatal(err)
			}
			f, err := parseFilter(query)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := url.ParseQuery(strings.TrimPrefix(f.query(), "?"))
			if same, _ := parseFilter(again); same != f {
				t.Errorf("%+v became %+v", f, same)
			}
			found := map[string]bool{}
			for _, e := range now.matching(f) {
				found[e.view.ID] = true
			}
			for _, e := range now.entries {
				if want := test.want(&e.view); want != found[e.view.ID] {
					t.Errorf("%s (%s): %v", e.view.ID, e.view.Name, !want)
				}
			}
			if name != "all" && len(found) == all || name != "nothing" && len(found) == 0 {
				t.Errorf("%d of %d match", len(found), all)
			}
		})
	}
}

// Stuck machines come first, the newest boot before others; a long list is cut into parts.
func TestListIsOrderedAndCut(t *testing.T) {
	s := New(Options{Journal: newFake(site(250, time.Now())...)})
	snap := s.look.snapshot()
	p := s.listOf(snap, Filter{})
	if len(p.Rows) != perPage || p.Parts.All != 250 || p.Parts.Previous != "" || p.Parts.Following != "boots?offset=100" {
		t.Errorf("%d rows, %+v", len(p.Rows), p.Parts)
	}
	last := s.listOf(snap, Filter{Offset: 9900})
	if len(last.Rows) != 50 || last.Parts.From != 201 || last.Parts.Following != "" {
		t.Errorf("%d rows, %+v", len(last.Rows), last.Parts)
	}
	rank := map[journal.State]int{journal.Stuck: 0, journal.StateFailed: 1, journal.Booting: 2, journal.Quiet: 3, journal.Booted: 4}
	for i := 1; i < len(snap.entries); i++ {
		a, b := Newest(&snap.entries[i-1].view), Newest(&snap.entries[i].view)
		if rank[a.State] > rank[b.State] || a.State == b.State && a.Begin.Before(b.Begin) {
			t.Errorf("%v at %v before %v at %v", a.State, a.Begin, b.State, b.Begin)
		}
	}
	if got := p.Heading.Causes; len(got) != 2 || got[0].Name != "not-found" || got[0].Count < got[1].Count {
		t.Errorf("causes %+v", got)
	}
}

// What a step's end looks like in a list's stream: the row that changed, alone.
func TestLiveSendsWhatChanged(t *testing.T) {
	f := newFake(site(40, time.Now())...)
	server := serve(t, Options{Journal: f})
	lines := events(t, server.URL+"/boots/live")
	next := func() (u listUpdate) {
		t.Helper()
		list := false
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				list = text == "list"
			}
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && list {
				if err := json.Unmarshal([]byte(text), &u); err != nil {
					t.Fatal(err)
				}
				return u
			}
		}
		t.Fatal("the stream has ended")
		return u
	}
	first := next()
	if len(first.Rows) != 40 || len(first.Order) != 40 || first.Heading == "" {
		t.Fatalf("%d rows at first", len(first.Rows))
	}
	m, _ := f.Machine("52:54:00:5e:00:08")
	b := &m.Boots[0]
	b.Steps = append(b.Steps, journal.StepView{Step: journal.IPXEDHCP, Result: journal.OK, Begin: b.End, End: b.End})
	b.At = journal.IPXEDHCP
	f.put(m)
	u := next()
	if len(u.Rows) != 1 || !strings.Contains(u.Rows[m.ID], "iPXE DHCP") || u.Heading != "" || len(u.Order) != 40 {
		t.Errorf("got %d rows, heading %q", len(u.Rows), u.Heading)
	}
	f.remove(m.ID)
	if u = next(); len(u.Rows) != 0 || len(u.Order) != 39 || !strings.Contains(u.Heading, "<b>39</b> all") {
		t.Errorf("got %d rows of %d, heading %q", len(u.Rows), len(u.Order), u.Heading)
	}
}

// A stream that nobody reads any more, and one too many, are no burden.
func TestStreamsAreBounded(t *testing.T) {
	f := newFake(site(1, time.Now())...)
	s := New(Options{Journal: f})
	mux := http.NewServeMux()
	for pattern, handler := range s.Handlers() {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	for range maxStreams {
		request, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/boots/live", http.NoBody)
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(err, response)
		}
		defer response.Body.Close()
	}
	if status, header, _ := get(t, server.URL+"/boots/live"); status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d", status)
	}
	if status, _, _ := get(t, server.URL+"/boots"); status != http.StatusOK {
		t.Errorf("the page itself: %d", status)
	}
	cancel()
	testwait.Until(t, "the end of the streams", func() bool { return s.streams.Load() == 0 })
}

// The streams end with the program, so that its drain does not wait for browsers.
func TestStreamsEndWithTheProgram(t *testing.T) {
	s := New(Options{Journal: newFake()})
	mux := http.NewServeMux()
	for pattern, handler := range s.Handlers() {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	lines := events(t, server.URL+"/boots/live")
	lines.Scan()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for lines.Scan() {
	}
	if status, _, _ := get(t, server.URL+"/boots/live"); status != http.StatusServiceUnavailable {
		t.Errorf("a stream after the end: %d", status)
	}
}

// oneSource is a program that tells of boots, and lost some.
func oneSource() []feed.Source {
	at := time.Unix(1e9, 0).UTC()
	return []feed.Source{{Program: "dhcp-relay", Pod: "pod-1", Heard: true, Since: at, Lost: 3, LostAt: at, Clock: "1h0m0s"}}
}

// Beside a cause there is what to do next, to be copied: a Hardware object with the MAC, or a command for the one that is there.
func TestTextToCopy(t *testing.T) {
	m := journal.MachineView{MAC: "52:54:00:00:00:01"}
	cause := &journal.Cause{Name: "no-hardware"}
	for _, step := range []struct {
		hardware string
		cause    *journal.Cause
		want     string
	}{
		{"", cause, `- dhcp: {mac: "52:54:00:00:00:01"}`}, {"tink/m1", cause, "kubectl -n tink edit hardware m1"},
		{"", &journal.Cause{Name: "server-silent"}, "/dhcp-relay trace -mac 52:54:00:00:00:01"}, {"tink/m1", nil, ""},
	} {
		m.Hardware = step.hardware
		if got := textToCopy(&m, step.cause); !strings.Contains(got, step.want) || step.want == "" && got != "" {
			t.Errorf("%+v: %q", step, got)
		}
	}
}

// Of several boots, a page shows the lines of the one that is chosen, with dates.
func TestLinesAreCutByBoot(t *testing.T) {
	m := site(12, time.Now())[10]
	begin := m.Boots[0].Begin
	before := m.Boots[0]
	before.ID, before.Begin = "before", begin.Add(-time.Hour)
	m.Boots = append(m.Boots, before)
	m.Lines = []journal.LineView{{At: before.Begin, Text: "an older line"}, {At: begin, Text: "a newer line"}}
	server := serve(t, Options{Journal: newFake(m)})
	for query, want := range map[string]string{"": "a newer line", "?boot=before": "an older line"} {
		_, _, body := get(t, server.URL+"/boots/"+m.ID+query)
		if strings.Count(body, " line</span>") != 1 || !strings.Contains(body, want) {
			t.Errorf("%q: no line, or not %q alone", query, want)
		}
	}
}

// What is not shown is counted: causes beyond those above the list.
func TestCausesThatAreLeftOut(t *testing.T) {
	f := newFake()
	for i := range maxCauses + 2 {
		m := site(12, time.Now())[0]
		m.ID, m.MAC = fmt.Sprint("m", i), ""
		m.Boots[0].Cause = &journal.Cause{Name: fmt.Sprint("cause-", i)}
		f.put(m)
	}
	if _, _, body := get(t, serve(t, Options{Journal: f}).URL+"/boots"); !strings.Contains(body, "<li>and 2 more</li>") {
		t.Error("what is left out is not counted")
	}
}

// Syslog lines are for requests from the pod itself, unless the setting shows them to all.
func TestLinesAreHidden(t *testing.T) {
	m := site(12, time.Now())[10]
	text := m.Lines[0].Text
	for name, test := range map[string]struct {
		from string
		all  bool
		want bool
	}{
		"the pod itself": {"127.0.0.1:5", false, true}, "by IPv6": {"[::1]:5", false, true}, "another pod": {"10.0.0.9:5", false, false},
		"a mesh": {"127.0.0.6:5", false, false}, "another pod, by choice": {"10.0.0.9:5", true, true}, "nobody": {"@", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			handlers := New(Options{Journal: newFake(m), Lines: test.all}).Handlers()
			for _, path := range []string{"/boots/", "/api/v1/boots/"} {
				request := httptest.NewRequest(http.MethodGet, path+m.ID, http.NoBody)
				request.RemoteAddr = test.from
				request.SetPathValue("id", m.ID)
				recorder := httptest.NewRecorder()
				handlers["GET "+path+"{id}"].ServeHTTP(recorder, request)
				body := html.UnescapeString(recorder.Body.String())
				if recorder.Code != http.StatusOK || strings.Contains(body, text) != test.want {
					t.Errorf("%s: %d, lines shown: %v", path, recorder.Code, !test.want)
				}
			}
		})
	}
}

// The page names the programs that are heard, and how much was lost; and says when none is.
func TestSourcesAreShown(t *testing.T) {
	sources := oneSource()
	server := serve(t, Options{Journal: newFake(), Sources: func() []feed.Source { return sources }})
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "<strong>3 events lost</strong>"}, {func() { sources[0].Heard = false }, "<strong>gone</strong>"},
		{func() { sources = nil }, "No program tells of boots."},
	} {
		step.change()
		if _, _, body := get(t, server.URL+"/boots"); !strings.Contains(body, step.want) {
			t.Errorf("no %q in %s", step.want, body)
		}
	}
}

// What is kept of machines that do not change is their own, and not what the journal made of all machines at each look:
// looking on takes no more memory than looking once.
func TestLookingOnTakesNoMemory(t *testing.T) {
	const machines, looks = 2000, 100
	begin := time.Now().Add(-time.Minute)
	views := func(n int) []journal.MachineView { // as the journal makes them: of one piece
		all, boots := make([]journal.MachineView, machines), make([]journal.BootView, machines)
		for i := range all {
			boots[i] = journal.BootView{ID: "a", Begin: begin, End: begin, State: journal.Booting, Steps: make([]journal.StepView, 10)}
			if i == n {
				boots[i].End = begin.Add(time.Second)
			}
			all[i] = journal.MachineView{ID: fmt.Sprint(i), Boots: boots[i : i+1 : i+1]}
		}
		return all
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s := newSnapshot(views(-1), nil)
	once := heap() - before
	for n := range looks {
		s = newSnapshot(views(n), s)
	}
	if often := heap() - before; often > 3*once {
		t.Errorf("one look takes %d KiB, %d looks take %d", once>>10, looks, often>>10)
	}
	if len(s.entries) != machines {
		t.Errorf("%d machines", len(s.entries))
	}
}

// A snapshot that nobody looks at is forgotten.
func TestSnapshotIsForgotten(t *testing.T) {
	l := look{journal: newFake(site(2, time.Now())...)}
	if n := len(l.snapshot().entries); n != 2 {
		t.Errorf("%d machines", n)
	}
	l.forget(time.Now())
	kept := l.last != nil
	l.forget(time.Now().Add(2 * linger))
	if !kept || l.last != nil {
		t.Errorf("kept while somebody looks: %v; and after that: %v", kept, l.last != nil)
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration][2]string{
		-time.Second: {"0 s", "0 s"}, 0: {"0 ms", "0 s"}, 12 * time.Millisecond: {"12 ms", "0 s"}, 1500 * time.Millisecond: {"1.5 s", "1 s"},
		59 * time.Second: {"59 s", "59 s"}, 61 * time.Second: {"1 m 01 s", "1 m 01 s"},
		3661 * time.Second: {"1 h 01 m", "1 h 01 m"}, 50 * time.Hour: {"2 d 2 h", "2 d 2 h"},
	} {
		if got := [2]string{Duration(d), Age(d)}; got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "", 9: "9 B", 2048: "2.0 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.00 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}
