package bundle

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// mask stands where a secret was.
const mask = "***"

// rule takes one kind of secret out of a text. What is in the first group stays.
type rule struct {
	what    string
	pattern *regexp.Regexp
	secret  func([]byte) bool // of the whole match; nil: always
}

// secretName matches the names under which secrets stand.
const secretName = `[\w.-]*(?:passw|passphrase|\bpw\b|\bpwd\b|token|secret|signature|credential|private|` +
	`apikey|[_-]key|\bkey)[\w.-]*`

// rules are in their order: a later one sees what an earlier one has left.
var rules = []rule{
	{what: "private keys", pattern: regexp.MustCompile(
		`()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`)},
	{what: "cookies and credentials of requests", pattern: regexp.MustCompile(
		`(?i)((?:set-cookie|cookie|authorization|x-auth-token)["']?\s*[:=]\s*)[^\r\n"\\]+`)},
	{what: "users in URLs", pattern: regexp.MustCompile(`(://)[^/@\s"\\]+@`)},
	{what: "queries of URLs", pattern: regexp.MustCompile(`(\?)[^\s"'\\#]+`)},
	{what: "fragments of URLs", pattern: regexp.MustCompile(`(://[^\s"'\\#]*#)[^\s"'\\]+`)},
	{what: "tokens of JSON", pattern: regexp.MustCompile(`()[^/\s"'\\=]*eyJ[A-Za-z0-9_-]{5,}[A-Za-z0-9_.-]*`)},
	{what: "values with a secret's name", pattern: regexp.MustCompile(
		`(?i)(` + secretName + `["']?\s*[:=]\s*["']?(?:bearer\s+|basic\s+)?)[^\s"'\\,;&]+`)},
	{what: "settings of scripts", pattern: regexp.MustCompile(`(?i)((?:param|set)\s+` + secretName + `\s+)[^\s"\\]+`)},
	{what: "tokens of kubeadm", pattern: regexp.MustCompile(`()\b[a-z0-9]{6}\.[a-z0-9]{16}\b`)},
	{what: "long words without sense", pattern: regexp.MustCompile(`()[A-Za-z0-9+_=-]{24,}`), secret: random},
}

// random tells whether a word looks like one of base64: capitals, small letters and digits, and no digest.
func random(word []byte) bool {
	return bytes.ContainsAny(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") && bytes.ContainsAny(word, "0123456789") &&
		bytes.ContainsAny(word, "ghijklmnopqrstuvwxyz")
}

// redactor takes secrets out, and counts them.
type redactor struct{ counts map[string]int }

func (r *redactor) add(what string, n int) {
	if n == 0 {
		return
	}
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[what] += n
}

func (r *redactor) count(what string) { r.add(what, 1) }

// text takes secrets out of a text.
func (r *redactor) text(text []byte) []byte {
	for _, rule := range rules {
		text = rule.pattern.ReplaceAllFunc(text, func(found []byte) []byte {
			if rule.secret != nil && !rule.secret(found) {
				return found
			}
			kept := rule.pattern.FindSubmatch(found)
			if kept == nil { // what stood around it decided
				kept = [][]byte{nil, nil}
			}
			r.count(rule.what)
			end := ""
			if bytes.HasSuffix(found, []byte("@")) {
				end = "@"
			}
			return []byte(string(kept[1]) + mask + end)
		})
	}
	return text
}

// told says what was taken out, and how often.
func (r *redactor) told() []byte {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(r.counts)) {
		fmt.Fprintf(&b, "%6d  %s\n", r.counts[what], what)
	}
	return []byte(b.String())
}
