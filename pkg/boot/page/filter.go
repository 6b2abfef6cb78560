package page

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// States are all, in the order of lists: what needs a person first.
var States = []journal.State{
	journal.Stuck, journal.StateFailed, journal.Booting, journal.Quiet, journal.Installed, journal.Booted,
}

// Filter says which machines are asked for. The zero Filter asks for all.
type Filter struct {
	State  string // one, or several with commas between
	Text   string // words that are all in what is known of the machine
	Offset int    // how many machines of the list are left out before the first
	Limit  int    // how many are listed; 0: all of them by the API, and so many as a page shows
}

// parameters are what a query may have; boot is of a machine's page.
var parameters = []string{"state", "q", "offset", "limit", "boot"}

// has reports whether a state is asked for.
func (f Filter) has(state journal.State) bool {
	return f.State == "" || slices.Contains(strings.Split(f.State, ","), string(state))
}

// Of a query's texts so much counts, in bytes.
const (
	nameLength = 128
	textLength = 512
)

// parseFilter reads a filter from a query, and tells what is wrong with it.
func parseFilter(q url.Values) (Filter, error) {
	text := func(name string) string { return boot.CleanCut(q.Get(name), nameLength) }
	for name := range q {
		if !slices.Contains(parameters, name) {
			return Filter{}, fmt.Errorf("parameter %q: none of %v", boot.CleanCut(name, nameLength), parameters)
		}
	}
	f := Filter{State: text("state"), Text: boot.CleanCut(q.Get("q"), textLength)}
	for _, state := range strings.Split(f.State, ",") {
		if f.State != "" && !slices.Contains(States, journal.State(state)) {
			return f, fmt.Errorf("state %q: none of %v", state, States)
		}
	}
	for name, number := range map[string]*int{"offset": &f.Offset, "limit": &f.Limit} {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.ParseUint(text(name), 10, 31)
		if err != nil {
			return f, fmt.Errorf("%s %q: not a number from 0", name, text(name))
		}
		*number = int(n)
	}
	return f, nil
}

// query is the inverse of parseFilter.
func (f Filter) query() string {
	q := url.Values{}
	for name, value := range map[string]string{"state": f.State, "q": f.Text} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, number := range map[string]int{"offset": f.Offset, "limit": f.Limit} {
		if number > 0 {
			q.Set(name, strconv.Itoa(number))
		}
	}
	if len(q) == 0 {
		return ""
	}
	return "?" + q.Encode()
}

// any is the filter without state: the states are counted over what it lets through.
func (f Filter) any() Filter {
	f.State = ""
	return f
}

// part is what of a list is asked for.
func (f Filter) part(found []*entry) []*entry {
	found = found[min(f.Offset, len(found)):]
	if f.Limit > 0 {
		found = found[:min(f.Limit, len(found))]
	}
	return found
}

// matches tells whether a machine is asked for.
func (f Filter) matches(e *entry) bool {
	if !f.has(Newest(&e.view).State) {
		return false
	}
	e.search.Do(e.index)
	for word := range strings.FieldsSeq(strings.ToLower(f.Text)) {
		if !strings.Contains(e.words, word) && !e.macMatches(word) {
			return false
		}
	}
	return true
}

// macMatches finds a MAC that is spelled in another way, or a part of it: 5254.0012, 52-54-00.
func (e *entry) macMatches(word string) bool {
	part := digits(word)
	return len(part) >= 4 && strings.Trim(word, "0123456789abcdef:-.") == "" && strings.Contains(e.macs, part)
}

var separators = strings.NewReplacer(":", "", "-", "", ".", "", " ", "")

// digits returns a MAC's digits: "52-54-00" becomes "525400".
func digits(mac string) string {
	return separators.Replace(strings.ToLower(mac))
}
