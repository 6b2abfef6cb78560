package journal

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// The causes' names. Each has its row in docs/boots.md.
const (
	NoHardware         = "no-hardware"
	NetbootNotAllowed  = "netboot-not-allowed"
	NoServer           = "no-server"
	ServerSilent       = "server-silent"
	RelayDropped       = "relay-dropped"
	ReplyDropped       = "reply-dropped"
	WrongVLAN          = "wrong-vlan"
	OtherDHCPServer    = "other-dhcp-server"
	OfferNotTaken      = "offer-not-taken"
	AddressRefused     = "address-refused"
	NoBootFile         = "no-boot-file"
	WrongArchitecture  = "wrong-architecture"
	LoaderNotAsked     = "loader-not-asked"
	LoaderStalled      = "loader-stalled"
	LoaderDidNotStart  = "loader-did-not-start"
	LoaderLoop         = "loader-loop"
	ScriptNotAsked     = "script-not-asked"
	ScriptNotFollowed  = "script-not-followed"
	NotFound           = "not-found"
	Forbidden          = "forbidden"
	RefusedHere        = "refused-here"
	ServerError        = "server-error"
	FileTorn           = "file-torn"
	BackendDown        = "backend-down"
	KernelSilent       = "kernel-silent"
	SystemSilent       = "system-silent"
	MetadataServerDown = "no-hegel"
	AgentRefused       = "agent-refused"
	NoWorkflow         = "no-workflow"
)

// Causes lists the names of all causes, in the order of the steps at which they are found.
func Causes() []string {
	return []string{
		NoHardware, NetbootNotAllowed, NoServer, ServerSilent, RelayDropped, ReplyDropped, WrongVLAN, OtherDHCPServer,
		OfferNotTaken, AddressRefused, NoBootFile, WrongArchitecture, LoaderNotAsked, LoaderStalled, LoaderDidNotStart,
		LoaderLoop, ScriptNotAsked, ScriptNotFollowed, NotFound, Forbidden, RefusedHere, ServerError, FileTorn, BackendDown,
		KernelSilent, SystemSilent, MetadataServerDown, AgentRefused, NoWorkflow,
	}
}

// diagnose says why the newest boot of a machine does not get on; nil while nothing tells that it does not.
func (j *Journal) diagnose(m *machine, b *record, now int64) *Cause {
	if b.local || b.booted(now) {
		return nil
	}
	c := j.ofFailure(m, b, now)
	if c == nil {
		c = j.ofReturn(m, b)
	}
	if c == nil && b.at.isDHCP() {
		c = j.ofDHCP(m, b, now)
	}
	if c == nil {
		c = j.ofFetches(b)
	}
	if c == nil {
		c = j.ofSilence(m, b, now)
	}
	if c == nil && b.before != nil && b.at.order() <= Script.order() && b.firmware {
		again := *b.before
		if !strings.HasPrefix(again.Text, carried) {
			again.Text = carried + again.Text
		}
		again.Certain = false
		return &again
	}
	return c
}

const carried = "The boots before this one ended so, and this one is not past that step yet: "

// ofFailure explains the last thing that went wrong, unless the machine may still try again.
func (j *Journal) ofFailure(m *machine, b *record, now int64) *Cause {
	f := &b.failed
	wait := j.options.Waits.Retry
	switch f.step {
	case "", Other:
		return nil
	case Metadata, Files:
		wait *= 5 // A system asks for several names, and goes on without most.
	}
	if now-f.at < int64(wait) && (b.cause == nil || f.count == 1) {
		return nil
	}
	c := explain(f, &j.scene)
	if c.Name == BackendDown && f.step == Metadata {
		c.Name, c.Remedy = MetadataServerDown, remedies[MetadataServerDown]
	}
	if n, first := j.scene.held(m, f.step, f.at, true); n >= crowd {
		c.Text += fmt.Sprintf(" %d machines fail at this step since %s, and none got past it.", n, clock(first))
	}
	return c
}

// certain is a cause that what was heard proves.
func certain(name, format string, args ...any) *Cause {
	return &Cause{Name: name, Text: fmt.Sprintf(format, args...), Remedy: remedies[name], Certain: true}
}

// likely is a cause that fits what was heard best.
func likely(name, format string, args ...any) *Cause {
	c := certain(name, format, args...)
	c.Certain = false
	return c
}

// explain says what a failure means.
func explain(f *failure, s *scene) *Cause {
	file, from := quote(f.file), peer(f.from)
	if !f.from.IsValid() && f.place != "" {
		from = "route " + f.place // a file of this pod's own
	}
	switch {
	case f.step == Agent:
		return explainAgent(f, from)
	case f.outcome == boot.NoServer:
		return certain(BackendDown, "Nothing answered the request for %s: no endpoint of route %s could be reached%s.",
			file, f.place, at(f.from))
	case f.outcome == boot.Refused:
		return certain(RefusedHere, "stack-proxy refused the request for %s on route %s: %s.", file, f.place, f.message)
	case f.tftp() && f.byMachine:
		c := likely(LoaderDidNotStart, "The machine broke off the transfer of %s from %s after %s (%s).",
			file, from, amount(f), f.code())
		c.Remedy = "Look at the machine's screen: whether it has room for the file, and is meant to have it."
		return c
	case f.outcome == boot.Torn || f.status == 0 || f.status < 400 && !f.tftp():
		return explainTorn(f, file, from)
	case f.is(404, 1), f.is(410, 1):
		c := certain(NotFound, "%s is not at %s (%s).", file, from, f.code())
		if names := s.neighbours(f.file); names != "" {
			c.Text += " Served from the same directory: " + names + "."
		}
		return c
	case f.is(403, 2), f.is(401, 2), f.is(407, 2):
		return certain(Forbidden, "%s may not be read at %s (%s).", file, from, f.code())
	case !f.tftp() && (f.status == 502 || f.status == 503 || f.status == 504):
		return certain(BackendDown, "%s on route %s answered the request for %s with %s.", from, f.place, file, f.code())
	default:
		return certain(ServerError, "%s answered the request for %s with an error (%s).", from, file, f.code())
	}
}

