package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// machinePage is what the template of a machine shows.
type machinePage struct {
	journal.MachineView
	Title, Live string
	Reload      int
	Found       bool
	Now         time.Time

	Facts  []fact
	All    []bootLink
	Boot   bootPage
	Hidden bool   // the request's sender may not see lines
	API    string // link
	Copy   string // text that helps against the cause, for a terminal or editor
}

// fact is something known of a machine, as name and value.
type fact struct{ Name, Value string }

// bootLink is one of a machine's boots.
type bootLink struct {
	*journal.BootView
	Link   string
	Chosen bool
}

func (s *Server) serveMachinePage(w http.ResponseWriter, r *http.Request) {
	id := s.look.id(r.PathValue("id"))
	m, found := s.machine(r, id)
	if !found {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(http.StatusNotFound)
		m.ID = boot.CleanCut(id, nameLength)
	}
	s.render(w, "machine.html", s.pageOf(r, m, found))
}

func (s *Server) serveMachineLive(w http.ResponseWriter, r *http.Request) {
	st, done := s.open(w)
	if st == nil {
		return
	}
	defer done()
	id := s.look.id(r.PathValue("id"))
	var known *entry // an entry never changes: another one means that something of the machine did
	first, shown := true, false
	s.watch(r.Context(), st, func(snap *snapshot) {
		if !first && snap.ids[id] == known {
			return
		}
		known, first = snap.ids[id], false
		m, found := s.machine(r, id)
		if shown = shown || found; !shown {
			return
		}
		if text := s.markup("boot", s.pageOf(r, m, found)); text != "" {
			encoded, _ := json.Marshal(map[string]any{"html": text, "now": s.options.Now().UnixMilli()})
			st.add("machine", encoded)
		}
	})
}

// pageOf makes the page of a machine.
func (s *Server) pageOf(r *http.Request, m journal.MachineView, found bool) machinePage {
	p := machinePage{MachineView: m, Title: m.ID, Reload: reload, Now: s.options.Now(), Hidden: !s.showsLines(r)}
	p.Found = found && len(m.Boots) > 0
	if !p.Found {
		return p
	}
	self := "./" + url.PathEscape(m.ID) // a MAC alone would read as a scheme
	if m.Name != "" {
		p.Title = m.Name
	}
	p.API, p.Facts = "../api/v1/boots/"+url.PathEscape(m.ID), facts(m)
	asked := r.URL.Query().Get("boot")
	chosen := max(slices.IndexFunc(m.Boots, func(b journal.BootView) bool { return b.ID == asked }), 0)
	for i := range m.Boots {
		link := bootLink{&m.Boots[i], self, i == chosen}
		if i > 0 {
			link.Link += "?boot=" + url.QueryEscape(link.ID)
		}
		p.All = append(p.All, link)
	}
	p.Live = strings.Replace(p.All[chosen].Link, self, self+"/live", 1)
	p.Boot = bootPageOf(m.Boots[chosen], chosen == 0)
	p.Lines = slices.DeleteFunc(p.Lines, func(l journal.LineView) bool {
		return l.At.Before(p.Boot.Begin) || chosen > 0 && !l.At.Before(m.Boots[chosen-1].Begin)
	})
	p.Copy = textToCopy(&m, p.Boot.Cause)
	return p
}

// textToCopy is what a person does next about a cause, where that can be written down.
func textToCopy(m *journal.MachineView, c *journal.Cause) string {
	namespace, object, known := strings.Cut(m.Hardware, "/")
	switch {
	case c == nil || m.MAC == "":
		return ""
	case known:
		return fmt.Sprintf("kubectl -n %s edit hardware %s", namespace, object)
	case c.Name == "no-hardware":
		return fmt.Sprintf(`apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: m-%s}
spec:
  interfaces:
  - dhcp: {mac: "%s"}
    netboot: {allowPXE: true, allowWorkflow: true}
`, digits(m.MAC), m.MAC)
	default:
		return "/dhcp-relay trace -mac " + m.MAC
	}
}

func facts(m journal.MachineView) []fact {
	address := ""
	if m.Address.IsValid() {
		address = m.Address.String()
	}
	all := []fact{
		{"MAC", m.MAC}, {"Address", address}, {"Architecture", m.Arch}, {"Hardware", m.Hardware}, {"UUID", m.UUID},
		{"Other MACs", strings.Join(m.OtherMACs, " ")}, {"Vendor class", m.VendorClass}, {"User class", m.UserClass},
	}
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}

func severityClass(severity string) string {
	switch severity {
	case "emerg", "alert", "crit", "err":
		return "failed"
	case "warning":
		return "warned"
	}
	return ""
}
