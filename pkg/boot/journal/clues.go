package journal

import (
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/boot"
)

// clues are what rules look at: the facts of the newest boot, and what is known beside them.
type clues struct {
	*bootRecord
	j *Journal
	m *machine

	now     int64
	quiet   int64 // since the last sign of it, or since it got on
	a       *ask  // the DHCP exchange that goes on, or that gave the address
	other   *ask  // that of the other version
	hw      Hardware
	wf      *Workflow // that names any of its MACs
	watched bool      // hw is known, since Kubernetes is watched
	f       *failure
	st      *step    // that it is at; an empty one before the first
	open    *message // the oldest that goes on
}

func (j *Journal) cluesOf(m *machine, b *bootRecord, now int64) *clues {
	c := clues{
		bootRecord: b, j: j, m: m, now: now, quiet: now - max(b.moved, b.lastHeard), f: &b.facts.failed,
		st: b.last(b.furthest), a: &b.facts.asks[0], other: &b.facts.asks[1], open: b.oldestOpen(),
	}
	if c.st == nil {
		c.st = &step{}
	}
	if c.other.last > c.a.last && c.other.acked >= c.a.acked || c.other.acked > c.a.acked {
		c.a, c.other = c.other, c.a
	}
	if j.options.Hardware != nil {
		c.hw, c.watched = j.options.Hardware(b.mac)
		_, c.wf = j.workflowOf(m)
	}
	return &c
}

