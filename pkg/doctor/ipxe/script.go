// Package ipxe reads iPXE scripts as far as it takes to know what they load. It runs nothing.
package ipxe

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Command is a command of a script that loads something.
type Command struct {
	Line int
	Verb string
	// URL is absolute; nil where the script leaves it open.
	URL *url.URL
	// Open is the text of a URL that depends on what only the machine knows.
	Open string
	Args string
	// Optional tells that the script goes on without it.
	Optional bool
	// Label is that before the command, where nothing on the default way through the script leads to it; else empty.
	Label string
}

// Script is what a script does.
type Script struct {
	Commands []Command
	// Ends are verbs without a URL that end or wait: exit, sanboot, shell, choose.
	Ends []string
}

// ErrNoScript says that a text is no iPXE script.
var ErrNoScript = errors.New("it is no iPXE script")

// longestLine is what iPXE takes of a kernel's arguments.
const (
	longestLine = 64 << 10
	mostLines   = 10000
)

// loads are the verbs with a URL.
var loads = map[string]bool{
	"kernel": true, "initrd": true, "imgfetch": true, "imgload": true, "imgexec": true, "module": true, "chain": true,
	"boot": true, "imgselect": true, "sanboot": true, "sanhook": true, "imgextract": true, "shim": true,
}

// ends are the verbs by which a script leads elsewhere than to a kernel.
var ends = map[string]bool{"exit": true, "sanboot": true, "shell": true, "choose": true, "reboot": true,
	"poweroff": true}

// Parse reads a script that came from a URL. Known are the machine's own values, such as "mac".
func Parse(text string, from *url.URL, known map[string]string) (Script, error) {
	first, _, _ := strings.Cut(text, "\n")
	if first = strings.TrimSpace(first); !strings.HasPrefix(first, "#!ipxe") && !strings.HasPrefix(first, "#!gpxe") {
		return Script{}, fmt.Errorf("%w: it begins with %q", ErrNoScript, first[:min(len(first), 40)])
	}
	lines := strings.Split(text, "\n")
	p := parser{from: from, vars: map[string]string{}, known: known, aside: aside(lines)}
	for i := 0; i < len(lines) && i < mostLines; i++ {
		number, line := i+1, strings.TrimRight(lines[i], "\r")
		for strings.HasSuffix(line, "\\") && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, "\\") + " " + strings.TrimRight(lines[i], "\r")
		}
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ':' || len(line) > longestLine {
			continue
		}
		p.line(number, line, lines)
	}
	p.keep()
	return p.script, nil
}

// keep takes the labels away again where the default way loads nothing: what is beside it is all that there is.
func (p *parser) keep() {
	if slices.ContainsFunc(p.script.Commands, func(c Command) bool { return c.Label == "" }) {
		return
	}
	for i := range p.script.Commands {
		p.script.Commands[i].Label = ""
	}
}

type parser struct {
	from   *url.URL
	vars   map[string]string
	known  map[string]string
	aside  map[int]string // see [Command.Label]
	script Script
}

// line reads a line: the command before the first "&&", "||" or ";", and what happens where it fails.
func (p *parser) line(number int, line string, lines []string) {
	words := strings.Fields(line)
	if words[0] == "iseq" || words[0] == "goto" {
		return // what depends on a comparison is not followed
	}
	if words[0] == "isset" {
		_, after, found := strings.Cut(line, "||")
		set := strings.Fields(after)
		if found && len(words) > 1 && len(set) > 2 && set[0] == "set" && p.vars[set[1]] == "" {
			p.vars[set[1]] = strings.Join(set[2:], " ")
		}
		return
	}
	end, fallback, hasFallback := len(words), "", false
	for i, w := range words {
		if w == "&&" || w == "||" || w == ";" {
			end = i
			break
		}
	}
	if _, after, found := strings.Cut(" "+line+" ", " || "); found {
		fallback, hasFallback = strings.TrimSpace(after), true
	}
	words = words[:end]
	if words[0] == "set" && len(words) > 1 {
		name, _, _ := strings.Cut(words[1], ":")
		p.vars[name] = strings.Join(words[2:], " ")
		return
	}
	verb, target, args := words[0], "", ""
	for i := 1; i < len(words); i++ {
		switch w := words[i]; {
		case w == "-n" || w == "--name" || w == "--timeout" || w == "-t" || w == "--drive" || w == "-d":
			i++
		case strings.HasPrefix(w, "-"):
		default:
			target, args = w, strings.Join(words[i+1:], " ")
		}
		if target != "" {
			break
		}
	}
	if ends[verb] && target == "" || verb == "choose" || verb == "exit" {
		p.script.Ends = append(p.script.Ends, verb)
		return
	}
	if !loads[verb] || target == "" {
		return
	}
	args, _ = p.expand(args, 0)
	c := Command{
		Line: number, Label: p.aside[number], Verb: verb, Args: args, Optional: hasFallback && !fails(fallback, lines),
	}
	expanded, open := p.expand(target, 0)
	if u, err := p.from.Parse(expanded); open || err != nil || u.Host == "" {
		c.Open = target
	} else {
		c.URL = u
	}
	if c.URL != nil && verb == "boot" && !strings.Contains(expanded, "/") {
		return // the name of an image that is there
	}
	p.script.Commands = append(p.script.Commands, c)
}

// fails tells whether what a script does instead leads to no boot: it gives up itself, or at the label that it goes to.
func fails(fallback string, lines []string) bool {
	words := strings.Fields(fallback)
	for i, w := range words {
		switch w {
		case "exit", "shell", "reboot", "poweroff":
			return true
		case "goto":
			if i+1 < len(words) {
				return gives(words[i+1], lines)
			}
		}
	}
	return false
}

// gives tells whether the lines behind a label load nothing more.
func gives(label string, lines []string) bool {
	inside := false
	for _, line := range lines {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == ":"+label:
			inside = true
		case !inside:
		case words[0] == "exit" || words[0] == "shell" || words[0] == "reboot" || words[0] == "poweroff":
			return true
		case loads[words[0]]:
			return false
		}
	}
	return inside
}

// expand replaces ${name} and ${name:type}. Open tells that a value is not known.
func (p *parser) expand(text string, depth int) (out string, open bool) {
	const deepest = 8
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		b.WriteString(before)
		if !found || b.Len() > longestLine {
			return b.String(), open
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return b.String(), true
		}
		text = after
		value, known := p.value(name)
		if known && strings.Contains(value, "${") && depth < deepest {
			var inner bool
			value, inner = p.expand(value, depth+1)
			open = open || inner
		}
		b.WriteString(value)
		open = open || !known
	}
}

// value is that of a setting: the script's own, or the machine's.
func (p *parser) value(name string) (value string, known bool) {
	name, kind, _ := strings.Cut(name, ":")
	if value, ok := p.vars[name]; ok {
		return value, true
	}
	if scope, setting, scoped := strings.Cut(name, "/"); scoped && strings.HasPrefix(scope, "net") {
		name = setting
	}
	value, ok := p.known[name]
	switch {
	case !ok:
		return "", false
	case kind == "hexhyp":
		return strings.ReplaceAll(value, ":", "-"), true
	case kind == "hexraw":
		return strings.ReplaceAll(value, ":", ""), true
	case kind == "uristring":
		return url.QueryEscape(value), true
	}
	return value, true
}
