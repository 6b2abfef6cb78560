package page

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// List is the answer of /api/v1/boots.
type List struct {
	Now      time.Time             `json:"now"`
	Counts   map[journal.State]int `json:"counts"`            // of machines that match, whatever state was asked for
	Machines []journal.MachineView `json:"machines"`          // stuck first; the newest boot, no answers, no lines
	Sources  []feed.Source         `json:"sources,omitempty"` // the programs that tell of boots
}

//go:embed openapi.yaml
var openAPI []byte

func (s *Server) serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI)
}

// filtered refuses queries that cannot be meant.
func filtered(next func(http.ResponseWriter, *http.Request, Filter)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := parseFilter(r.URL.Query())
		if err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		next(w, r, f)
	}
}

// answerPiece is how much of a list is gathered before it is sent, in bytes.
const answerPiece = 64 << 10

func (s *Server) serveList(w http.ResponseWriter, r *http.Request, f Filter) {
	snap := s.look.snapshot()
	sources := s.options.Sources()
	if s.answerKnown(w, r, snap.version, sources) {
		return
	}
	counts, found := count(snap, f)
	head, err := json.Marshal(List{
		Now: s.options.Now().UTC(), Counts: counts, Machines: []journal.MachineView{}, Sources: sources,
	})
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	const empty = `"machines":[]`
	before, after, _ := bytes.Cut(head, []byte(empty))
	w.Header().Set("Content-Type", "application/json")
	st := stream{w: w, controller: http.NewResponseController(w)} // no answer is ever whole in memory
	st.b.Write(append(before, empty[:len(empty)-1]...))
	encoder := json.NewEncoder(&st.b)
	for i, e := range f.part(found) {
		if i > 0 {
			st.b.WriteByte(',')
		}
		_ = encoder.Encode(&e.view) // there is nothing in it that cannot be encoded
		if st.b.Len() > answerPiece {
			if _, err := st.flush(); err != nil {
				return
			}
		}
	}
	st.b.WriteByte(']')
	st.b.Write(append(after, '\n'))
	_, _ = st.flush()
}

// answerKnown gives an answer its ETag, made of all that it depends on besides its URL. It is true where the client has
// that answer already, and is told so.
func (s *Server) answerKnown(w http.ResponseWriter, r *http.Request, depends ...any) bool {
	sum := fnv.New64a()
	fmt.Fprint(sum, s.begun, depends)
	tag := fmt.Sprintf(`"%x"`, sum.Sum64())
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") != tag {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}

// unheard is what is said of a machine that is not known.
const unheard = "nothing was heard of this machine, or it was forgotten since"

func (s *Server) serveMachine(w http.ResponseWriter, r *http.Request, _ Filter) {
	m, found := s.machine(r, s.look.id(r.PathValue("id")))
	if !found {
		refuse(w, http.StatusNotFound, unheard)
		return
	}
	answer, err := json.Marshal(m)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	if s.answerKnown(w, r, string(answer)) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(answer, '\n'))
}

// count counts the machines that a filter lets through by state, and returns those of the state that it asks for.
func count(s *snapshot, f Filter) (counts map[journal.State]int, found []*entry) {
	counts = make(map[journal.State]int, len(States))
	for _, state := range States {
		counts[state] = 0
	}
	found = []*entry{}
	for _, e := range s.matching(f.any()) {
		state := Newest(&e.view).State
		counts[state]++
		if f.has(state) {
			found = append(found, e)
		}
	}
	return counts, found
}

// machineID is the ID that is meant by the text of a path: a MAC in any spelling, or an address.
func machineID(text string) string {
	if mac, err := net.ParseMAC(text); err == nil && len(mac) == 6 {
		return mac.String()
	}
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap().String()
	}
	return strings.ToLower(text)
}

// refuse answers an error as application/problem+json (RFC 9457).
func refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Problem{http.StatusText(status), status, boot.CleanCut(detail, textLength)})
}

// Problem is an answer to what cannot be answered (RFC 9457).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}