// tests are the facts that rules name.
var tests = map[string]test{
	"never": never,

	// What Kubernetes knows.
	"watched":            func(c *clues) bool { return c.watched },
	"watched-workflows":  func(c *clues) bool { return c.hw.Workflows },
	"known":              func(c *clues) bool { return c.hw.Known },
	"netboot":            func(c *clues) bool { return c.hw.Known && c.hw.Netboot },
	"twice":              func(c *clues) bool { return c.hw.Also != "" },
	"expected":           func(c *clues) bool { return c.expected && len(c.messages) == 0 },
	"works":              func(c *clues) bool { return c.wf.runs() },
	"workflow-waits":     func(c *clues) bool { return c.wf.waits() },
	"workflow-failed":    func(c *clues) bool { return c.wf.failed() },
	"no-workflow":        func(c *clues) bool { return c.wf == nil && c.hw.Workflows && c.hw.Known },
	"other-architecture": (*clues).otherArchitecture,
	"bootsdisk":          (*clues).bootsDisk,

	// How it asks for an address.
	"firmware":        func(c *clues) bool { return c.facts.firmware },
	"kernel":          func(c *clues) bool { return c.facts.kernel },
	"network":         func(c *clues) bool { return c.facts.firmware && c.facts.stage != OSDHCP },
	"dhcp":            func(c *clues) bool { return c.furthest.isDHCP() },
	"unanswered":      (*clues).unanswered,
	"ignored":         (*clues).ignored,
	"offered":         (*clues).offered,
	"met":             func(c *clues) bool { return c.m.rank >= offered },
	"none":            (*clues).hasNone,
	"in-vain":         (*clues).inVain,
	"often":           (*clues).often,
	"others-answered": (*clues).othersAnswered,
	"others-served":   func(c *clues) bool { return c.othersAnswered() && !c.offered() && !c.watched },
	"others-wait":     func(c *clues) bool { return c.j.scene.waiting > 1 && !c.servesFiles() },
	"server-well":     (*clues).serverWell,
	"server-unheard":  func(c *clues) bool { return !c.serverWell() },
	"unknown":         func(c *clues) bool { return !c.watched && c.m.rank < offered && !c.serverWell() },
	"relayed":         func(c *clues) bool { return c.a.relay.IsValid() },
	"declined":        func(c *clues) bool { return c.facts.declines >= 2 },
	"rival":           func(c *clues) bool { return c.m.rival != "" },
	"strays": func(c *clues) bool {
		none := c.facts.asks[0].discovers == 0 && c.facts.asks[1].discovers == 0
		return c.furthest.isDHCP() && c.facts.strays >= 2 && none
	},
	"took-other": func(c *clues) bool {
		return c.furthest.isDHCP() && c.a.chosen.IsValid() && !c.a.proxy && c.a.acked == 0
	},
	"served-here": func(c *clues) bool { return len(c.a.servers) > 0 },
	"takes-none": func(c *clues) bool {
		return c.noAddress() && c.a.offers >= 3 && c.a.discovers >= 3 && c.a.requests == 0
	},
	"refused-address": func(c *clues) bool { return c.noAddress() && c.a.naks >= 2 },
	"not-allowed":     func(c *clues) bool { return notAllowed(c.a.file) && c.a.acked > 0 },
	"asks-on":         func(c *clues) bool { return c.a.requests > 2 }, // once is what an installed machine does
	"no-file": func(c *clues) bool {
		return c.acked() && c.a.file == "" && !c.a.proxy && c.now-max(c.a.acked, c.lastHeard) >= waitRetry
	},
	"namesakes":    func(c *clues) bool { return c.m.namesakes.changes >= 2 },
	"shared":       func(c *clues) bool { return c.m.nat.IsValid() },
	"nameless":     func(c *clues) bool { return len(c.m.macs) == 0 },
	"elsewhere":    func(c *clues) bool { return c.elsewhere() != "" },
	"loads-itself": func(c *clues) bool { return c.acked() && c.facts.stage == IPXEDHCP && c.facts.loads >= 3 },

	// What it loads, and how that fares.
	"loads": func(c *clues) bool {
		return c.furthest.order() >= Loader.order() && c.furthest.order() < OSDHCP.order()
	},
	"loads-long":  (*clues).loadsLong,
	"runs":        func(c *clues) bool { return c.facts.ipxeRuns },
	"returned":    func(c *clues) bool { return c.facts.returned.at != 0 },
	"failed":      (*clues).failed,
	"answered":    (*clues).answered,
	"torn":        (*clues).torn,
	"tftp":        func(c *clues) bool { return c.f.tftp() },
	"by-machine":  func(c *clues) bool { return c.f.byMachine },
	"by-us":       func(c *clues) bool { return c.f.byUs },
	"stalled":     func(c *clues) bool { return c.f.stalled() },
	"tls":         func(c *clues) bool { return c.f.tls() },
	"gateway":     func(c *clues) bool { return c.f.gateway() },
	"away":        func(c *clues) bool { return c.f.outcome == boot.NoServer || c.f.status == grpcUnavailable },
	"goes-on":     func(c *clues) bool { return c.open != nil || c.facts.agent.streams > 0 },
	"loader-says": func(c *clues) bool { return c.facts.says.is(loaderSays) },
	"kernel-says": func(c *clues) bool { return c.facts.says.is(kernelSays) },
	"exec-format": func(c *clues) bool { return containsFold(c.facts.says.text, "exec format") },
	"menu":        func(c *clues) bool { return !c.wf.waits() },
	"returned-for-good": func(c *clues) bool {
		// UEFI tries its next boot entry at once; a machine that is reset takes longer.
		atOnce := c.isUEFI() && c.facts.returned.took < 3*time.Second
		return atOnce || c.facts.returned.count >= 2 || c.now-c.facts.returned.at >= waitStart
	},
	"distrusted": func(c *clues) bool { return c.distrusted() != "" },
	"unstarted": func(c *clues) bool {
		return c.loadedAndIdle(Loader) && c.isUEFI() && (containsFold(c.st.text, "ipxe") || containsFold(c.st.text, "snp"))
	},
	"kernel-unstarted": func(c *clues) bool {
		return c.loadedAndIdle(Kernel) && containsFold(c.textOf(Script), "grub.cfg")
	},
	"said-for-good": func(c *clues) bool { return c.now-c.facts.says.at >= waitRetry },
	"sent-nothing":  (*clues).sentNothing,
	"redirected": func(c *clues) bool {
		r := c.facts.redirect
		return r.at != 0 && c.now-max(r.at, c.lastHeard) >= waitLoader
	},
	"waits-long": func(c *clues) bool {
		w := c.waiting()
		return w != nil && c.now-w.begin >= waitRetry
	},
	"slow": func(c *clues) bool {
		o := c.transfer()
		return o != nil && c.now-o.begin >= int64(slowAfter)
	},

	// How its system and its agent fare.
	"system-idle": func(c *clues) bool {
		system := c.furthest == OSDHCP || c.furthest == Syslog || c.furthest == Metadata
		return system && c.quiet >= waitSystem && c.facts.kernel
	},
	"stranger":      func(c *clues) bool { return c.j.scene.strangerAt >= max(c.moved, c.lastHeard) },
	"agent-idle":    (*clues).agentIdle,
	"agent-calls":   func(c *clues) bool { return c.facts.agent.calls },
	"short-streams": func(c *clues) bool { return c.facts.agent.short >= shortStreams },
	"loops":         func(c *clues) bool { return c.m.loops() >= maxLoops },
}

