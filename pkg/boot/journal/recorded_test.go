package journal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// filmTitle is the first line of a film.
type filmTitle struct {
	Film   string `json:"film"`
	Truth  string `json:"truth"`            // one sentence: what really happened
	Review string `json:"review,omitempty"` // row of a review that told of it
	Good   bool   `json:"good,omitempty"`   // a boot that goes well: it is never stuck
}

// filmLine is what happens at a time, in seconds since the film's begin. One of its fields is set, or none, where only time
// passes.
type filmLine struct {
	T          float64     `json:"t"`
	*FilmEvent             // its kind is empty in other lines
	Know       *filmKnow   `json:"know,omitempty"`
	Expect     *filmExpect `json:"expect,omitempty"`
}

// filmKnow is what is known beside events: each line adds to those before, or replaces what they say of the same.
type filmKnow struct {
	Self       []netip.Addr  `json:"self,omitempty"`
	Hardware   *filmHardware `json:"hardware,omitempty"`
	NoHardware bool          `json:"no-hardware,omitempty"` // Kubernetes is watched: what is not listed does not exist
	Workflow   *filmWorkflow `json:"workflow,omitempty"`
	Witness    *filmWitness  `json:"witness,omitempty"`
}

// filmHardware is an object, as far as it matters.
type filmHardware struct {
	MAC       string `json:"mac"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	AllowPXE  bool   `json:"allowPXE"`
	Arch      string `json:"arch,omitempty"`
}

// filmWorkflow is an object, as far as it matters.
type filmWorkflow struct {
	MAC     string `json:"mac"`
	State   string `json:"state"`
	Action  string `json:"action,omitempty"`
	Message string `json:"message,omitempty"`
}

// filmWitness is the health of those that tell of machines.
type filmWitness struct {
	Relay   string `json:"relay,omitempty"`   // "ok" or "lost"
	Proxies string `json:"proxies,omitempty"` // how many of how many: "2/3"
	Dropped uint64 `json:"dropped,omitempty"` // events, in all
}

// filmExpect is what the journal is to say of a machine.
type filmExpect struct {
	MAC     string     `json:"mac,omitempty"`
	Address string     `json:"address,omitempty"`
	State   filmWords  `json:"state,omitempty"`   // any of them is right
	Cause   *filmWords `json:"cause,omitempty"`   // any of them is right; an empty list: none may be shown
	Not     filmWords  `json:"not,omitempty"`     // none of them may be shown
	Certain *bool      `json:"certain,omitempty"` // nil: either
	Boots   int        `json:"boots,omitempty"`
	Says    filmWords  `json:"says,omitempty"`
	Step    filmWords  `json:"step,omitempty"`
}

// filmWords is one word, or a list of them.
type filmWords []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *filmWords) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = filmWords{one}
		return nil
	}
	*w = filmWords{}
	return json.Unmarshal(b, (*[]string)(w))
}

// FilmEvent is an event as text; fields that are empty are left out.
type FilmEvent struct {
	Kind    string  `json:"kind,omitempty"`
	Outcome string  `json:"outcome,omitempty"`
	Took    float64 `json:"took,omitempty"` // seconds
	DHCP    string  `json:"dhcp,omitempty"`
	V6      bool    `json:"v6,omitempty"`
	MAC     string  `json:"mac,omitempty"`
	UUID    string  `json:"uuid,omitempty"`
	XID     string  `json:"xid,omitempty"`
	Arch    *uint16 `json:"arch,omitempty"`
	Secs    uint16  `json:"secs,omitempty"`
	Lease   uint32  `json:"lease,omitempty"`

	Client    netip.Addr     `json:"client,omitzero"`
	Given     netip.Addr     `json:"given,omitzero"`
	Requested netip.Addr     `json:"requested,omitzero"`
	Server    netip.Addr     `json:"server,omitzero"`
	Next      netip.Addr     `json:"next,omitzero"`
	Relay     netip.Addr     `json:"relay,omitzero"`
	Endpoint  netip.AddrPort `json:"endpoint,omitzero"`

	Route    uint16 `json:"route,omitempty"`
	Status   uint16 `json:"status,omitempty"`
	Bytes    uint64 `json:"bytes,omitempty"`
	Expected uint64 `json:"expected,omitempty"`
	Offset   uint64 `json:"offset,omitempty"`
	Resent   uint32 `json:"resent,omitempty"`
	Block    uint16 `json:"block,omitempty"`
	Window   uint16 `json:"window,omitempty"`
	Priority uint8  `json:"priority,omitempty"`

	Vendor  string `json:"vendor,omitempty"`
	User    string `json:"user,omitempty"`
	Host    string `json:"host,omitempty"`
	File    string `json:"file,omitempty"`
	Agent   string `json:"agent,omitempty"`
	Message string `json:"message,omitempty"`
	Method  string `json:"method,omitempty"`
	Where   string `json:"place,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// The words of events, by number.
var (
	filmKinds = []string{
		boot.DHCPRequest: "dhcp-request", boot.DHCPReply: "dhcp-reply", boot.TFTP: "tftp", boot.HTTP: "http",
		boot.Stream: "stream", boot.Syslog: "syslog",
	}
	filmOutcomes = []string{
		boot.Passed: "passed", boot.Began: "began", boot.Done: "done", boot.Torn: "torn", boot.Refused: "refused",
		boot.NoServer: "no-server", boot.Dropped: "dropped",
	}
)

// texts are the fields of an event that are text, in the order of boot.Field.
func (e *FilmEvent) texts() [boot.Reason + 1]*string {
	return [...]*string{
		&e.Vendor, &e.User, &e.Host, &e.File, &e.Agent, &e.Message, &e.Method, &e.Where, &e.Reason,
	}
}

// addresses are those of an event by those that it has in memory.
func (e *FilmEvent) addresses(b *boot.Event) map[*[16]byte]*netip.Addr {
	return map[*[16]byte]*netip.Addr{
		&b.Client: &e.Client, &b.Given: &e.Given, &b.Requested: &e.Requested, &b.Server: &e.Server, &b.Next: &e.Next,
		&b.Relay: &e.Relay,
	}
}

// BootEvent is the event of a line in a film that begins at a time.
func (l *filmLine) BootEvent(begin time.Time) (boot.Event, error) {
	e := l.FilmEvent
	b := boot.Event{
		At: l.Time(begin).UnixNano(), Took: filmSeconds(e.Took), V6: e.V6, Secs: e.Secs, Lease: e.Lease, AskedPort: e.Route,
		Status: e.Status, Bytes: e.Bytes, Expected: e.Expected, Offset: e.Offset, Resent: e.Resent, Block: e.Block,
		Window: e.Window, Priority: e.Priority,
	}
	kind, outcome := slices.Index(filmKinds, e.Kind), slices.Index(filmOutcomes, e.Outcome)
	if kind < 0 || outcome < 0 && e.Outcome != "" {
		return b, fmt.Errorf("kind %q, outcome %q: no such event", e.Kind, e.Outcome)
	}
	b.Kind, b.Outcome = boot.Kind(kind), boot.Outcome(max(outcome, 0))
	if b.DHCP = dhcpType(e.DHCP, e.V6); b.DHCP == 0 && e.DHCP != "" && !strings.HasPrefix(e.DHCP, "BOOT") {
		return b, fmt.Errorf("no DHCP message is named %q", e.DHCP)
	}
	if e.Arch != nil {
		b.HasArch, b.Arch = true, *e.Arch
	}
	for a, addr := range e.addresses(&b) {
		*a = boot.Bytes(*addr)
	}
	b.Endpoint, b.Port = boot.Bytes(e.Endpoint.Addr()), e.Endpoint.Port()
	return b, errors.Join(e.identities(&b), e.setTexts(&b))
}

func (e *FilmEvent) identities(b *boot.Event) error {
	if e.MAC != "" {
		mac, err := net.ParseMAC(e.MAC)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("%q is no MAC", e.MAC)
		}
		b.MAC = [6]byte(mac)
	}
	if e.UUID != "" {
		uuid, err := hex.DecodeString(strings.ReplaceAll(e.UUID, "-", ""))
		if err != nil || len(uuid) != 16 {
			return fmt.Errorf("%q is no UUID", e.UUID)
		}
		b.UUID = [16]byte(uuid)
	}
	if e.XID != "" {
		xid, err := strconv.ParseUint(e.XID, 0, 32)
		if err != nil {
			return fmt.Errorf("%q is no xid", e.XID)
		}
		b.XID = uint32(xid)
	}
	return nil
}