func explainTorn(f *failure, file, from string) *Cause {
	switch {
	case f.tftp() && f.bytes == 0:
		return likely(BackendDown, "%s sent nothing of %s (route %s).", from, file, f.place)
	case f.tftp():
		return likely(LoaderStalled, "The transfer of %s from %s stalled after %s; %d blocks of %d bytes were sent again.",
			file, from, amount(f), f.resent, max(f.block, 512))
	case f.byMachine:
		c := likely(FileTorn, "The machine hung up after %s of %s from %s.", amount(f), file, from)
		c.Remedy = "Look at the link and at the machine's console: it may have no room for the file."
		return c
	default:
		return certain(FileTorn, "%s from %s ended after %s.", file, from, amount(f))
	}
}

func explainAgent(f *failure, from string) *Cause {
	switch {
	case f.outcome == boot.NoServer || f.status == grpcUnavailable:
		c := certain(BackendDown, "The agent's connection found no server: no endpoint of route %s answered%s.",
			f.place, at(f.from))
		c.Remedy = "Look whether Tink Server runs, and at the backend of its route."
		return c
	case f.outcome == boot.Refused:
		c := certain(AgentRefused, "stack-proxy refused the agent on route %s: %s.", f.place, f.message)
		c.Remedy = remedies[RefusedHere]
		return c
	}
	said := f.code()
	if f.message != "" {
		said += ", " + quote(f.message)
	}
	return certain(AgentRefused, "Tink Server at %s refused the agent's %s: %s.", from, quote(f.file), said)
}

// ofReturn explains firmware that asks again after it has got its loader.
func (j *Journal) ofReturn(m *machine, b *record) *Cause {
	if b.returned.at == 0 || b.at.order() > Loader.order() {
		return nil
	}
	file := quote(b.returned.file)
	if why := m.mismatch(b.returned.file, true); why != "" {
		return likely(WrongArchitecture, "The firmware got %s whole and asks for an address again: %s.", file, why)
	}
	return likely(LoaderDidNotStart, "The firmware got %s whole from %s and asks for an address again%s: it did not "+
		"start it.", file, peer(b.returned.from), m.archNote())
}

// ofFetches explains a file that is fetched whole again and again.
func (j *Journal) ofFetches(b *record) *Cause {
	if len(b.fetches) == 0 {
		return nil
	}
	f := b.fetches[len(b.fetches)-1]
	if f.count < 3 && (f.count < 2 || !isChecksum(strings.ToLower(f.file))) {
		return nil
	}
	c := likely(FileTorn, "%s was served whole %d times: what arrives is not what the machine expects.",
		quote(f.file), f.count)
	c.Remedy = "Compare the file's digest with the one that the machine expects; look at its memory and disk."
	return c
}

func (f *failure) tftp() bool { return f.kind == boot.TFTP }

// is tells whether the answer was an HTTP status or a TFTP error.
func (f *failure) is(http, tftp uint16) bool {
	if f.tftp() {
		return f.status == tftp+1
	}
	return f.status == http
}

// code is the answer's code in its protocol's words.
func (f *failure) code() string {
	switch {
	case f.tftp():
		return strings.TrimSuffix(fmt.Sprintf("TFTP error %d: %s", f.status-1, f.message), ": ")
	case f.kind == boot.Stream:
		return "gRPC code " + strconv.Itoa(int(f.status)) + grpcName(f.status)
	default:
		return "HTTP status " + strconv.Itoa(int(f.status))
	}
}

func grpcName(code uint16) string {
	names := map[uint16]string{
		2: "UNKNOWN", 3: "INVALID_ARGUMENT", grpcNotFound: "NOT_FOUND", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
		9: "FAILED_PRECONDITION", 12: "UNIMPLEMENTED", 13: "INTERNAL", 16: "UNAUTHENTICATED",
	}
	if n := names[code]; n != "" {
		return " " + n
	}
	return ""
}

func amount(f *failure) string {
	if f.expected > 0 {
		return fmt.Sprintf("%d of %d bytes", f.bytes, f.expected)
	}
	return fmt.Sprintf("%d bytes", f.bytes)
}

func quote(s string) string {
	if s == "" {
		return "it"
	}
	return strconv.Quote(s)
}

// peer is a server in a sentence.
func peer(a netip.AddrPort) string {
	switch {
	case !a.IsValid():
		return "its server"
	case a.Port() == 0:
		return a.Addr().String()
	default:
		return a.String()
	}
}

func at(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return " (" + peer(a) + ")"
}

func clock(at int64) string { return time.Unix(0, at).UTC().Format(time.TimeOnly) + " UTC" }

func seconds(d int64) string { return time.Duration(d).Round(time.Second).String() }
