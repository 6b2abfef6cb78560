package journal

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// values are what the texts of rules name.
var values = map[string]func(*clues) string{
	// The machine, and what Kubernetes knows of it.
	"mac":            (*clues).mac,
	"arch":           func(c *clues) string { return c.m.archName() },
	"note":           func(c *clues) string { return c.m.archNote() },
	"hardware":       func(c *clues) string { return c.hw.Name },
	"also":           func(c *clues) string { return c.hw.Also },
	"hardware-arch":  func(c *clues) string { return c.hw.Arch },
	"closest":        func(c *clues) string { return around(" The closest is ", c.hw.Closest, ".") },
	"rival":          func(c *clues) string { return c.m.rival },
	"namesake":       func(c *clues) string { return c.m.namesakes.last.String() },
	"other-namesake": func(c *clues) string { return c.m.namesakes.other.String() },
	"nat":            func(c *clues) string { return c.m.nat.String() },
	"boots":          func(c *clues) string { return strconv.Itoa(c.m.loops() + 1) },
	"first-boot":     func(c *clues) string { return clock(c.m.boots[max(0, len(c.m.boots)-1-c.m.loops())].begin) },
	"workflow":       (*clues).workflow,
	"workflow-state": func(c *clues) string { return c.wf.State },
	"workflow-why": func(c *clues) string {
		return around(" at ", quoteAny(c.wf.Action), "") + around(": ", strings.TrimSuffix(c.wf.Message, "."), "")
	},

	// Its DHCP.
	"asked":        (*clues).saysAsked,
	"asked-server": func(c *clues) string { return peer(c.a.to) },
	"silent":       (*clues).silent,
	"server-well": func(c *clues) string {
		if at, found := c.j.scene.other(c.m); found {
			return "; the server answered another machine at " + clock(at)
		} else if c.servesFiles() {
			return ", while the server serves files"
		}
		return ""
	},
	"drop":        func(c *clues) string { return c.a.drop },
	"lost":        func(c *clues) string { return c.a.lost },
	"declined":    func(c *clues) string { return c.facts.declined.String() },
	"declines":    func(c *clues) string { return strconv.Itoa(c.facts.declines) },
	"strays":      func(c *clues) string { return strconv.Itoa(c.facts.strays) },
	"server":      func(c *clues) string { return c.a.servers[0].String() },
	"server-last": func(c *clues) string { return c.a.server.String() },
	"chosen":      func(c *clues) string { return c.a.chosen.String() },
	"offers":      func(c *clues) string { return strconv.Itoa(c.a.offers) },
	"naks":        func(c *clues) string { return strconv.Itoa(c.a.naks) },
	"address":     func(c *clues) string { return c.a.address.String() },
	"named":       func(c *clues) string { return quote(c.a.file) },
	"elsewhere":   (*clues).elsewhere,
	"self":        func(c *clues) string { return strings.Trim(fmt.Sprint(c.j.options.Self), "[]") },
	"next": func(c *clues) string {
		if !c.a.next.IsValid() || strings.Contains(c.a.file, "://") {
			return ""
		}
		return " at " + c.a.next.String()
	},

	// What it loads.
	"file":          func(c *clues) string { return quote(c.st.text) },
	"from":          func(c *clues) string { return peer(c.st.from) },
	"kernel":        func(c *clues) string { return quote(c.textOf(Kernel)) },
	"wrong-file":    func(c *clues) string { return quote(c.wrongFile()) },
	"returned":      func(c *clues) string { return quote(c.facts.returned.file) },
	"returned-from": func(c *clues) string { return peer(c.facts.returned.from) },
	"distrusted":    func(c *clues) string { return quote(c.distrusted()) },
	"loads":         func(c *clues) string { return strconv.Itoa(c.facts.loads) },
	"open":          func(c *clues) string { return seconds(c.openFor()) },
	"pace":          func(c *clues) string { return c.transfer().pace(c.now) },
	"waiting":       func(c *clues) string { return quote(c.waiting().text) },
	"waiting-for":   func(c *clues) string { return peer(c.waiting().from) },
	"waiting-since": func(c *clues) string { return clock(c.waiting().begin) },
	"redirected":    func(c *clues) string { return quote(c.facts.redirect.file) },
	"location":      func(c *clues) string { return quoteAny(c.facts.redirect.location) },
	"redirection":   func(c *clues) string { return strconv.Itoa(int(c.facts.redirect.status)) },
	"said":          func(c *clues) string { return quote(c.facts.says.text) },
	"saying":        func(c *clues) string { return strings.TrimSpace(c.facts.says.text) },
	"kernel-files": func(c *clues) string {
		if kernel := c.last(Kernel); kernel != nil && kernel != c.st {
			return quote(kernel.text) + " and " + quote(c.st.text) + ", as they are there, were served"
		}
		return quote(c.st.text) + " was served"
	},
	"no-kernel": func(c *clues) string {
		const least = 64 << 10 // bytes; the smallest that anybody boots
		if kernel := c.last(Kernel); kernel != nil && kernel.bytes < least {
			return fmt.Sprintf(" The kernel has %d bytes: look whether it is a web server's page.", kernel.bytes)
		}
		return ""
	},
	"no-initramfs": func(c *clues) string {
		if c.last(Initramfs) == nil {
			return " No initramfs was asked for."
		}
		return ""
	},

	// What went wrong.
	"what":    func(c *clues) string { return quote(c.f.file) },
	"whose":   func(c *clues) string { return peer(c.f.from) },
	"by":      func(c *clues) string { return c.f.by() },
	"at":      func(c *clues) string { return at(c.f.from) },
	"route":   func(c *clues) string { return c.f.route },
	"port":    func(c *clues) string { return strconv.Itoa(int(c.f.asked)) },
	"message": func(c *clues) string { return c.f.message },
	"said-so": func(c *clues) string { return around(", ", quoteAny(c.f.message), "") },
	"code":    func(c *clues) string { return c.f.code() },
	"amount":  func(c *clues) string { return c.f.amount() },
	"resent":  func(c *clues) string { return strconv.Itoa(int(c.f.resent)) },
	"block":   func(c *clues) string { return strconv.Itoa(int(max(c.f.block, 512))) },
	"neighbours": func(c *clues) string {
		return around(" Served from the same directory: ", c.j.scene.neighbours(c.f.dir, c.f.file), ".")
	},

	// Its system and its agent.
	"step-begin":  func(c *clues) string { return clock(c.st.begin) },
	"short":       func(c *clues) string { return strconv.Itoa(c.facts.agent.short) },
	"agent-since": func(c *clues) string { return clock(c.facts.agent.since) },
	"agent-bytes": func(c *clues) string { return strconv.FormatUint(c.facts.agent.polls.bytes, 10) },
}