// testsOf are those of an argument: of a step, a reason, an outcome, or of answers by HTTP and TFTP.
var testsOf = map[string]func(*clues, string) bool{
	"before":  func(c *clues, step string) bool { return c.furthest.order() < Step(step).order() },
	"upto":    func(c *clues, step string) bool { return c.furthest.order() <= Step(step).order() },
	"step":    func(c *clues, step string) bool { return c.f.step == Step(step) },
	"drop":    func(c *clues, reason string) bool { return c.a.drop == reason },
	"lost":    func(c *clues, reason string) bool { return c.a.lost == reason },
	"stray":   func(c *clues, reason string) bool { return c.facts.stray == reason },
	"reason":  func(c *clues, reason string) bool { return c.f.message == reason },
	"outcome": func(c *clues, outcome string) bool { return outcome == outcomes[c.f.outcome] },
	"wrong":   func(c *clues, file string) bool { return c.wrong(file) != "" },
	"code": func(c *clues, codes string) bool {
		http, tftp, _ := strings.Cut(codes, "/")
		if c.f.tftp() {
			return strconv.Itoa(int(c.f.status)-1) == tftp
		}
		return strconv.Itoa(int(c.f.status)) == http
	},
	"idle": func(c *clues, step string) bool {
		wait := waitKernel
		switch {
		case step == string(Loader):
			wait = waitStart
		case step == string(Script) && !c.wf.waits():
			wait = waitMenu
		}
		return c.furthest == Step(step) && c.st.result == OK && c.open == nil && c.quiet >= wait
	},
	"not-asked": func(c *clues, step string) bool {
		wait := waitLoader
		if Step(step) == IPXEDHCP {
			wait = waitScript
		}
		named := c.a.file != "" && !notAllowed(c.a.file)
		return named && c.acked() && c.facts.stage == Step(step) && c.facts.loads < 3 &&
			c.now-max(c.a.acked, c.lastHeard) >= wait
	},
}

var outcomes = map[boot.Outcome]string{boot.Refused: "refused", boot.NoServer: "no-server"}

// silentSince is when the silence began from which a cause is inferred.
func (c *clues) silentSince() int64 {
	if c.unanswered() {
		return c.a.opened
	}
	return max(c.moved, c.lastHeard)
}

// noAddress tells whether a machine is asking and has no address.
func (c *clues) noAddress() bool { return c.furthest.isDHCP() && c.a.acked == 0 && c.other.acked == 0 }

// unanswered tells whether a machine asks for an address again and again.
func (c *clues) unanswered() bool {
	return c.noAddress() && c.a.asked >= 2 && c.now-c.a.opened >= waitOffer &&
		(c.facts.firmware || c.facts.kernel)
}

// hasNone tells whether a DHCPv6 server said that it has no address for the machine (RFC 9915 section 18.3.9).
func (c *clues) hasNone() bool {
	return c.noAddress() && c.a.none && c.now-c.a.offered >= waitRetry
}

// inVain tells whether a machine that was never answered asks for long: one that another server answers would ask for
// what that offers.
func (c *clues) inVain() bool {
	const long = 30 * time.Second
	return c.noAddress() && c.a.asked >= 4 && c.a.requests == 0 && c.m.rank < offered &&
		c.now-c.a.opened >= int64(long) && c.a.drop == "" && c.a.lost == ""
}

// ignored tells whether nobody is known to keep the answer back.
func (c *clues) ignored() bool {
	return c.unanswered() && c.a.drop == "" && c.a.lost == "" && !(c.offered() && c.watched)
}

// often tells whether a machine has asked so often that what was lost on the way does not explain it.
func (c *clues) often() bool {
	return c.a.asked >= 3 || c.j.scene.waiting >= manyMachines || c.now-c.a.opened >= aMinute
}

// othersAnswered tells whether the server answered another machine since this one asks.
func (c *clues) othersAnswered() bool {
	at, found := c.j.scene.other(c.m)
	return found && at >= c.a.opened
}

// offered tells whether the machine asks for what a server offered it.
func (c *clues) offered() bool { return c.a.requests > 0 && len(c.a.servers) > 0 }

// serverWell tells whether the server gave a sign of itself not long before the machine asked.
func (c *clues) serverWell() bool {
	at, found := c.j.scene.other(c.m)
	return found && c.a.opened-at <= 15*aMinute || c.servesFiles()
}

// servesFiles tells whether the host that answers DHCP answered other requests since the machine asks.
func (c *clues) servesFiles() bool { return c.j.scene.alive >= c.a.opened }

func (c *clues) acked() bool { return c.furthest.isDHCP() && c.a.acked > 0 && c.facts.stage != OSDHCP }

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

// openFor is how long the oldest transfer by TFTP goes on.
func (c *clues) openFor() int64 {
	if c.open == nil || c.open.kind != "TFTP" {
		return 0
	}
	return c.now - c.open.begin
}

// loadsLong tells whether the loader's transfer goes on for long, and stands still, as far as it is told.
func (c *clues) loadsLong() bool {
	return c.furthest == Loader && c.openFor() >= waitStart && c.now-c.open.end >= waitLoader
}

