package hardware

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/internal/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// api is an API server on the wire, as far as the watcher asks it: Hardware objects and Events.
type api struct {
	mu        sync.Mutex
	objects   []string // in JSON
	workflows []string
	streams   bool          // the list as a stream (KEP-3157)
	refuse    int           // status to refuse all with
	breaks    int           // how many requests to break off
	hang      chan struct{} // until which Events are not answered
	asked     []string
	pages     int // how many answers a list took
	events    map[string]*core.Event
	patches   int
	watchers  map[chan string]bool
	url       string
}

func newAPI(t *testing.T) *api {
	a := &api{events: map[string]*core.Event{}, watchers: map[chan string]bool{}, streams: true}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *api) config() *rest.Config { return &rest.Config{Host: a.url} }

// hardware is an object with user data that nobody wants here, one interface for each "mac allow".
func hardware(name, version string, interfaces ...string) string {
	var all []string
	for _, i := range interfaces {
		address, allow, _ := strings.Cut(i, " ")
		netboot := ""
		if allow != "" {
			netboot = `,"netboot":{"allowPXE":` + allow + `}`
		}
		all = append(all, `{"dhcp":{"mac":"`+address+`","ip":{"address":"192.0.2.1"}}`+netboot+`}`)
	}
	return fmt.Sprintf(`{"apiVersion":"tinkerbell.org/v1alpha1","kind":"Hardware","metadata":{"name":%q,"namespace":"tink",
		"uid":"uid-%s","resourceVersion":%q,"annotations":{"a":%q},"managedFields":[{"manager":"kubectl"}]},
		"spec":{"userData":%q,"interfaces":[%s]}}`, name, name, version, strings.Repeat("a", 500), strings.Repeat("u", 2000), strings.Join(all, ","))
}

// change tells all who watch, of which there has to be one.
func (a *api) change(t *testing.T, kind, object string) {
	t.Helper()
	testwait.Until(t, "a watch", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.watchers) > 0
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers {
		w <- `{"type":"` + kind + `","object":` + object + `}`
	}
}

func (a *api) set(change func(*api)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(a)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/workflows") {
		a.serveWorkflows(w, r)
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path)
	refuse, objects, streams, breaks := a.refuse, a.objects, a.streams, a.breaks
	a.breaks = max(a.breaks-1, 0)
	hang := a.hang
	a.mu.Unlock()
	if hang != nil && strings.HasSuffix(r.URL.Path, "/events") {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}
	if breaks > 0 {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case refuse != 0:
		status(w, refuse, meta.StatusReasonForbidden)
	case strings.HasSuffix(r.URL.Path, "/events") || strings.Contains(r.URL.Path, "/events/"):
		a.event(w, r)
	case query.Get("sendInitialEvents") != "" && !streams:
		status(w, http.StatusUnprocessableEntity, meta.StatusReasonInvalid)
	case query.Get("watch") != "":
		a.watch(w, r, objects)
	default:
		a.list(w, query.Get("limit"), query.Get("continue"), objects)
	}
}

// serveWorkflows lists Workflows, which change no more.
func (a *api) serveWorkflows(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	refuse, items := a.refuse, strings.Join(a.workflows, ",")
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch query := r.URL.Query(); {
	case refuse != 0:
		status(w, refuse, meta.StatusReasonForbidden)
	case query.Get("sendInitialEvents") != "":
		status(w, http.StatusUnprocessableEntity, meta.StatusReasonInvalid)
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	default:
		_, _ = fmt.Fprintf(w, `{"apiVersion":"tinkerbell.org/v1alpha1","kind":"WorkflowList","metadata":{"resourceVersion":"9"},"items":[%s]}`, items)
	}
}

func status(w http.ResponseWriter, code int, reason meta.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(meta.Status{
		TypeMeta: meta.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   "Failure", Reason: reason, Code: int32(code), Message: "no",
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, objects []string) {
	changes := make(chan string)
	a.set(func(a *api) { a.watchers[changes] = true })
	defer func() {
		go func() {
			for range changes { // whoever tells a change at this moment is not left waiting
			}
		}()
		a.set(func(a *api) { delete(a.watchers, changes) })
		close(changes)
	}()
	if r.URL.Query().Get("sendInitialEvents") != "" {
		for _, o := range objects {
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", o)
		}
		fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"tinkerbell.org/v1alpha1","kind":"Hardware",
			"metadata":{"resourceVersion":"100","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
	}
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case change := <-changes:
			fmt.Fprintln(w, change)
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// list answers in pages, as an API server does that is asked for a limit.
func (a *api) list(w http.ResponseWriter, limit, next string, objects []string) {
	from, most := 0, len(objects)
	_, _ = fmt.Sscan(next, &from)
	_, _ = fmt.Sscan(limit, &most)
	to, token := min(from+most, len(objects)), ""
	if to < len(objects) {
		token = fmt.Sprint(to)
	}
	a.set(func(a *api) { a.pages++ })
	fmt.Fprintf(w, `{"apiVersion":"tinkerbell.org/v1alpha1","kind":"HardwareList","metadata":{"resourceVersion":"100","continue":%q},"items":[%s]}`,
		token, strings.Join(objects[from:to], ","))
}

func (a *api) event(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var event core.Event
	if err := json.Unmarshal(body, &event); err != nil {
		status(w, http.StatusBadRequest, meta.StatusReasonBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodPatch {
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		stored, ok := a.events[name]
		if !ok {
			status(w, http.StatusNotFound, meta.StatusReasonNotFound)
			return
		}
		a.patches++
		stored.Count = event.Count
		event = *stored
	} else {
		event.ResourceVersion = "1"
		a.events[event.Name] = &event
	}
	_ = json.NewEncoder(w).Encode(event)
}

// recorded are the events so far, by reason.
func (a *api) recorded() map[string][]core.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]core.Event{}
	for _, e := range a.events {
		all[e.Reason] = append(all[e.Reason], *e)
	}
	return all
}
