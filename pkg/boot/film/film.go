// Package film reads and writes recorded event streams: JSON, one object a line. A film begins with a [Title]; each
// further line is an event, knowledge beside the events, a time that has passed, or an expectation of what the journal
// says of a machine then. docs/design/decisions.md tells what films are for.
package film

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

// Title is the first line of a film.
type Title struct {
	Film   string `json:"film"`
	Truth  string `json:"truth"`            // one sentence: what really happened
	Review string `json:"review,omitempty"` // row of a review that told of it
	Good   bool   `json:"good,omitempty"`   // a boot that goes well: it is never stuck
}

// Line is what happens at a time, in seconds since the film's begin. One of its fields is set, or none, where only time
// passes.
type Line struct {
	T      float64 `json:"t"`
	*Event         // its kind is empty in other lines
	Know   *Know   `json:"know,omitempty"`
	Expect *Expect `json:"expect,omitempty"`
}

// Know is what is known beside events: each line adds to those before, or replaces what they say of the same.
type Know struct {
	Self       []netip.Addr `json:"self,omitempty"`
	Hardware   *Hardware    `json:"hardware,omitempty"`
	NoHardware bool         `json:"no-hardware,omitempty"` // Kubernetes is watched: what is not listed does not exist
	Workflow   *Workflow    `json:"workflow,omitempty"`
	Witness    *Witness     `json:"witness,omitempty"`
}

// Hardware is an object, as far as it matters.
type Hardware struct {
	MAC       string `json:"mac"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
	AllowPXE  bool   `json:"allowPXE"`
	Arch      string `json:"arch,omitempty"`
}

// Workflow is an object, as far as it matters.
type Workflow struct {
	MAC     string `json:"mac"`
	State   string `json:"state"`
	Action  string `json:"action,omitempty"`
	Message string `json:"message,omitempty"`
}

// Witness is the health of those that tell of machines.
type Witness struct {
	Relay   string `json:"relay,omitempty"`   // "ok" or "lost"
	Proxies string `json:"proxies,omitempty"` // how many of how many: "2/3"
	Dropped uint64 `json:"dropped,omitempty"` // events, in all
}

// Expect is what the journal is to say of a machine.
type Expect struct {
	MAC     string `json:"mac,omitempty"`
	Address string `json:"address,omitempty"`
	State   Words  `json:"state,omitempty"`   // any of them is right
	Cause   *Words `json:"cause,omitempty"`   // any of them is right; an empty list: none may be shown
	Not     Words  `json:"not,omitempty"`     // none of them may be shown
	Certain *bool  `json:"certain,omitempty"` // nil: either
	Boots   int    `json:"boots,omitempty"`
	Says    Words  `json:"says,omitempty"`
	Step    Words  `json:"step,omitempty"`
}

// Words is one word, or a list of them.
type Words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *Words) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = Words{one}
		return nil
	}
	*w = Words{}
	return json.Unmarshal(b, (*[]string)(w))
}

// Event is an event as text; fields that are empty are left out.
type Event struct {
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
	kinds = []string{
		boot.DHCPRequest: "dhcp-request", boot.DHCPReply: "dhcp-reply", boot.TFTP: "tftp", boot.HTTP: "http",
		boot.Stream: "stream", boot.Syslog: "syslog", boot.Acknowledged: "acknowledged",
	}
	outcomes = []string{
		boot.Passed: "passed", boot.Began: "began", boot.Done: "done", boot.Torn: "torn", boot.Refused: "refused",
		boot.NoServer: "no-server", boot.Dropped: "dropped",
	}
)

// texts are the fields of an event that are text, in the order of boot.Field.
func (e *Event) texts() [boot.Reason + 1]*string {
	return [...]*string{
		&e.Vendor, &e.User, &e.Host, &e.File, &e.Agent, &e.Message, &e.Method, &e.Where, &e.Reason,
	}
}

// addresses are those of an event by those that it has in memory.
func (e *Event) addresses(b *boot.Event) map[*[16]byte]*netip.Addr {
	return map[*[16]byte]*netip.Addr{
		&b.Client: &e.Client, &b.Given: &e.Given, &b.Requested: &e.Requested, &b.Server: &e.Server, &b.Next: &e.Next,
		&b.Relay: &e.Relay,
	}
}

// Of is the line of an event in a film that began at a time.
func Of(b *boot.Event, begin time.Time) Line {
	e := &Event{
		Kind: kinds[b.Kind], Outcome: outcomes[b.Outcome], Took: b.Took.Seconds(), V6: b.V6, Secs: b.Secs, Lease: b.Lease,
		Route: b.AskedPort, Status: b.Status, Bytes: b.Bytes, Expected: b.Expected, Offset: b.Offset, Resent: b.Resent,
		Block: b.Block, Window: b.Window, Priority: b.Priority,
	}
	if b.Kind == boot.DHCPRequest || b.Kind == boot.DHCPReply {
		e.DHCP = b.TypeName()
	}
	if b.MAC != [6]byte{} {
		e.MAC = net.HardwareAddr(b.MAC[:]).String()
	}
	if b.UUID != [16]byte{} {
		e.UUID = hex.EncodeToString(b.UUID[:])
	}
	if b.XID != 0 {
		e.XID = fmt.Sprintf("0x%x", b.XID)
	}
	if arch := b.Arch; b.HasArch {
		e.Arch = &arch
	}
	for a, addr := range e.addresses(b) {
		*addr = boot.Addr(*a)
	}
	if a := boot.Addr(b.Endpoint); a.IsValid() {
		e.Endpoint = netip.AddrPortFrom(a, b.Port)
	}
	for f, text := range e.texts() {
		*text = string(b.Text(boot.Field(f)))
	}
	return Line{T: time.Unix(0, b.At).Sub(begin).Seconds(), Event: e}
}

// BootEvent is the event of a line in a film that begins at a time.
func (l *Line) BootEvent(begin time.Time) (boot.Event, error) {
	e := l.Event
	b := boot.Event{
		At: l.Time(begin).UnixNano(), Took: seconds(e.Took), V6: e.V6, Secs: e.Secs, Lease: e.Lease, AskedPort: e.Route,
		Status: e.Status, Bytes: e.Bytes, Expected: e.Expected, Offset: e.Offset, Resent: e.Resent, Block: e.Block,
		Window: e.Window, Priority: e.Priority,
	}
	kind, outcome := slices.Index(kinds, e.Kind), slices.Index(outcomes, e.Outcome)
	if kind < 0 || outcome < 0 && e.Outcome != "" {
		return b, fmt.Errorf("kind %q, outcome %q: no such event", e.Kind, e.Outcome)
	}
	b.Kind, b.Outcome = boot.Kind(kind), boot.Outcome(max(outcome, 0))
	if b.DHCP = boot.TypeByName(e.DHCP, e.V6); b.DHCP == 0 && e.DHCP != "" && !strings.HasPrefix(e.DHCP, "BOOT") {
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

func (e *Event) identities(b *boot.Event) error {
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

func (e *Event) setTexts(b *boot.Event) error {
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
func (l *Line) Time(begin time.Time) time.Time { return begin.Add(seconds(l.T)) }

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * float64(time.Second))) }

// Read reads a film.
func Read(r io.Reader) (t Title, lines []Line, err error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return t, nil, fmt.Errorf("failed to read title: %w", err)
	}
	for {
		var l Line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF):
			return t, lines, nil
		case err != nil:
			return t, lines, fmt.Errorf("failed to read line %d: %w", len(lines)+2, err)
		}
		lines = append(lines, l)
	}
}
