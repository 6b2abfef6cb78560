package journal

import (
	_ "embed" // the words of the table
	"fmt"
	"strings"
	"sync"

	"github.com/tinkerbell/stack/pkg/boot"
)

// The causes' names.
const (
	NeverHeard         = "never-heard"
	NoHardware         = "no-hardware"
	NetbootNotAllowed  = "netboot-not-allowed"
	TwiceInHardware    = "twice-in-hardware"
	OtherArchitecture  = "other-architecture"
	NoServer           = "no-server"
	ServerSilent       = "server-silent"
	RelayDropped       = "relay-dropped"
	SwitchDropped      = "dropped-by-a-switch"
	ReplyDropped       = "reply-dropped"
	TokenNotReturned   = "token-not-returned"
	WrongVLAN          = "wrong-vlan"
	OtherDHCPServer    = "other-dhcp-server"
	OfferNotTaken      = "offer-not-taken"
	AddressRefused     = "address-refused"
	AddressConflict    = "address-conflict"
	NoBootFile         = "no-boot-file"
	OneMACTwoMachines  = "one-mac-two-machines"
	BehindNAT          = "behind-nat"
	WrongArchitecture  = "wrong-architecture"
	LoaderNotAsked     = "loader-not-asked"
	LoaderStalled      = "loader-stalled"
	LoaderDidNotStart  = "loader-did-not-start"
	LoaderLoop         = "loader-loop"
	LoaderError        = "loader-error"
	TLSRefused         = "tls-refused"
	WaitsForBackend    = "waits-for-backend"
	ScriptNotAsked     = "script-not-asked"
	ScriptNotFollowed  = "script-not-followed"
	NotFound           = "not-found"
	Forbidden          = "forbidden"
	RefusedHere        = "refused-here"
	ServerError        = "server-error"
	FileTorn           = "file-torn"
	BackendDown        = "backend-down"
	Slow               = "slow"
	KernelSilent       = "kernel-silent"
	KernelPanic        = "kernel-panic"
	SystemSilent       = "system-silent"
	MetadataServerDown = "no-hegel"
	AgentRefused       = "agent-refused"
	NoWorkflow         = "no-workflow"
	WorkflowFailed     = "workflow-failed"
	BootLoop           = "boot-loop"
	CannotTell         = "cannot-tell"
)

// support is how well what was heard supports a cause. Of several causes the best supported one is shown.
type support uint8

const (
	silence support = 1 + iota // nothing was heard
	missing                    // a question without an answer
	told                       // the machine, a server or Kubernetes says so
	proof                      // what was heard leaves nothing else
)

// row is a row of the table of causes. A cause may have several.
type row struct {
	name    string
	remedy  string  // what to do, where that is not what causes.tsv says
	support support // how well it is supported where it fits
	needs   witness // those that tell nothing of it unless they are well: what was not heard may have been missed
	past    Step    // the cause stays until this step goes well; "": until the one that the machine is at does
	asked   bool    // that the step is begun is enough
	mild    bool    // the machine is not stuck by it
	when    func(*clues) bool
	unless  []objection
	certain func(*clues) bool // nil: what was heard does not prove it
	text    func(*clues) string
}

// objection speaks against a cause.
type objection struct {
	is     func(*clues) bool
	says   string
	leaves bool // it leaves the cause possible: it cannot be told
}

func always(*clues) bool { return true }

// What speaks against causes that infer something from silence.
var (
	goesOn   = objection{is: (*clues).goesOn, says: "a transfer or a connection of it goes on"}
	works    = objection{is: func(c *clues) bool { return c.wf.runs() }, says: "its Workflow goes on"}
	stranger = objection{
		is:     (*clues).stranger,
		says:   "an address without a lease was heard since, which may be this machine's",
		leaves: true,
	}
	shared = objection{is: func(c *clues) bool { return c.m.nat.IsValid() },
		says: "its requests come from an address that other machines have, too"}
	menu = objection{
		is:   func(c *clues) bool { return !c.wf.waits() },
		says: "a script may as well show a menu, or boot the disk", leaves: true,
	}
	ipxeRuns = objection{is: func(c *clues) bool { return c.facts.runs },
		says: "iPXE runs: it asked for autoexec.ipxe, as only iPXE does"}
	nameless = objection{
		is: func(c *clues) bool { return len(c.m.macs) == 0 }, says: "its MAC is not known, nor what it asks by DHCP",
		leaves: true,
	}
	disk = objection{is: (*clues).bootsDisk, says: "it is installed, and asks the network before it boots its disk"}
)

