package page

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Only whoever reaches the loopback interface acknowledges a machine, and only one that failed.
func TestAcknowledge(t *testing.T) {
	machine := func(id string, state journal.State) journal.MachineView {
		return journal.MachineView{ID: id, MAC: id, Boots: []journal.BootView{{ID: id, Begin: time.Now(), State: state, Cause: &journal.Cause{Name: "slow", Text: "It is slow."}}}}
	}
	const failed, going, unknown = "52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03"
	var told []boot.Event
	server := New(Options{
		Journal: newFake(machine(failed, journal.StateFailed), machine(going, journal.Booting)),
		Event:   func(e *boot.Event) { told = append(told, *e) },
	})
	mux := http.NewServeMux()
	for pattern, handler := range server.Handlers() {
		mux.Handle(pattern, handler)
	}
	ask := func(method, path, from string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(method, path, http.NoBody)
		request.RemoteAddr = from
		recorder := httptest.NewRecorder()
		mux.ServeHTTP(recorder, request)
		return recorder
	}
	for name, test := range map[string]struct {
		path, from string
		status     int
		told       int
	}{
		"by a program":          {"/api/v1/boots/52-54-00-00-00-01/acknowledge", "127.0.0.1:5", 204, 1},
		"by the page":           {"/boots/" + failed + "/acknowledge", "[::1]:5", 303, 1},
		"from another pod":      {"/api/v1/boots/" + failed + "/acknowledge", "192.0.2.7:5", 403, 0},
		"of one that goes on":   {"/api/v1/boots/" + going + "/acknowledge", "127.0.0.1:5", 409, 0},
		"of one that is nobody": {"/api/v1/boots/" + unknown + "/acknowledge", "127.0.0.1:5", 404, 0},
	} {
		t.Run(name, func(t *testing.T) {
			told = nil
			if got := ask(http.MethodPost, test.path, test.from); got.Code != test.status || len(told) != test.told {
				t.Errorf("%d %s, %d told", got.Code, got.Body, len(told))
			}
			if len(told) == 1 && (told[0].Kind != boot.Acknowledged || told[0].MAC != [6]byte{0x52, 0x54, 0, 0, 0, 1}) {
				t.Errorf("told %+v", told[0])
			}
		})
	}
	for from, want := range map[string]bool{"127.0.0.1:5": true, "192.0.2.7:5": false} {
		if page := ask(http.MethodGet, "/boots/"+failed, from).Body.String(); strings.Contains(page, "Acknowledge</button>") != want {
			t.Errorf("from %s: the button is there: %v", from, !want)
		}
	}
}
