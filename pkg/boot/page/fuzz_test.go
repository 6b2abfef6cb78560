package page

import (
	"context"
	"encoding/json"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Whatever a query says, the filter that is read from it says the same when it is written and read again.
func FuzzFilter(f *testing.F) {
	now := newSnapshot(site(5, time.Now()), nil)
	for _, seed := range []string{
		"", "state=stuck&step=script&cause=not-found&mac=52-54&address=192.0.2.0/24&q=a+b&own=true&page=3", "page=0", "own=x", "q=%ff%00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		filter, err := parseFilter(query)
		if err != nil {
			return
		}
		now.matching(filter)
		written, err := url.ParseQuery(trimQuestion(filter.query()))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := parseFilter(written); err != nil || again != filter {
			t.Errorf("%q: %+v became %+v, %v", text, filter, again, err)
		}
	})
}

func trimQuestion(text string) string {
	if text != "" && text[0] == '?' {
		return text[1:]
	}
	return text
}

// Whatever another replica says, the page shows it or leaves it out.
func FuzzReplica(f *testing.F) {
	m := site(1, time.Now())[0]
	for _, e := range []Event{{Type: EventHello, Pod: "a"}, {Type: EventMachine, Machine: &m}, {Type: EventReady}, {Type: EventGone, ID: m.ID}} {
		text, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"type":"machine","machine":{"id":"x","boots":null}}`))
	f.Add([]byte(`{"type":"machine","machine":{"id":"x","boots":[{"begin":"0001-01-01T00:00:00Z","end":"9999-01-01T00:00:00Z"}]}}`))
	f.Add([]byte(`{"type":"machine","machine":{"id":"x","boots":[{"steps":[{}]}]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		server := New(Options{Journal: newFake(), Replicas: func(context.Context) ([]netip.AddrPort, error) { return nil, nil }})
		r := &replica{fleet: server.fleet}
		machines := map[string]journal.MachineView{}
		var e Event
		if json.Unmarshal(line, &e) != nil || r.take(e, machines) != nil {
			return
		}
		var all []journal.MachineView
		for _, each := range machines {
			all = append(all, each)
		}
		now := newSnapshot(join([][]journal.MachineView{all, all}), nil)
		text, err := markup("list.html", server.listOf(now, Filter{Page: 1}))
		if err != nil {
			t.Fatal(err)
		}
		checkHTML(t, "the page", string(text))
		for _, m := range all {
			for _, b := range m.Boots {
				bootOf(b, time.Now(), true)
			}
		}
	})
}