// table is the table of causes, in the order of the steps at which they are found. Of equally supported causes the
// first is shown.
var table = []row{
	{
		name: NeverHeard, support: told, needs: relays, past: DHCP,
		when: func(c *clues) bool { return c.expected && len(c.answers) == 0 },
		text: func(c *clues) string {
			return fmt.Sprintf("Nothing was heard of %s, and a Workflow waits for it (Hardware object %s).", c.mac(),
				c.hw.Name)
		},
	},
	{
		name: TwiceInHardware, support: proof, certain: always, past: OSDHCP,
		when: func(c *clues) bool {
			loads := c.at.order() >= Loader.order() && c.at.order() < OSDHCP.order()
			return c.hw.Also != "" && (c.unanswered() || c.agentIdle() || loads)
		},
		text: func(c *clues) string {
			return fmt.Sprintf("%s is in two Hardware objects: %s and %s. Which of them is meant nobody knows.",
				c.mac(), c.hw.Name, c.hw.Also)
		},
	},
	{
		name: OtherArchitecture, support: proof, certain: always, past: OSDHCP,
		when: func(c *clues) bool { return c.facts.firmware && c.at.order() < OSDHCP.order() && c.otherArchitecture() },
		text: func(c *clues) string {
			return fmt.Sprintf("Hardware object %s says %s, and the firmware of %s is %s.", c.hw.Name, c.hw.Arch, c.mac(),
				c.m.archName())
		},
	},
	{
		name: NoHardware, support: proof, certain: always,
		when: func(c *clues) bool { return c.ignored() && c.asks && !c.hw.Known },
		text: func(c *clues) string {
			text := c.asked("without an answer: no Hardware object has this MAC.")
			if c.hw.Closest != "" {
				text += " The closest is " + c.hw.Closest + "."
			}
			return text
		},
	},
	{
		name: NetbootNotAllowed, support: proof, certain: always,
		when:   func(c *clues) bool { return c.ignored() && c.asks && c.hw.Known && !c.hw.Netboot },
		unless: []objection{disk},
		text: func(c *clues) string {
			return c.asked("without an answer: allowPXE is false in Hardware object " + c.hw.Name + ".")
		},
	},
	{
		name: NetbootNotAllowed, support: proof, certain: always,
		when: func(c *clues) bool { // once is what an installed machine does
			again := c.a.requests > 2 || c.hw.Known && c.hw.Netboot || c.wf.waits()
			return again && c.at.order() <= Loader.order() && notAllowed(c.a.file) && c.a.acked > 0
		},
		unless: []objection{disk},
		text: func(c *clues) string {
			return fmt.Sprintf("The DHCP server answered %s that it may not boot from the network.", c.mac())
		},
	},
	{
		name: NoServer, support: proof, certain: always,
		when: func(c *clues) bool { return c.unanswered() && c.a.drop == "no-server" },
		text: func(c *clues) string { return c.asked("and the relay has no DHCP server to send it to.") },
	},
	{
		name: SwitchDropped, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.unanswered() && (c.a.drop == "untrusted-option82" || c.a.drop == "agent-refused") && !c.a.relay.IsValid()
		},
		text: func(c *clues) string {
			return c.asked("and the relay dropped it: a switch put option 82 in and left giaddr empty (" + c.a.drop + ").")
		},
	},
	{
		name: RelayDropped, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.unanswered() && c.a.drop != "" && c.a.drop != "no-server" && c.a.drop != "other-host"
		},
		text: func(c *clues) string { return c.asked("and the relay dropped it: " + c.a.drop + ".") },
	},
	{
		name: TokenNotReturned, support: proof, certain: always,
		when: func(c *clues) bool { return c.unanswered() && c.a.lost == "token-missing" },
		text: func(c *clues) string {
			return c.asked("and the relay dropped the server's replies: they do not repeat its token (option 82).")
		},
	},
	{
		name: ReplyDropped, support: proof, certain: always,
		when: func(c *clues) bool { return c.unanswered() && c.a.lost != "" },
		text: func(c *clues) string { return c.asked("and the relay dropped the server's replies: " + c.a.lost + ".") },
	},
	{
		name: AddressConflict, support: proof, certain: always,
		when: func(c *clues) bool { return c.facts.declines >= 2 && c.at.isDHCP() },
		text: func(c *clues) string {
			return fmt.Sprintf("%s declined the address %s %d times: another station has it.", c.mac(), c.facts.declined,
				c.facts.declines)
		},
	},
	{
		name: AddressConflict, support: told, past: Agent,
		remedy: "Give one of the two another address: see which Hardware objects, or reservations, name it.",
		when:   func(c *clues) bool { return c.m.rival != "" },
		text: func(c *clues) string {
			return fmt.Sprintf("%s was given the address of %s, which worked under it at that moment.", c.mac(), c.m.rival)
		},
	},
	{
		name: NoHardware, support: missing + 1, needs: relays,
		remedy: "Create a Hardware object with this MAC, or set allowPXE to true in it; if there is one, look whether " +
			"Smee runs.",
		when: func(c *clues) bool { return c.ignored() && !c.asks && c.othersAnswered() && !c.offered() },
		text: func(c *clues) string {
			return c.asked("without an answer, while the server answers others: no Hardware object has this MAC, or it may " +
				"not boot from the network.")
		},
	},
	{
		name: NoHardware, support: missing, needs: relays,
		remedy: "Create a Hardware object with this MAC, or set allowPXE to true in it; if there is one, look whether " +
			"Smee runs.",
		when: func(c *clues) bool { return c.ignored() && !c.asks && c.m.rank < offered },
		unless: []objection{
			{is: func(c *clues) bool { return !c.serverWell() }, says: "the server has answered nobody for long"},
			{is: (*clues).othersWait, says: "others get no answer, either"},
		},
		text: func(c *clues) string {
			if at, found := c.j.scene.other(c.m); found {
				return c.asked("without an answer; the server answered another machine at " + clock(at) + ".")
			}
			if c.servesFiles() {
				return c.asked("without an answer, while the server serves files.")
			}
			return c.asked("without an answer.")
		},
	},
	{
		name: ServerSilent, support: missing, needs: relays,
		when: func(c *clues) bool { return c.ignored() && c.often() && (!c.asks || c.hw.Known && c.hw.Netboot) },
		unless: []objection{{
			is:   func(c *clues) bool { return c.othersAnswered() && !c.offered() && !c.asks },
			says: "the server answers others",
		}, {
			is:     func(c *clues) bool { return !c.asks && c.m.rank < offered && !c.serverWell() },
			says:   "nothing tells a server that is away from one that does not know this machine",
			leaves: true,
		}},
		text: func(c *clues) string { return c.serverSilent() },
	},
	{
		name: WrongVLAN, support: told,
		when: func(c *clues) bool {
			return c.at.isDHCP() && c.facts.strays >= 2 && c.facts.asks[0].discovers == 0 && c.facts.asks[1].discovers == 0
		},
		text: func(c *clues) string {
			if c.facts.stray == "other-host" {
				return fmt.Sprintf("%d frames of %s were heard, all of another VLAN or for another station; no DISCOVER of it "+
					"came to this relay.", c.facts.strays, c.mac())
			}
			return fmt.Sprintf("%d replies to %s came by, but no DISCOVER of it came to this relay: another relay took it.",
				c.facts.strays, c.mac())
		},
	},
	{
		name: OtherDHCPServer, support: proof,
		certain: func(c *clues) bool { return len(c.a.servers) > 0 },
		when: func(c *clues) bool {
			boots := c.facts.firmware && c.facts.stage != OSDHCP || len(c.a.servers) > 0
			return boots && c.at.isDHCP() && c.a.chosen.IsValid() && !c.a.proxy && c.a.acked == 0
		},
		text: func(c *clues) string {
			if len(c.a.servers) == 0 {
				return fmt.Sprintf("%s took an offer of %s, a DHCP server that does not answer through this relay.", c.mac(),
					c.a.chosen)
			}
			return fmt.Sprintf("%s was offered an address by %s and took that of %s instead: a second DHCP server.", c.mac(),
				c.a.servers[0], c.a.chosen)
		},
	},
	{
		name: OfferNotTaken, support: missing, needs: relays,
		when: func(c *clues) bool {
			return c.noAddress() && c.a.offers >= 3 && c.a.discovers >= 3 && c.a.requests == 0
		},
		text: func(c *clues) string {
			return fmt.Sprintf("%d offers of %s went to %s, and it took none.", c.a.offers, c.a.server, c.mac())
		},
	},
	{
		name: AddressRefused, support: proof, certain: always,
		when: func(c *clues) bool { return c.noAddress() && c.a.naks >= 2 },
		text: func(c *clues) string {
			return fmt.Sprintf("%s refused the address that %s asked for, %d times.", c.a.server, c.mac(), c.a.naks)
		},
	},
	{
		name: NoBootFile, support: told, past: Loader, asked: true,
		when: func(c *clues) bool {
			return c.acked() && c.a.file == "" && !c.a.proxy && c.now-max(c.a.acked, c.end) >= int64(c.waits().Retry)
		},
		unless: []objection{disk, shared},
		text: func(c *clues) string {
			return fmt.Sprintf("The answer of %s to %s names no boot file%s.", c.a.server, c.mac(), c.m.archNote())
		},
	},
	{
		name: OneMACTwoMachines, support: proof, past: Agent,
		when: func(c *clues) bool { return c.m.twins.changes >= 2 },
		text: func(c *clues) string {
			return fmt.Sprintf("Two machines ask with the MAC %s: %s and %s take turns.", c.mac(), c.m.twins.last,
				c.m.twins.other)
		},
	},
	{
		name: BehindNAT, support: told, mild: true,
		when: func(c *clues) bool { return c.m.nat.IsValid() },
		text: func(c *clues) string {
			return fmt.Sprintf("What names %s comes from %s, which is not its address: machines behind that address "+
				"cannot be told apart.", c.mac(), c.m.nat)
		},
	},
	{
		name: WrongArchitecture, support: proof - 1, past: IPXEDHCP, asked: true,
		when: func(c *clues) bool {
			r := &c.facts.returned
			return r.at != 0 && c.at.order() <= Loader.order() && c.m.mismatch(r.file, true) != ""
		},
		text: func(c *clues) string {
			return fmt.Sprintf("The firmware got %s whole and asks for an address again: %s.", quote(c.facts.returned.file),
				c.m.mismatch(c.facts.returned.file, true))
		},
	},
	{
		name: WrongArchitecture, support: missing, needs: relays | proxies, past: Loader, asked: true,
		when: func(c *clues) bool { return c.notAsked(DHCP, c.waits().Loader) && c.m.mismatch(c.a.file, false) != "" },
		text: func(c *clues) string {
			return fmt.Sprintf("%s was told to load %s and asks for nothing: %s.", c.mac(), quote(c.a.file),
				c.m.mismatch(c.a.file, false))
		},
	},
	{
		name: WrongArchitecture, support: missing, needs: relays | proxies, past: IPXEDHCP, asked: true,
		when: func(c *clues) bool { return c.idleAt(Loader, c.waits().Start) && c.m.mismatch(c.st.text, true) != "" },
		text: func(c *clues) string {
			return fmt.Sprintf("%s was served whole, and nothing was heard since: %s.", quote(c.st.text),
				c.m.mismatch(c.st.text, true))
		},
	},
	{
		name: WrongArchitecture, support: missing, needs: relays | proxies, past: OSDHCP, asked: true,
		when: func(c *clues) bool {
			k := c.last(Kernel)
			return k != nil && c.m.mismatch(k.text, true) != "" && (c.idleAt(Kernel, c.waits().Kernel) ||
				c.idleAt(Initramfs, c.waits().Kernel))
		},
		text: func(c *clues) string {
			k := c.last(Kernel).text
			return fmt.Sprintf("%s was served whole, and nothing was heard since: %s.", quote(k), c.m.mismatch(k, true))
		},
	},
	{
		name: WrongArchitecture, support: proof, certain: always, past: OSDHCP, asked: true,
		when: func(c *clues) bool {
			return c.facts.says.is(loaderSays) && c.wrongFile() != "" && containsFold(c.facts.says.text, "exec format")
		},
		text: func(c *clues) string {
			return fmt.Sprintf("The machine says %s, of %s: %s.", quote(c.facts.says.text), quote(c.wrongFile()),
				c.m.mismatch(c.wrongFile(), true))
		},
	},
	{
		name: LoaderNotAsked, support: proof, certain: always, past: Loader, asked: true,
		when: func(c *clues) bool {
			return c.notAsked(DHCP, c.waits().Loader) && c.elsewhere() != ""
		},
		text: func(c *clues) string {
			return fmt.Sprintf("%s was told to load %s from %s, which is not this service's address (%s).", c.mac(),
				quote(c.a.file), c.elsewhere(), c.self())
		},
	},
	{
		name: LoaderNotAsked, support: silence, needs: relays | proxies, past: Loader, asked: true,
		remedy: "See whether the boot file's server is this service's address and can be reached from the machine; with " +
			"Secure Boot on, firmware may refuse the file without asking for it.",
		when:   func(c *clues) bool { return c.notAsked(DHCP, c.waits().Loader) },
		unless: []objection{shared, goesOn},
		text: func(c *clues) string {
			return fmt.Sprintf("%s has the address %s and did not ask for %s%s.", c.mac(), c.a.address, quote(c.a.file),
				nextServer(c.a))
		},
	},
	{
		name: ScriptNotAsked, support: proof, certain: always, past: Script, asked: true,
		when: func(c *clues) bool { return c.notAsked(IPXEDHCP, c.waits().Script) && c.elsewhere() != "" },
		text: func(c *clues) string {
			return fmt.Sprintf("iPXE on %s was told to load %s from %s, which is not this service's address (%s).", c.mac(),
				quote(c.a.file), c.elsewhere(), c.self())
		},
	},
	{
		name: ScriptNotAsked, support: silence, needs: relays | proxies, past: Script, asked: true,
		remedy: "See whether the script's URL is this service's address and can be reached from the machine.",
		when:   func(c *clues) bool { return c.notAsked(IPXEDHCP, c.waits().Script) },
		unless: []objection{shared, goesOn},
		text: func(c *clues) string {
			return fmt.Sprintf("iPXE on %s has the address %s and did not ask for %s%s.", c.mac(), c.a.address,
				quote(c.a.file), nextServer(c.a))
		},
	},
	{
		name: ScriptNotAsked, support: silence, needs: relays | proxies, past: IPXEDHCP, asked: true,
		remedy: "Look at the machine's screen: whether iPXE has a driver for its NIC.",
		when:   func(c *clues) bool { return c.facts.runs && c.idleAt(Loader, c.waits().Start) },
		unless: []objection{shared},
		text: func(c *clues) string {
			return fmt.Sprintf("iPXE runs on %s (it asked for autoexec.ipxe) and asked for no address since.", c.mac())
		},
	},
	{
		name: LoaderStalled, support: told, past: Loader,
		when: func(c *clues) bool { return c.failed() && c.f.tftp() && !c.f.byMachine && c.f.stalled() },
		text: func(c *clues) string {
			return fmt.Sprintf("The transfer of %s from %s stalled after %s; %d blocks of %d bytes were sent again.",
				c.f.about(), peer(c.f.from), amount(c.f), c.f.resent, max(c.f.block, 512))
		},
	},
	{
		name: LoaderStalled, support: missing, past: Loader,
		when: func(c *clues) bool { return c.at == Loader && c.openFor() >= int64(c.waits().Start) },
		text: func(c *clues) string {
			return fmt.Sprintf("The transfer of %s from %s goes on for %s.", quote(c.st.text), peer(c.st.from),
				seconds(c.openFor()))
		},
	},
	{
		name: LoaderDidNotStart, support: told, past: IPXEDHCP, asked: true,
		when: func(c *clues) bool {
			r := &c.facts.returned
			return r.at != 0 && c.at.order() <= Loader.order() && (r.count >= 2 || c.now-r.at >= int64(c.waits().Start))
		},
		unless: []objection{ipxeRuns},
		text: func(c *clues) string {
			return fmt.Sprintf("The firmware got %s whole from %s and asks for an address again%s: it did not start it.",
				quote(c.facts.returned.file), peer(c.facts.returned.from), c.m.archNote())
		},
	},
	{
		name: LoaderDidNotStart, support: silence, needs: relays | proxies, past: IPXEDHCP, asked: true,
		when:   func(c *clues) bool { return c.idleAt(Loader, c.waits().Start) },
		unless: []objection{ipxeRuns, shared},
		text: func(c *clues) string {
			return fmt.Sprintf("%s was served whole by %s, and nothing was heard since%s.", quote(c.st.text), peer(c.st.from),
				c.m.archNote())
		},
	},
	{
		name: LoaderDidNotStart, support: told, past: IPXEDHCP,
		remedy: "Look at the machine's screen: whether it has room for the file, and is meant to have it.",
		when:   func(c *clues) bool { return c.failed() && c.f.tftp() && c.f.byMachine },
		text: func(c *clues) string {
			return fmt.Sprintf("The machine broke off the transfer of %s from %s after %s (%s).", c.f.about(), peer(c.f.from),
				amount(c.f), c.f.code())
		},
	},
	{
		name: LoaderLoop, support: proof, certain: always, past: Script, asked: true,
		when: func(c *clues) bool { return c.acked() && c.facts.stage == IPXEDHCP && c.facts.loads >= 3 },
		text: func(c *clues) string {
			return fmt.Sprintf("iPXE was loaded %d times and is told to load %s again.", c.facts.loads, quote(c.a.file))
		},
	},
	{
		name: LoaderError, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.facts.says.is(loaderSays) && c.now-c.facts.says.at >= int64(c.waits().Retry)
		},
		text: func(c *clues) string { return "iPXE says: " + strings.TrimSpace(c.facts.says.text) },
	},
	{
		name: TLSRefused, support: told, certain: always, past: Kernel,
		when: func(c *clues) bool { return c.failed() && c.f.tls() },
		text: func(c *clues) string {
			if c.f.message == reasonTLSOnPlain {
				return fmt.Sprintf("The machine speaks TLS on route %s, which is plain.", c.f.place)
			}
			return fmt.Sprintf("The TLS handshake of the machine with port %d of this service failed: %s.", c.f.route,
				c.f.message)
		},
	},
	{
		name: WaitsForBackend, support: told, certain: always,
		when: func(c *clues) bool { w := c.waiting(); return w != nil && c.now-w.begin >= int64(c.waits().Retry) },
		text: func(c *clues) string {
			w := c.waiting()
			return fmt.Sprintf("The machine asked for %s, and the request waits for an answer of %s since %s.", quote(w.text),
				peer(w.from), clock(w.begin))
		},
	},
	{
		name: ScriptNotFollowed, support: silence, needs: relays | proxies, past: Kernel, asked: true,
		when: func(c *clues) bool {
			return c.idleAt(Script, c.waits().Kernel) && c.wf.waits() || c.idleAt(Script, c.waits().Menu)
		},
		unless: []objection{shared, goesOn, works, menu},
		text: func(c *clues) string {
			return fmt.Sprintf("The script %s was served by %s, and the machine asked for no kernel since.", quote(c.st.text),
				peer(c.st.from))
		},
	},
	{
		name: NotFound, support: proof, certain: func(c *clues) bool { return c.f.step != Files },
		when: func(c *clues) bool { return c.answered() && (c.f.is(404, 1) || c.f.is(410, 1)) && !c.f.stalled() },
		text: func(c *clues) string {
			text := fmt.Sprintf("%s is not at %s (%s).", c.f.about(), c.f.by(), c.f.code())
			if names := c.j.scene.neighbours(c.f.where, c.f.file); names != "" {
				text += " Served from the same directory: " + names + "."
			}
			return text
		},
	},
	{
		name: Forbidden, support: proof, certain: always,
		when: func(c *clues) bool { return c.answered() && (c.f.is(403, 2) || c.f.is(401, 2) || c.f.is(407, 2)) },
		text: func(c *clues) string {
			return fmt.Sprintf("%s may not be read at %s (%s).", c.f.about(), c.f.by(), c.f.code())
		},
	},
	{
		name: RefusedHere, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.failed() && c.f.outcome == boot.Refused && c.f.step != Agent && !c.f.tls()
		},
		text: func(c *clues) string {
			return fmt.Sprintf("stack-proxy refused the request for %s on route %s: %s.", c.f.about(), c.f.place, c.f.message)
		},
	},
	{
		name: BackendDown, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.failed() && c.f.outcome == boot.NoServer && c.f.step != Agent && c.f.step != Metadata
		},
		text: func(c *clues) string { return c.f.noServer() },
	},
	{
		name: BackendDown, support: proof, certain: always,
		when: func(c *clues) bool { return c.answered() && c.f.gateway() && c.f.step != Metadata },
		text: func(c *clues) string { return c.f.gatewaySays() },
	},
	{
		name: BackendDown, support: told,
		when: (*clues).sentNothing,
		text: func(c *clues) string {
			return fmt.Sprintf("%s sent nothing of %s (route %s).", peer(c.f.from), c.f.about(), c.f.place)
		},
	},
	{
		name: BackendDown, support: proof, certain: always,
		remedy: "Look whether Tink Server runs, and at the backend of its route.",
		when: func(c *clues) bool {
			return c.failed() && c.f.step == Agent && (c.f.outcome == boot.NoServer || c.f.status == grpcUnavailable)
		},
		text: func(c *clues) string {
			return fmt.Sprintf("The agent's connection found no server: no endpoint of route %s answered%s.", c.f.place,
				at(c.f.from))
		},
	},
	{
		name: MetadataServerDown, support: proof, certain: always,
		when: func(c *clues) bool {
			return c.failed() && c.f.step == Metadata && (c.f.outcome == boot.NoServer || c.f.gateway())
		},
		text: func(c *clues) string {
			if c.f.gateway() && c.f.outcome != boot.NoServer {
				return c.f.gatewaySays()
			}
			return c.f.noServer()
		},
	},
	{
		name: ServerError, support: proof, certain: always,
		when: func(c *clues) bool {
			known := c.f.is(404, 1) || c.f.is(410, 1) || c.f.is(401, 2) || c.f.is(403, 2) || c.f.is(407, 2)
			return c.answered() && !known && !c.f.gateway() && !c.f.stalled() && !c.f.byMachine
		},
		text: func(c *clues) string {
			return fmt.Sprintf("%s answered the request for %s with an error (%s).", c.f.by(), c.f.about(), c.f.code())
		},
	},
	{
		name: FileTorn, support: told, certain: func(c *clues) bool { return !c.f.byMachine && !c.f.byUs },
		when: func(c *clues) bool { return c.torn() },
		text: func(c *clues) string {
			switch {
			case c.f.byUs:
				return fmt.Sprintf("This service gave up the transfer of %s after %s: the machine took no more of it for "+
					"long. Small packets get through and large ones may not (MTU), or the machine was switched off.",
					c.f.about(), amount(c.f))
			case c.f.byMachine:
				return fmt.Sprintf("The machine hung up after %s of %s from %s.", amount(c.f), c.f.about(), c.f.by())
			default:
				return fmt.Sprintf("%s from %s ended after %s.", c.f.about(), c.f.by(), amount(c.f))
			}
		},
	},
	{
		name: Slow, support: silence, mild: true,
		when: func(c *clues) bool { o := c.transfer(); return o != nil && c.now-o.begin >= int64(slowAfter) },
		text: func(c *clues) string { return c.transfer().pace(c.now) },
	},
	{
		name: KernelPanic, support: proof, certain: always, past: Agent, asked: true,
		when: func(c *clues) bool { return c.facts.says.is(kernelSays) },
		text: func(c *clues) string { return "The kernel says: " + strings.TrimSpace(c.facts.says.text) },
	},
	{
		name: KernelSilent, support: silence, needs: relays | proxies, past: OSDHCP, asked: true,
		when: func(c *clues) bool {
			return c.facts.kernel && (c.idleAt(Kernel, c.waits().Kernel) || c.idleAt(Initramfs, c.waits().Kernel))
		},
		unless: []objection{shared, goesOn, works, stranger, nameless},
		text: func(c *clues) string {
			if c.last(Initramfs) == nil {
				return fmt.Sprintf("%s was served whole, and nothing was heard since. No initramfs was asked for.",
					quote(c.st.text))
			}
			files := quote(c.st.text)
			if kernel := c.last(Kernel); kernel != nil && kernel != c.st {
				files = quote(kernel.text) + " and " + files + ", as they are there,"
			}
			return files + " were served whole, and nothing was heard since."
		},
	},
	{
		name: SystemSilent, support: silence, needs: relays | proxies, past: Agent, asked: true,
		when: func(c *clues) bool {
			system := c.at == OSDHCP || c.at == Syslog || c.at == Metadata
			return system && c.quiet >= int64(c.waits().System) && c.facts.kernel
		},
		unless: []objection{shared, goesOn, works, stranger, nameless},
		text: func(c *clues) string {
			return fmt.Sprintf("The system runs since %s, and no agent asked for work.", clock(c.st.begin))
		},
	},
	{
		name: AgentRefused, support: proof, certain: always, past: Agent,
		when: func(c *clues) bool {
			away := c.f.outcome == boot.NoServer || c.f.status == grpcUnavailable
			return c.failed() && c.f.step == Agent && !away && !c.f.tls()
		},
		text: func(c *clues) string {
			if c.f.outcome == boot.Refused {
				return fmt.Sprintf("stack-proxy refused the agent on route %s: %s.", c.f.place, c.f.message)
			}
			said := c.f.code()
			if c.f.message != "" {
				said += ", " + quote(c.f.message)
			}
			return fmt.Sprintf("Tink Server at %s refused the agent's %s: %s.", peer(c.f.from), c.f.about(), said)
		},
	},
	{
		name: AgentRefused, support: told, past: Agent,
		remedy: "Look whether agent and Tink Server both speak TLS, or neither. " +
			"Look whether a Workflow names this machine, and whether the agent's worker ID is the MAC in it.",
		when: func(c *clues) bool { return c.facts.agent.short >= shortStreams },
		text: func(c *clues) string {
			return fmt.Sprintf("The agent connected %d times, and each connection ended within moments.", c.facts.agent.short)
		},
	},
	{
		name: NoWorkflow, support: told, past: Files,
		certain: func(c *clues) bool { return c.wf == nil && c.hw.Workflows && c.hw.Known },
		when:    (*clues).agentIdle,
		text: func(c *clues) string {
			text := "The agent asks for work since " + clock(c.facts.agent.since) + " and has reported nothing."
			switch {
			case !c.hw.Workflows:
			case c.wf == nil:
				text += " No Workflow names this machine."
			default:
				text += " Its Workflow is " + c.wf.State + "."
			}
			return text
		},
	},
	{
		name: WorkflowFailed, support: proof, certain: always, past: Other,
		when: func(c *clues) bool { return c.wf.failed() },
		text: func(c *clues) string {
			w := c.wf
			text := "The Workflow is " + w.State
			if w.Action != "" {
				text += " at " + quote(w.Action)
			}
			if w.Message != "" {
				text += ": " + strings.TrimSuffix(w.Message, ".")
			}
			return text + "."
		},
	},
	{
		name: BootLoop, support: told, past: Other,
		when: func(c *clues) bool { return c.m.loops() >= maxLoops },
		text: func(c *clues) string {
			return fmt.Sprintf("%s boots from the network for the %dth time since %s.", c.mac(), c.m.loops()+1,
				clock(c.m.boots[max(0, len(c.m.boots)-1-c.m.loops())].begin))
		},
	},
	{
		name: CannotTell, needs: relays | proxies, mild: true,
		when: func(*clues) bool { return false },
	},
	{ // A question without an answer is a fact, whosever fault it is.
		name: CannotTell, needs: relays, past: DHCP,
		remedy: "See whether a Hardware object has this MAC, and whether the DHCP server (Smee) runs and gets requests.",
		when:   func(*clues) bool { return false },
	},
}

// Row is what people may know of a cause.
type Row struct {
	Name   string
	Seen   string // what is heard where it is found
	Remedy string // what to do
	Link   string // where it is explained
}

// causes.tsv has the words of the table, a cause a line: name, what is seen, what to do.
//
//go:embed causes.tsv
var words string

// Table is the table of causes, in the order of the steps at which they are found.
var Table = sync.OnceValue(func() (rows []Row) {
	for line := range strings.Lines(words) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		rows = append(rows, Row{f[0], f[1], f[2], "https://github.com/tinkerbell/stack/blob/main/docs/boots.md#" + f[0]})
	}
	return rows
})

// remedies are what to do about causes, by name.
var remedies = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, r := range Table() {
		all[r.Name] = r.Remedy
	}
	return all
})
