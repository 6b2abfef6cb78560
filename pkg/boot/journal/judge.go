package journal

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/boot"
)

// Reasons of events that mean something to causes.
const (
	reasonHandshake  = "tls-handshake"
	reasonTLSOnPlain = "tls-on-plain"
)

// isHandshake tells whether an event is of TLS that one of the two sides does not take.
func isHandshake(e *boot.Event) bool {
	reason := string(e.Text(boot.Reason))
	return e.Outcome == boot.Refused && (reason == reasonHandshake || reason == reasonTLSOnPlain)
}

// isOurTimer tells whether a timer of this service's ended something.
func isOurTimer(reason string) bool {
	switch reason {
	case "our-timeout", "client_stalled", "timeout", "idle":
		return true
	}
	return false
}

// clues are what the table's rows look at: the facts of the newest boot, and what is known beside them.
type clues struct {
	*bootRecord
	j *Journal
	m *machine

	now   int64
	quiet int64 // since the last sign of it, or since it got on
	a     *ask  // the DHCP exchange that goes on, or that gave the address
	other *ask  // that of the other version
	hw    Hardware
	wf    *Workflow // that names any of its MACs
	asks  bool      // hw is known, since Kubernetes is watched
	f     *failure
	st    *step   // that it is at; an empty one before the first
	open  *answer // the oldest that goes on
}

func (j *Journal) cluesOf(m *machine, b *bootRecord, now int64) clues {
	c := clues{
		bootRecord: b, j: j, m: m, now: now, quiet: now - max(b.moved, b.end), f: &b.facts.failed, st: b.last(b.at),
		a: &b.facts.asks[0], other: &b.facts.asks[1], open: b.oldestOpen(),
	}
	if c.st == nil {
		c.st = &step{}
	}
	if c.other.last > c.a.last && c.other.acked >= c.a.acked || c.other.acked > c.a.acked {
		c.a, c.other = c.other, c.a
	}
	if j.options.Hardware != nil {
		c.hw, c.asks = j.options.Hardware(b.mac)
		c.wf = j.workflowOf(m)
	}
	return c
}

// judge evaluates all rows. It returns the best supported cause of what holds the newest boot up, nil if none fits; the
// others that fit, each with what speaks against it.
func (j *Journal) judge(c *clues) (best *row, others []doubt) {
	for i := range table {
		r := &table[i]
		if !r.when(c) {
			continue
		}
		const less = "less was heard that speaks for it"
		i := slices.IndexFunc(r.unless, func(o objection) bool { return o.is(c) })
		switch {
		case i >= 0:
			others = append(others, doubt{r, r.unless[i].says, r.unless[i].leaves})
		case best == nil:
			best = r
		case r.support > best.support:
			others = append(others, doubt{best, less, false})
			best = r
		default:
			others = append(others, doubt{r, less, false})
		}
	}
	return best, others
}

// doubt is a cause that fits, and is not the one that is shown.
type doubt struct {
	*row
	against string
	open    bool // it may be this one all the same
}

// causeOf is what holds a boot up, as it is shown.
func (j *Journal) causeOf(m *machine, b *bootRecord, now int64) (*row, *Cause) {
	c := j.cluesOf(m, b, now)
	best, others := j.judge(&c)
	var unsure string
	likely, mild := best, true
	if best != nil {
		unsure = j.scene.gap(best.needs, c.silentSince())
	} else if i := slices.IndexFunc(others, func(d doubt) bool { return d.open }); i >= 0 {
		unsure, likely, mild = others[i].against, others[i].row, others[i].support < missing
		others = slices.Delete(others, i, i+1)
	} else {
		return j.held(&c, others)
	}
	var cause Cause
	if unsure != "" {
		best = rowOf(CannotTell, mild)
		cause = Cause{Name: CannotTell, Text: "Cannot tell, because " + unsure + ". It may be " + likely.name + ": "}
		cause.Text += likely.text(&c)
	} else {
		cause = Cause{Name: best.name, Text: best.text(&c), Certain: best.certain != nil && best.certain(&c)}
	}
	cause.Text += j.scene.crowd(b, cause.Name)
	cause.Remedy = cmp.Or(best.remedy, remedies()[best.name])
	for _, o := range others {
		if o.name != cause.Name && len(cause.Others) < maxOthers {
			cause.Others = append(cause.Others, Doubt{Name: o.name, Text: o.text(&c), Against: o.against})
		}
	}
	return best, &cause
}

