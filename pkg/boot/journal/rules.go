package journal

import (
	_ "embed" // the rules and the words of causes
	"slices"
	"strings"
	"sync"
)

// CannotTell is the cause that says that a witness is missing, or speaks against every other one.
const CannotTell = "cannot-tell"

// support is how well what was heard supports a cause. Of several causes the best supported one is shown.
type support uint8

const (
	supportSilence support = 1 + iota // nothing was heard
	supportMissing                    // a question without an answer
	supportTold                       // the machine, a server or Kubernetes says so
	supportProof                      // what was heard leaves nothing else
)

// rule tells when a cause fits, and what is said of it.
type rule struct {
	name       string
	remedy     string // what to do, where that is not what causes.tsv says
	support    support
	needs      witnesses // those that tell nothing of it unless they are well: what was not heard may have been missed
	overcomeBy Step      // the cause stays until this step goes well; "": until the one that the machine is at does
	whenBegun  bool      // that the step is begun is enough
	mild       bool      // the machine is not stuck by it
	when       test
	certain    test // that what was heard proves it
	unless     []objection
	text       func(*clues) string
}

// objection speaks against a cause.
type objection struct {
	is     test
	says   string
	leaves bool // it leaves the cause possible: it cannot be told
}

// test is a fact that holds, or does not.
type test func(*clues) bool

//go:embed rules.txt
var rules string

// table are the rules of rules.txt. A rule is
//
//	cause: support, witnesses that it needs, and what else it is
//	  when facts, all of which hold; a|b is either, !a is not, a=b is one of an argument
//	  certain facts by which it is proved; with the word "certain" above it always is
//	  unless what speaks against it, as the lines "against" name it
//	  text with values in braces
//	  remedy where causes.tsv has another
var table = sync.OnceValue(func() (all []rule) {
	against := map[string]objection{}
	for line := range strings.Lines(rules) {
		head, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name, leaves := strings.CutPrefix(head, "against? "); {
		case strings.HasPrefix(line, "#"), value == "":
		case strings.HasPrefix(head, "against"):
			name = strings.TrimPrefix(name, "against ")
			against[name] = objection{is: parseTests(name), says: strings.TrimSpace(rest), leaves: leaves}
		case line[0] != '\t':
			all = append(all, parseRule(head, strings.Fields(rest)))
		default:
			all[len(all)-1].set(key, value, against)
		}
	}
	return all
})

// parseRule reads a rule's first line.
func parseRule(name string, words []string) rule {
	r := rule{name: name, certain: never}
	for _, w := range words {
		switch w {
		case "certain":
			r.certain = func(*clues) bool { return true }
		case "mild":
			r.mild = true
		case "begun":
			r.whenBegun = true
		case "relay":
			r.needs |= relays
		case "proxy":
			r.needs |= proxies
		default:
			if step, found := strings.CutPrefix(w, "past="); found {
				r.overcomeBy = Step(step)
			} else if r.support = support(slices.Index(supports, w)); r.support > supportProof {
				panic("no support is named " + w)
			}
		}
	}
	return r
}

var supports = []string{
	supportSilence: "silence", supportMissing: "missing", supportTold: "told", supportProof: "proof",
}

func never(*clues) bool { return false }

// set reads another line of a rule.
func (r *rule) set(key, value string, against map[string]objection) {
	switch key {
	case "when":
		r.when = parseTests(value)
	case "certain":
		r.certain = parseTests(value)
	case "unless":
		for _, name := range strings.Fields(value) {
			o, known := against[name]
			if !known {
				panic("nothing says what speaks against a cause by " + name)
			}
			r.unless = append(r.unless, o)
		}
	case "text":
		r.text = parseText(value)
	case "remedy":
		r.remedy = value
	default:
		panic("no line of a rule begins with " + key)
	}
}

// parseTests reads facts, all of which are to hold.
func parseTests(line string) test {
	var all []test
	for _, word := range strings.Fields(line) {
		var either test
		for _, w := range strings.Split(word, "|") {
			if one, another := either, parseTest(w); one == nil {
				either = another
			} else {
				either = func(c *clues) bool { return one(c) || another(c) }
			}
		}
		all = append(all, either)
	}
	return func(c *clues) bool {
		for _, holds := range all {
			if !holds(c) {
				return false
			}
		}
		return true
	}
}

func parseTest(word string) test {
	if rest, not := strings.CutPrefix(word, "!"); not {
		t := parseTest(rest)
		return func(c *clues) bool { return !t(c) }
	}
	if t := tests[word]; t != nil {
		return t
	}
	name, argument, _ := strings.Cut(word, "=")
	if t := testsOf[name]; t != nil {
		return func(c *clues) bool { return t(c, argument) }
	}
	panic("no fact is named " + word)
}

// parseText reads a sentence with values in braces.
func parseText(line string) func(*clues) string {
	var parts []func(*clues) string
	for line != "" {
		before, rest, _ := strings.Cut(line, "{")
		word, after, _ := strings.Cut(rest, "}")
		line = after
		parts = append(parts, func(*clues) string { return before })
		if name, argument, _ := strings.Cut(word, "="); values[word] != nil {
			parts = append(parts, values[word])
		} else if of := valuesOf[name]; of != nil {
			parts = append(parts, func(c *clues) string { return of(c, argument) })
		} else if word != "" {
			panic("no value is named " + word)
		}
	}
	return func(c *clues) string {
		var b strings.Builder
		for _, part := range parts {
			b.WriteString(part(c))
		}
		return b.String()
	}
}

// Row is what people may know of a cause.
type Row struct {
	Name   string
	Seen   string // what is heard where it is found
	Remedy string // what to do
	Link   string // where it is explained
}

// causes.tsv has what people may know of causes, a cause a line: name, what is seen, what to do.
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