func (e *FilmEvent) setTexts(b *boot.Event) error {
	room := boot.TextRoom
	for f, text := range e.texts() {
		if room -= len(*text); room < 0 {
			return fmt.Errorf("texts of more than %d bytes", boot.TextRoom)
		}
		boot.SetText(b, boot.Field(f), boot.TextRoom, *text)
	}
	return nil
}

// Time is when a line happens in a film that begins at a time.
func (l *filmLine) Time(begin time.Time) time.Time { return begin.Add(filmSeconds(l.T)) }

func filmSeconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

// readFilm reads a film: JSON, one object a line. Its first line is its title; each further line is an event, knowledge
// beside the events, a time that has passed, or an expectation of what the journal says of a machine then.
func readFilm(r io.Reader) (t filmTitle, lines []filmLine, err error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, nil, fmt.Errorf("failed to read title: %w", err)
	}
	for {
		var l filmLine
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return t, lines, nil
		case err != nil:
			return t, lines, fmt.Errorf("failed to read line %d: %w", len(lines)+2, err)
		}
		lines = append(lines, l)
	}
}

// dhcpType is the number of a DHCP message type; 0 if no type has the name.
func dhcpType(name string, v6 bool) uint8 {
	for n := range uint8(12) {
		if e := (boot.Event{DHCP: n, V6: v6}); n > 0 && e.TypeName() == name {
			return n
		}
	}
	return 0
}