// held is the cause that was found before, where nothing shows that it is overcome: it stays until the step behind it
// is reached.
func (j *Journal) held(c *clues, others []doubt) (*row, *Cause) {
	r := c.row
	if r == nil || c.cause == nil || r.mild {
		return nil, nil
	}
	for _, o := range others {
		if o.row == r {
			return nil, nil // Something speaks against it now.
		}
	}
	return r, c.cause
}

// overcome drops the cause that a boot is held up by, if a step goes well, or is begun, that was behind it.
func (b *bootRecord) overcome(s Step, begun bool) {
	if b.row == nil {
		return
	}
	past := b.row.past
	if past == "" {
		past = b.heldAt
	}
	if s.order() > past.order() || s.order() == past.order() && (!begun || b.row.asked) {
		b.row, b.cause = nil, nil
	}
}

func rowOf(name string, mild bool) *row {
	for i := range table {
		if table[i].name == name && table[i].mild == mild {
			return &table[i]
		}
	}
	return nil
}

// What rows ask for.

func (c *clues) waits() *Waits { return &c.j.options.Waits }

func (c *clues) mac() string { return macString(c.bootRecord.mac) }

// silentSince is when the silence began from which a cause is inferred.
func (c *clues) silentSince() int64 {
	if c.unanswered() {
		return c.a.opened
	}
	return max(c.moved, c.end)
}

// noAddress tells whether a machine is asking and has no address.
func (c *clues) noAddress() bool { return c.at.isDHCP() && c.a.acked == 0 && c.other.acked == 0 }

// unanswered tells whether a machine asks for an address again and again.
func (c *clues) unanswered() bool {
	return c.noAddress() && c.a.asked >= 2 && c.now-c.a.opened >= int64(c.waits().Offer) &&
		(c.facts.firmware || c.facts.kernel)
}

// ignored tells whether nobody is known to keep the answer back.
func (c *clues) ignored() bool {
	return c.unanswered() && c.a.drop == "" && c.a.lost == "" && !(c.offered() && c.asks)
}

func (c *clues) asked(rest string) string {
	separator := " "
	if strings.HasPrefix(rest, "and ") {
		separator = ", "
	}
	return fmt.Sprintf("%s asked %d times since %s%s%s", c.mac(), c.a.asked, clock(c.a.opened), separator, rest)
}

// often tells whether a machine has asked so often that what was lost on the way does not explain it.
func (c *clues) often() bool {
	return c.a.asked >= 3 || c.j.scene.waiting >= crowded || c.now-c.a.opened >= int64(time.Minute)
}

// othersAnswered tells whether the server answered another machine since this one asks.
func (c *clues) othersAnswered() bool {
	at, found := c.j.scene.other(c.m)
	return found && at >= c.a.opened
}

// offered tells whether the machine asks for what a server offered it.
func (c *clues) offered() bool { return c.a.requests > 0 && len(c.a.servers) > 0 }

// othersWait tells whether other machines get no answer either, and nothing else tells that the server is well.
func (c *clues) othersWait() bool { return c.j.scene.waiting > 1 && !c.servesFiles() }

// serverWell tells whether the server gave a sign of itself not long before the machine asked.
func (c *clues) serverWell() bool {
	at, found := c.j.scene.other(c.m)
	return found && c.a.opened-at <= int64(15*time.Minute) || c.servesFiles()
}

// servesFiles tells whether the host that answers DHCP answered other requests since the machine asks.
func (c *clues) servesFiles() bool { return c.j.scene.alive >= c.a.opened }

// serverSilent says that the server does not answer, and what others get.
func (c *clues) serverSilent() string {
	text := c.asked("without an answer")
	if c.offered() {
		return c.asked("") + fmt.Sprintf("; %s offered an address and does not confirm it.", c.a.servers[0])
	}
	if c.a.to.IsValid() {
		text += " of " + peer(c.a.to)
	}
	switch n := c.j.scene.waiting; {
	case n == 2:
		text += ", as 1 other machine does: the server answers nobody"
	case n > 2:
		text += fmt.Sprintf(", as %d other machines do: the server answers nobody", n-1)
	}
	if c.a.relay.IsValid() {
		text += fmt.Sprintf("; the request came through the relay %s, whose address (giaddr) the answer goes to", c.a.relay)
	}
	return text + "."
}

func (c *clues) acked() bool { return c.at.isDHCP() && c.a.acked > 0 && c.facts.stage != OSDHCP }

// notAsked tells whether a machine has an address, and does not ask for the file that it was told to load.
func (c *clues) notAsked(stage Step, wait time.Duration) bool {
	named := c.a.file != "" && !notAllowed(c.a.file)
	return named && c.acked() && c.facts.stage == stage && c.facts.loads < 3 && c.now-max(c.a.acked, c.end) >= int64(wait)
}