// valuesOf are those of an argument.
var valuesOf = map[string]func(*clues, string) string{"wrong": (*clues).wrong}

// around puts words around a value; empty if that is.
func around(before, value, behind string) string {
	if value == "" {
		return ""
	}
	return before + value + behind
}

// addressText is an event's address with a word before it; empty if there is none.
func addressText(before string, b [16]byte) string {
	if b == ([16]byte{}) {
		return ""
	}
	return before + boot.Addr(b).String()
}

// joined are those texts that are not empty, with something between them.
func joined(between string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), between)
}

func (c *clues) mac() string { return macString(c.bootRecord.mac) }

// workflow says what is known of the Workflow of an agent that waits for one.
func (c *clues) workflow() string {
	switch {
	case !c.hw.Workflows:
		return ""
	case c.wf == nil:
		return " No Workflow names this machine."
	default:
		return " Its Workflow is " + c.wf.State + "."
	}
}

func (c *clues) saysAsked() string {
	return fmt.Sprintf("%s asked %d times since %s", c.mac(), c.a.asked, clock(c.a.opened))
}

// silent says of whom there is no answer, and what others get.
func (c *clues) silent() (text string) {
	if c.a.to.IsValid() {
		text = " of " + peer(c.a.to)
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
	return text
}

// pace is how fast a transfer goes, and how long it has to go on.
func (m *message) pace(now int64) string {
	t := fmt.Sprintf("%s goes on since %s", quote(m.text), clock(m.begin))
	if d := time.Duration(m.end - m.begin).Seconds(); m.bytes > 0 && d > 0 {
		rate := float64(m.bytes) / d
		t += fmt.Sprintf(" at %.0f kbit/s", rate*8/1000)
		if left := float64(m.expected) - float64(m.bytes); left > 0 {
			t += fmt.Sprintf(", and has %s to go", seconds(int64(left/rate*1e9)))
		}
	} else if m.expected > 0 {
		t += fmt.Sprintf(", of %d bytes: less than %.0f kbit/s", m.expected,
			float64(m.expected)*8/1000/time.Duration(now-m.begin).Seconds())
	}
	return t + "."
}

// by is who answered.
func (f *failure) by() string {
	if !f.from.IsValid() && f.route != "" {
		return "route " + f.route // a file of this pod's own
	}
	return peer(f.from)
}

// code is the answer's code in its protocol's words.
func (f *failure) code() string {
	switch {
	case f.tftp():
		return strings.TrimSuffix(fmt.Sprintf("TFTP error %d: %s", f.status-1, f.message), ": ")
	case f.kind == boot.Stream:
		return strings.TrimSpace(fmt.Sprintf("gRPC code %d %s", f.status, grpcNames[f.status]))
	default:
		return fmt.Sprintf("HTTP status %d", f.status)
	}
}

var grpcNames = map[uint16]string{
	2: "UNKNOWN", 3: "INVALID_ARGUMENT", grpcNotFound: "NOT_FOUND", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED",
	9: "FAILED_PRECONDITION", 12: "UNIMPLEMENTED", 13: "INTERNAL", 16: "UNAUTHENTICATED",
}

func (f *failure) amount() string {
	if f.expected > 0 {
		return fmt.Sprintf("%d of %d bytes", f.bytes, f.expected)
	}
	return fmt.Sprintf("%d bytes", f.bytes)
}

func quote(s string) string { return cmp.Or(quoteAny(s), "it") }

// quoteAny quotes what there is.
func quoteAny(s string) string {
	if s == "" {
		return ""
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
