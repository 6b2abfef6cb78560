package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

const (
	// perPage is how many machines a page shows.
	perPage = 100
	// maxCauses is how many causes are summed up above the list.
	maxCauses = 4
	// reload is after how many seconds a page without script loads itself again.
	reload = 5
)

// listPage is what the template of the list shows.
type listPage struct {
	Title, Live string
	Reload      int
	Filter      Filter
	Heading     heading
	Rows        []row
	Parts       parts
	Now         time.Time
	Filtered    bool
}

// heading is what stands above the rows and changes with them.
type heading struct {
	Chips   []chip
	Causes  []causeCount
	More    int // causes that are not listed
	Sources []feed.Source
	Now     time.Time
}

// chip is a state with its count, and a link to show only that.
type chip struct {
	State, Label, Link string
	Count              int
	Chosen             bool
}

// causeCount is a cause that machines are stuck by.
type causeCount struct {
	Name, Remedy, Link string
	Count              int
	Chosen             bool
	Varies             bool // the remedy is that of one of them
}

// parts says which part of a long list is shown.
type parts struct {
	From, To, All       int
	Previous, Following string // links
	None                bool   // nothing was heard of any machine
}

// listOf makes the list's page of a snapshot.
func (s *Server) listOf(snap *snapshot, f Filter) listPage {
	counts, found := count(snap, f)
	at := s.options.Now()
	p := listPage{
		Title: "Boots", Live: "boots/live" + f.query(), Reload: reload, Filter: f, Now: at,
		Filtered: f != Filter{Offset: f.Offset, Limit: f.Limit},
	}
	sums := causes(found, f)
	p.Heading = heading{Chips: chips(counts, f), Causes: sums, Sources: s.options.Sources(), Now: at}
	if p.Heading.More = len(sums) - maxCauses; p.Heading.More > 0 {
		p.Heading.Causes = sums[:maxCauses]
	}
	g := f
	if g.Limit == 0 || g.Limit > perPage {
		g.Limit = perPage
	}
	g.Offset = min(g.Offset, max(len(found)-1, 0)/g.Limit*g.Limit)
	shown := g.part(found)
	end := g.Offset + len(shown)
	p.Parts = parts{From: min(g.Offset+1, end), To: end, All: len(found), None: len(snap.entries) == 0}
	link := func(offset int) string {
		to := f
		to.Offset = max(offset, 0)
		return "boots" + to.query()
	}
	if g.Offset > 0 {
		p.Parts.Previous = link(g.Offset - g.Limit)
	}
	if end < len(found) {
		p.Parts.Following = link(end)
	}
	for _, e := range shown {
		p.Rows = append(p.Rows, rowOf(e, at))
	}
	return p
}

func chips(counts map[journal.State]int, f Filter) []chip {
	all := 0
	made := []chip{{}}
	link := func(state journal.State) string {
		g := f
		g.State, g.Offset = string(state), 0
		return "boots" + g.query()
	}
	for _, state := range States {
		all += counts[state]
		made = append(made, chip{string(state), string(state), link(state), counts[state], f.State == string(state)})
	}
	made[0] = chip{"", "all", link(""), all, f.State == ""}
	return made
}

// causes sums up what machines are stuck by, the most frequent first: one fault of a backend is one line.
func causes(found []*entry, f Filter) []causeCount {
	var sums []causeCount
	for _, e := range found {
		b := Newest(&e.view)
		if b.Cause == nil || !stuckOrFailed(b) {
			continue
		}
		i := slices.IndexFunc(sums, func(c causeCount) bool { return c.Name == b.Cause.Name })
		if i < 0 {
			g, chosen := f, f.Text == b.Cause.Name
			if g.Text, g.Offset = b.Cause.Name, 0; chosen {
				g.Text = ""
			}
			i = len(sums)
			sums = append(sums, causeCount{
				Name: b.Cause.Name, Remedy: b.Cause.Remedy, Link: "boots" + g.query(), Chosen: chosen,
			})
		}
		sums[i].Count++
		sums[i].Varies = sums[i].Varies || sums[i].Remedy != b.Cause.Remedy
	}
	slices.SortStableFunc(sums, func(a, b causeCount) int { return cmp.Compare(b.Count, a.Count) })
	return sums
}

func (s *Server) serveListPage(w http.ResponseWriter, r *http.Request) {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, boot.CleanCut(err.Error(), textLength), http.StatusBadRequest)
		return
	}
	s.render(w, "list.html", s.listOf(s.look.snapshot(), f))
}

// render writes a page, or an error and not half a page.
func (s *Server) render(w http.ResponseWriter, name string, data any) {
	text := s.markup(name, data)
	if text == "" {
		http.Error(w, "failed to render the page: see the log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, text)
}

// listUpdate is what a browser is sent: the rows that it does not have, the order of all rows, and what stands around
// them.
type listUpdate struct {
	Order   []string          `json:"order"`
	Rows    map[string]string `json:"rows"`
	Heading string            `json:"heading,omitempty"`
	Parts   string            `json:"parts,omitempty"`
	Now     int64             `json:"now"` // milliseconds since 1970
}

func (s *Server) serveListLive(w http.ResponseWriter, r *http.Request, f Filter) {
	st, done := s.open(w)
	if st == nil {
		return
	}
	defer done()
	sent := make(map[string]*entry)
	var update listUpdate
	s.watch(r.Context(), st, func(snap *snapshot) {
		was := update
		update, sent = s.updateOf(s.listOf(snap, f), sent)
		next := update
		sameAround := was.Heading == next.Heading && was.Parts == next.Parts
		if sameAround && len(next.Rows) == 0 && slices.Equal(was.Order, next.Order) {
			return
		}
		if next.Heading == was.Heading {
			next.Heading = ""
		}
		if next.Parts == was.Parts {
			next.Parts = ""
		}
		encoded, _ := json.Marshal(next)
		st.add("list", encoded)
	})
}

// updateOf renders the rows of a page that were not sent yet, and returns all rows beside it.
func (s *Server) updateOf(p listPage, sent map[string]*entry) (listUpdate, map[string]*entry) {
	u := listUpdate{
		Rows: map[string]string{}, Order: make([]string, 0, len(p.Rows)), Now: s.options.Now().UnixMilli(),
		Heading: s.markup("heading", p.Heading), Parts: s.markup("parts", p.Parts),
	}
	rows := make(map[string]*entry, len(p.Rows))
	for _, each := range p.Rows {
		u.Order = append(u.Order, each.ID)
		rows[each.ID] = each.entry
		if sent[each.ID] != each.entry {
			u.Rows[each.ID] = s.markup("row", each)
		}
	}
	return u, rows
}

// serveStatic lets a browser keep the style sheet and the script for as long as they are the same.
func (s *Server) serveStatic(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-cache")
	name := r.URL.Path[len("/boots/static/"):]
	w.Header().Set("ETag", strconv.Quote(staticTag))
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(staticFiles[name]))
}