// elsewhere is the server of a boot file; empty if that is this service, or is not known.
func (c *clues) elsewhere() string {
	self := c.j.options.Self
	if len(self) == 0 {
		return ""
	}
	host := c.a.next
	if u, err := url.Parse(c.a.file); err == nil && u.Host != "" {
		if host, err = netip.ParseAddr(u.Hostname()); err != nil {
			return "" // a name
		}
	}
	if !host.IsValid() || slices.Contains(self, host) {
		return ""
	}
	return host.String()
}

func (c *clues) self() string {
	var all []string
	for _, a := range c.j.options.Self {
		all = append(all, a.String())
	}
	return strings.Join(all, ", ")
}

// idleAt tells whether a step went well, and nothing was heard since for a time.
func (c *clues) idleAt(s Step, wait time.Duration) bool {
	return c.at == s && c.st.result == OK && c.open == nil && c.quiet >= int64(wait)
}

// goesOn tells whether a transfer or a connection is open.
func (c *clues) goesOn() bool { return c.open != nil || c.facts.agent.streams > 0 }

// openFor is how long the oldest transfer goes on.
func (c *clues) openFor() int64 {
	if c.open == nil || c.open.kind != "TFTP" {
		return 0
	}
	return c.now - c.open.begin
}

// transfer is the oldest transfer that goes on and sends; nil if there is none.
func (c *clues) transfer() *answer {
	if c.open == nil || c.open.course == waiting || c.open.kind == "TCP" || c.open.kind == "gRPC" || c.at == Loader {
		return nil
	}
	return c.open
}

// waiting is the oldest request that waits for its endpoint; nil if there is none.
func (c *clues) waiting() *answer {
	for k := range c.answers {
		if a := &c.answers[k]; a.course == waiting && int(a.step) >= c.attempt {
			return a
		}
	}
	return nil
}

// failed tells whether the last thing that went wrong counts: the machine did not try again for a moment.
func (c *clues) failed() bool {
	wait := c.waits().Retry
	switch c.f.step {
	case "", Other:
		return false
	case Loader:
		if c.facts.loads > 0 {
			wait *= 5 // What runs already asks for files that it can do without.
		}
	case Files:
		// An action goes on without most files: what it needs is an image, or is asked for again.
		if c.f.count < 2 && !isImage(c.f.file) || c.facts.agent.reported {
			return false
		}
		wait *= 5
	case Metadata:
		if c.facts.agent.since > 0 && c.f.outcome == boot.Done {
			return false // An action asks for it, and goes on.
		}
		wait *= 5 // A system asks for several names, and goes on without most.
	}
	if c.f.byMachine && c.f.count == 1 {
		wait = max(wait, c.waits().Start) // It was reset, or asks for the rest.
	}
	return c.now-c.f.at >= int64(wait) || c.cause != nil && c.f.count > 1
}

// answered tells whether a server's answer, whole and of an error, is what went wrong.
func (c *clues) answered() bool {
	bad := c.f.tftp() && c.f.status > 0 || c.f.status >= 400
	return bad && c.failed() && c.f.outcome == boot.Done && c.f.step != Agent
}

// sentNothing tells whether an endpoint took a request and gave no answer at all.
func (c *clues) sentNothing() bool {
	tftp := c.f.tftp() && c.f.outcome == boot.Torn && c.f.resent == 0
	http := c.f.kind == boot.HTTP && c.f.byUs && c.f.status == 0
	return (tftp || http) && c.failed() && c.f.bytes == 0
}

// torn tells whether a file ended early.
func (c *clues) torn() bool {
	return c.failed() && !c.sentNothing() && c.f.kind == boot.HTTP && c.f.step != Agent && c.f.status < 400 &&
		(c.f.outcome == boot.Torn || c.f.outcome == boot.Done)
}

// agentIdle tells whether the agent asks for work, and gets none for long.
func (c *clues) agentIdle() bool {
	a := &c.facts.agent
	if a.since == 0 || a.worked || a.reported || c.now-a.since < int64(c.waits().System) {
		return false
	}
	if c.hw.Workflows && c.hw.Known {
		return !c.wf.runs() && !c.wf.ended()
	}
	return a.calls && c.now-c.end < int64(c.waits().System)
}

// stranger tells whether an address without a lease was heard to run a system since this machine is quiet.
func (c *clues) stranger() bool { return c.j.scene.stranger >= max(c.moved, c.end) }

