package page

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// still is a journal of 2,000 machines that are all copied for each look, as the real one copies them.
type still struct{ machines []journal.MachineView }

func (s still) Machines() []journal.MachineView {
	return append([]journal.MachineView(nil), s.machines...)
}
func (s still) Machine(string) (journal.MachineView, bool) { return s.machines[0], true }
func (s still) Version() uint64                            { return 0 }

// BenchmarkSnapshot is what a look at 2,000 machines costs where nothing is known of an earlier one.
func BenchmarkSnapshot(b *testing.B) {
	s := still{site(2000, time.Now())}
	for b.Loop() {
		l := look{journal: s}
		l.snapshot()
	}
}

// BenchmarkPage is the list's page of 2,000 machines, the snapshot apart.
func BenchmarkPage(b *testing.B) {
	server := New(Options{Journal: still{site(2000, time.Now())}})
	handler := server.Handlers()["GET /boots"]
	request := httptest.NewRequest("GET", "/boots", nil)
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
}
