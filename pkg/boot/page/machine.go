package page

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// machinePage is what the template of a machine shows.
type machinePage struct {
	Title, Live string
	Reload      int
	Found       bool
	Now         stamp

	ID, Name string
	Facts    []fact
	Boots    []bootLink
	Boot     bootPage
	Lines    []line
	Hidden   bool // the request's sender may not see lines
	API      string
	Failed   string // link by which the failure is acknowledged; "" where that is not to be done
	Command  string // that fetches its packets; "" if its MAC is not known
}

// fact is something known of a machine, as name and value.
type fact struct{ Name, Value string }

// bootLink is one of a machine's boots.
type bootLink struct {
	Link   string
	Begin  stamp
	Date   string
	State  journal.State
	At     string
	Took   string
	Chosen bool
}

// bootPage is one boot of a machine.
type bootPage struct {
	State       journal.State
	At, Next    string
	Begin, End  stamp
	Took        string
	Cause, Text string
	Remedy      string
	Certain     bool
	Others      []journal.Doubt
	Since       stamp
	Known       stamp // when a person said to know of it
	Lanes       []lane
	Ticks       []tick
	Date        string
	Empty       bool
	WaitBar     *bar // from the last sign to now
	WaitFrom    stamp
}

// line is a line of syslog.
type line struct {
	Clock, ISO, Severity, Tag, Text, Class string
}

func (s *Server) serveMachinePage(w http.ResponseWriter, r *http.Request) {
	p, found := s.machineOf(r)
	if !found {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
	}
	s.render(w, "machine.html", p)
}

func (s *Server) serveMachineLive(w http.ResponseWriter, r *http.Request) {
	st, done := s.open(w, true)
	if st == nil {
		return
	}
	defer done()
	var sent []byte
	var known *entry
	id := s.look.id(r.PathValue("id"))
	s.watch(r.Context(), st, func(now *snapshot) {
		if e := now.ids[id]; e == nil || e != known || sent == nil {
			known = e
		} else {
			return
		}
		p, found := s.machineOf(r)
		if !found && sent == nil {
			return
		}
		shown := p
		shown.Now = stamp{}
		key, _ := json.Marshal(ageless(shown))
		if bytes.Equal(key, sent) {
			return
		}
		sent = key
		text, err := markup("boot", p)
		if err != nil {
			s.options.Logger.Error("failed to render boots page", "template", "boot", "error", err)
			return
		}
		encoded, _ := json.Marshal(map[string]any{"html": string(text), "now": s.options.Now().UnixMilli()})
		st.add("machine", encoded)
	})
}

// machineOf makes the page of the machine that a request is about.
func (s *Server) machineOf(r *http.Request) (machinePage, bool) {
	id := s.look.id(r.PathValue("id"))
	now := s.options.Now()
	p := machinePage{
		Title: Clean(id, nameLength), ID: Clean(id, nameLength), Reload: reload, Now: stampAt(now, now),
		Hidden: !s.showsLines(r),
	}
	m, found := s.machine(r, id)
	if !found {
		return p, false
	}
	self := "./" + url.PathEscape(m.ID) // a MAC alone would read as a scheme
	p.Found, p.ID, p.Name, p.Title = true, m.ID, m.Name, m.ID
	if m.Name != "" {
		p.Title = m.Name
	}
	p.API, p.Facts = "../api/v1/boots/"+url.PathEscape(m.ID), facts(m)
	if m.MAC != "" {
		p.Command = "/dhcp-relay trace -mac " + m.MAC
	}
	asked := r.URL.Query().Get("boot")
	chosen := max(slices.IndexFunc(m.Boots, func(b journal.BootView) bool { return b.ID == asked }), 0)
	p.Live = self + "/live"
	if chosen == 0 && isLocal(r) && Newest(&m).State == journal.Broken {
		p.Failed = self + "/acknowledge"
	}
	for i, b := range m.Boots {
		link := self + "?boot=" + url.QueryEscape(b.ID)
		if i == 0 {
			link = self
		}
		if i == chosen {
			p.Boot = bootOf(b, now, i == 0)
			if i > 0 {
				p.Live += "?boot=" + url.QueryEscape(b.ID)
			}
		}
		p.Boots = append(p.Boots, bootLink{
			Link: link, Begin: stampAt(b.Begin, now), Date: b.Begin.UTC().Format("2 Jan"), State: b.State,
			At: StepLabel(b.At), Took: Duration(b.End.Sub(b.Begin)), Chosen: i == chosen,
		})
	}
	for _, l := range m.Lines {
		at := stampAt(l.At, now)
		p.Lines = append(p.Lines, line{at.Clock, at.ISO, l.Severity, l.Tag, l.Text, severityClass(l.Severity)})
	}
	return p, true
}

func facts(m journal.MachineView) []fact {
	address := ""
	if m.Address.IsValid() {
		address = m.Address.String()
	}
	all := []fact{
		{"MAC", m.MAC}, {"Address", address}, {"Architecture", m.Arch}, {"Hardware", m.Hardware}, {"UUID", m.UUID},
	}
	for _, mac := range m.OtherMACs {
		all = append(all, fact{"Other MAC", mac})
	}
	all = append(all, fact{"Vendor class", m.VendorClass}, fact{"User class", m.UserClass})
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

func severityClass(severity string) string {
	switch severity {
	case "emerg", "alert", "crit", "err", "error", "emergency", "critical":
		return "failed"
	case "warning", "warn":
		return "warned"
	}
	return ""
}

// bootOf draws a boot.
func bootOf(b journal.BootView, now time.Time, current bool) bootPage {
	p := bootPage{
		State: b.State, At: StepLabel(b.At), Begin: stampAt(b.Begin, now), End: stampAt(b.End, now),
		Date: b.Begin.UTC().Format("2 Jan 2006"), Took: Duration(b.End.Sub(b.Begin)), Empty: len(b.Steps) == 0,
	}
	if b.Next != "" && b.State != journal.Booted {
		p.Next = StepLabel(b.Next)
	}
	if c := b.Cause; c != nil {
		p.Cause, p.Text, p.Remedy, p.Certain, p.Since = c.Name, c.Text, c.Remedy, c.Certain, stampAt(c.Since, now)
		p.Others = c.Others
	}
	if !b.Known.IsZero() {
		p.Known = stampAt(b.Known, now)
	}
	scale := scaleOf(b, now, current)
	p.Ticks = scale.ticks()
	for i := range b.Steps {
		p.Lanes = append(p.Lanes, laneOf(b, i, scale, now, current))
	}
	going := slices.ContainsFunc(p.Lanes, func(l lane) bool { return l.Going })
	waits := current && (b.State == journal.Stuck || b.State == journal.Broken || b.State == journal.Booting && !going)
	if waits && p.Next != "" {
		w := scale.bar(b.End, scale.end, "wait")
		p.WaitBar, p.WaitFrom = &w, p.End
	}
	return p
}

// ageless is a page without what changes by the clock alone, to know whether there is anything new.
func ageless(p machinePage) machinePage {
	p.Boots = slices.Clone(p.Boots)
	for i := range p.Boots {
		p.Boots[i].Begin.Age = ""
	}
	b := &p.Boot
	b.Begin.Age, b.End.Age, b.Since.Age, b.WaitFrom.Age, b.Known.Age = "", "", "", "", ""
	return p
}