// bootsDisk tells whether a machine that may not boot from the network has no reason to: it is installed.
func (c *clues) bootsDisk() bool {
	w := c.wf
	return c.m.installed() || c.asks && c.hw.Known && !c.hw.Netboot && (w == nil || w.ended())
}

func (c *clues) otherArchitecture() bool {
	_, own := families(iana.Arch(c.m.arch))
	_, said := fileFamilies(c.hw.Arch, false)
	return c.m.hasArch && own != "" && said != "" && own != said
}

// wrongFile is the file that was loaded and is not made for the machine; empty if there is none.
func (c *clues) wrongFile() string {
	for _, s := range []Step{Kernel, Loader} {
		if st := c.last(s); st != nil && c.m.mismatch(st.text, true) != "" {
			return st.text
		}
	}
	return ""
}

// loops counts the boots from the network before this one, without a pause, that loaded a kernel and led to no other
// end.
func (m *machine) loops() (n int) {
	for i := len(m.boots) - 1; i > 0; i-- {
		b, old := m.boots[i], m.boots[i-1]
		network := b.facts.firmware && !b.facts.local && !old.facts.local && old.at.order() >= Kernel.order()
		if !network || b.begin-old.end > int64(15*time.Minute) {
			break
		}
		n++
	}
	return n
}

// maxLoops is how many boots before this one make a loop.
const maxLoops = 2

// slowAfter is how long a transfer may go on before its rate is told.
const slowAfter = time.Minute

// maxOthers is how many other causes are shown.
const maxOthers = 3

// pace is how fast a transfer goes, and how long it has to go on.
func (a *answer) pace(now int64) string {
	t := fmt.Sprintf("%s goes on since %s", quote(a.text), clock(a.begin))
	if d := time.Duration(a.end - a.begin).Seconds(); a.bytes > 0 && d > 0 {
		rate := float64(a.bytes) / d
		t += fmt.Sprintf(" at %.0f kbit/s", rate*8/1000)
		if left := float64(a.expected) - float64(a.bytes); left > 0 {
			t += fmt.Sprintf(", and has %s to go", seconds(int64(left/rate*1e9)))
		}
	} else if a.expected > 0 {
		t += fmt.Sprintf(", of %d bytes: less than %.0f kbit/s", a.expected,
			float64(a.expected)*8/1000/time.Duration(now-a.begin).Seconds())
	}
	return t + "."
}

// What a failure says.

func (f *failure) tftp() bool { return f.kind == boot.TFTP }

func (f *failure) tls() bool {
	return f.outcome == boot.Refused && (f.reason == reasonHandshake || f.reason == reasonTLSOnPlain)
}

// stalled tells whether a transfer by TFTP stopped on its way, whatever error the server ended it with.
func (f *failure) stalled() bool {
	if !f.tftp() || f.outcome == boot.NoServer || f.outcome == boot.Refused {
		return false
	}
	return f.bytes > 0 || f.resent > 0 || f.took > 5*time.Second && f.outcome == boot.Done
}

func (f *failure) about() string { return quote(f.file) }

// by is who answered.
func (f *failure) by() string {
	if !f.from.IsValid() && f.place != "" {
		return "route " + f.place // a file of this pod's own
	}
	return peer(f.from)
}

func (f *failure) gateway() bool {
	return !f.tftp() && (f.status == 502 || f.status == 503 || f.status == 504)
}

func (f *failure) noServer() string {
	return fmt.Sprintf("Nothing answered the request for %s: no endpoint of route %s could be reached%s.", f.about(),
		f.place, at(f.from))
}

func (f *failure) gatewaySays() string {
	return fmt.Sprintf("%s on route %s answered the request for %s with %s.", f.by(), f.place, f.about(), f.code())
}

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
		return fmt.Sprintf("gRPC code %d%s", f.status, grpcName(f.status))
	default:
		return fmt.Sprintf("HTTP status %d", f.status)
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
	return fmt.Sprintf("%q", s)
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

func nextServer(a *ask) string {
	if !a.next.IsValid() || strings.Contains(a.file, "://") {
		return ""
	}
	return " at " + a.next.String()
}

func clock(at int64) string { return time.Unix(0, at).UTC().Format(time.TimeOnly) + " UTC" }

func seconds(d int64) string { return time.Duration(d).Round(time.Second).String() }

// isImage tells whether a file is by its name what an action writes to a disk.
func isImage(file string) bool {
	switch path.Ext(strings.ToLower(file)) {
	case ".gz", ".raw", ".img", ".qcow2", ".xz", ".zst", ".bz2", ".iso", ".vmdk":
		return true
	}
	return false
}
