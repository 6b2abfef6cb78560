package journal

import (
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/boot"
)

// syslog records a line.
func (j *Journal) syslog(m *machine, e *boot.Event) {
	l := line{
		at: e.At, priority: e.Priority, tag: text(e, boot.Agent, 48), text: text(e, boot.Message, maxText),
	}
	m.lines = append(m.lines, l)
	if n := len(m.lines) - j.options.Limits.Lines; n > 0 {
		m.lines = slices.Delete(m.lines, 0, n)
	}
	b := m.newest()
	if b == nil || b.state.over() {
		return // Whoever only logs, as a switch does, does not boot.
	}
	b.heardAt(e.At)
	system := b.facts.noteLine(&l)
	if !system || b.furthest != "" && b.furthest.order() < Kernel.order() {
		return // iPXE logs, too, until it starts the kernel.
	}
	i := b.enter(Syslog, e.At)
	b.steps[i].result = OK
	b.steps[i].text = l.tag
	b.moved = max(b.moved, e.At)
	b.facts.progress(Syslog, e)
	b.overcome(Syslog, stepEnded)
}

var facilities = [...]string{
	"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
	"security", "console", "solaris-cron", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
}

var severities = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

func facility(priority uint8) string {
	if f := int(priority >> 3); f < len(facilities) {
		return facilities[f]
	}
	return ""
}

func severity(priority uint8) string { return severities[priority&7] }

func containsFold(s, part string) bool {
	return strings.Contains(strings.ToLower(s), strings.ToLower(part))
}
