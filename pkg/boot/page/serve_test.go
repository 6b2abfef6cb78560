package page

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// serveAt has this test binary serve the page of a made-up site instead, for browsers: see test/e2e/browser. Its value
// is the address to listen on.
const serveAt = "BOOTS_PAGE_SERVE"

func TestMain(m *testing.M) {
	if address := os.Getenv(serveAt); address != "" {
		os.Exit(serveSite(address))
	}
	goleak.VerifyTestMain(m)
}

// serveSite serves the page, and what a test changes the site by: PUT /test/site?machines=2000 and PUT /test/machine with
// a machine as JSON.
func serveSite(address string) int {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	now := time.Now()
	f := newFake(site(1, now)...)
	s := New(Options{Journal: f, Sources: func() []feed.Source {
		return []feed.Source{
			{Program: "dhcp-relay", Pod: "stack-proxy-6d5f9c7b4-x2x9k", Heard: true, Since: now},
			{Program: "stack-proxy", Pod: "stack-proxy-6d5f9c7b4-x2x9k", Heard: true, Since: now},
		}
	}})
	mux := http.NewServeMux()
	for pattern, handler := range s.Handlers() {
		mux.Handle(pattern, handler)
	}
	mux.HandleFunc("PUT /test/site", func(w http.ResponseWriter, r *http.Request) {
		n := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("machines"), &n)
		for _, m := range f.Machines() {
			f.remove(m.ID)
		}
		for _, m := range site(n, time.Now()) {
			f.put(m)
		}
	})
	mux.HandleFunc("PUT /test/machine", func(w http.ResponseWriter, r *http.Request) {
		var m journal.MachineView
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.put(m)
	})
	fmt.Println("http://" + listener.Addr().String() + "/boots")
	if err := http.Serve(listener, mux); err != nil && !strings.Contains(err.Error(), "closed") {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