// transfer is the oldest transfer that goes on and sends; nil if there is none.
func (c *clues) transfer() *message {
	if c.furthest == Loader || c.open == nil || c.open.course == waiting ||
		c.open.kind == "TCP" || c.open.kind == "gRPC" {
		return nil
	}
	return c.open
}

// waiting is the oldest request that waits for its endpoint; nil if there is none.
func (c *clues) waiting() *message {
	return c.first(func(a *message) bool { return a.course == waiting && int(a.step) >= c.attempt })
}

// failed tells whether the last thing that went wrong counts: the machine did not try again for a moment.
func (c *clues) failed() bool {
	wait := waitRetry
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
		wait = max(wait, waitStart) // It was reset, or asks for the rest.
	}
	return c.now-c.f.at >= wait || c.cause != nil && c.f.count > 1
}

// isImage tells whether a file is by its name what an action writes to a disk.
func isImage(file string) bool {
	ext := path.Ext(strings.ToLower(file))
	return anyOf(is, ext, ".gz", ".raw", ".img", ".qcow2", ".xz", ".zst", ".bz2", ".iso", ".vmdk")
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
	if a.since == 0 || a.worked || a.reported || c.now-a.since < waitSystem {
		return false
	}
	if c.hw.Workflows && c.hw.Known {
		return !c.wf.runs() && !c.wf.ended()
	}
	return (a.calls || a.polls.vain(c.now)) && c.now-c.lastHeard < waitSystem
}

// bootsDisk tells whether a machine that may not boot from the network has no reason to: it is installed.
func (c *clues) bootsDisk() bool {
	return c.m.installed() || c.watched && c.hw.Known && !c.hw.Netboot && (c.wf == nil || c.wf.ended())
}

func (c *clues) otherArchitecture() bool {
	_, own := families(iana.Arch(c.m.arch))
	_, said := fileFamilies(c.hw.Arch, false)
	return c.m.hasArch && own != "" && said != "" && own != said
}

// wrong says why a file is not made for the machine; empty if its name does not say so. The file is the one that is
// named by DHCP, or that was loaded: the loader, the kernel, or either of them.
func (c *clues) wrong(which string) string {
	file := c.st.text
	switch which {
	case "named":
		return c.m.mismatch(c.a.file, false)
	case "returned":
		file = c.facts.returned.file
	case "kernel":
		file = c.textOf(Kernel)
	case "file":
		file = c.wrongFile()
	}
	return c.m.mismatch(file, true)
}

func (c *clues) isUEFI() bool {
	firmware, _ := families(iana.Arch(c.m.arch))
	return c.m.hasArch && firmware == efi
}

// asksWithin is how long iPXE that was started, and GRUB that took a kernel, take at most to ask for the next file.
const asksWithin = 8 * time.Second

// loadedAndIdle tells whether the machine got the file of a step, and asks for nothing since.
func (c *clues) loadedAndIdle(s Step) bool {
	return c.furthest == s && c.st.result == OK && c.open == nil && c.quiet >= int64(asksWithin)
}

// distrusted is the loader that shim got and does not trust: it asks for its key manager (mmx64.efi, mmaa64.efi) next.
// It is empty where shim did not, or asked for that first, as it does where a key waits to be enrolled.
func (c *clues) distrusted() (refused string) {
	for i := range c.messages {
		a := &c.messages[i]
		name := strings.ToLower(path.Base(strings.ReplaceAll(a.text, `\`, "/")))
		switch {
		case c.steps[a.step].step != Loader || path.Ext(name) != ".efi":
		case strings.HasPrefix(name, "mm"):
			return refused
		case a.ok && !strings.HasPrefix(name, "shim"):
			refused = a.text
		}
	}
	return ""
}

// textOf is the file of a step; empty if that was not reached.
func (c *clues) textOf(s Step) string {
	if st := c.last(s); st != nil {
		return st.text
	}
	return ""
}

// wrongFile is the file that was loaded and is not made for the machine; empty if there is none.
func (c *clues) wrongFile() string {
	for _, s := range []Step{Kernel, Loader} {
		if file := c.textOf(s); c.m.mismatch(file, true) != "" {
			return file
		}
	}
	return ""
}

// loops counts the boots from the network before this one, without a pause, that loaded a kernel and led to no other
// end.
func (m *machine) loops() (n int) {
	for i := len(m.boots) - 1; i > 0; i-- {
		b, old := m.boots[i], m.boots[i-1]
		network := b.facts.firmware && !b.facts.fromDisk && !old.facts.fromDisk && old.furthest.order() >= Kernel.order()
		if !network || b.begin-old.lastHeard > 15*aMinute {
			break
		}
		n++
	}
	return n
}

const (
	maxLoops  = 2           // boots before this one make a loop
	slowAfter = time.Minute // of a transfer its rate is told
)
