package daemon

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kelseyhightower/envconfig"

	"github.com/tinkerbell/stack/internal/setting"
)

// Settings are what every program takes from its environment. A program's own settings embed them.
type Settings struct {
	LogLevel slog.Level `split_words:"true" default:"info" desc:"lowest level that is logged: debug, info, warn, error"`
}

// A validator is a settings struct that checks what one field's type cannot. Faults are joined by errors.Join.
type validator interface{ Validate() error }

// removed are variables that several programs had, with what to do about each.
var removed = map[string]string{
	"PPROF": "leave it out: the admin port serves /debug/pprof/ to clients on the loopback interface, " +
		"such as kubectl port-forward",
	"LOG_FORMAT": "leave it out: lines are text on a terminal, and JSON elsewhere",
}

// A remover is a settings struct that names variables of former versions, without the prefix, with what to do about
// each.
type remover interface{ Removed() map[string]string }

// ParseEnv fills the struct that spec points to from the variables that begin with prefix and an underscore, as
// envconfig does. It is strict: an unknown variable, a value of the wrong type, a missing required one and
// whatever the struct's Validate method objects to are faults, and the error names all of them, a line each.
// A variable that is set to nothing counts as not set, since a chart renders an absent value so.
func ParseEnv(prefix string, spec any) error {
	known, err := keys(prefix, spec)
	if err != nil {
		return err
	}
	own := map[string]string{}
	if spec, ok := spec.(remover); ok {
		own = spec.Removed()
	}
	faults := &faultList{}
	for _, pair := range os.Environ() {
		key, value, _ := strings.Cut(pair, "=")
		switch {
		case !strings.HasPrefix(key, prefix+"_"):
		case !slices.Contains(known, key):
			name := strings.TrimPrefix(key, prefix+"_")
			if remedy := cmp.Or(own[name], removed[name]); remedy != "" {
				faults.add(key + ": is no variable any more: " + remedy)
			} else {
				faults.add(unknown(key, known))
			}
		case value == "":
			if err := os.Unsetenv(key); err != nil {
				return fmt.Errorf("failed to clear variable %s: %w", key, err)
			}
		}
	}
	parseFields(prefix, reflect.ValueOf(spec).Elem(), faults)
	faults.read = len(faults.texts)
	validate(reflect.ValueOf(spec).Elem(), faults)
	return faults.err()
}

// parseFields has envconfig process one field at a time, since it stops at the first fault of a struct.
func parseFields(prefix string, spec reflect.Value, faults *faultList) {
	for i := range spec.NumField() {
		field := spec.Type().Field(i)
		switch {
		case !field.IsExported():
		case field.Anonymous:
			parseFields(prefix, spec.Field(i), faults)
		default:
			one := reflect.New(reflect.StructOf([]reflect.StructField{
				{Name: field.Name, Type: field.Type, Tag: field.Tag},
			}))
			one.Elem().Field(0).Set(spec.Field(i))
			if err := envconfig.Process(prefix, one.Interface()); err != nil {
				faults.add(describe(err))
				continue
			}
			spec.Field(i).Set(one.Elem().Field(0))
		}
	}
}

// validate asks the embedded structs first, then the struct itself; a promoted method is heard once only,
// because equal faults are.
func validate(spec reflect.Value, faults *faultList) {
	for i := range spec.NumField() {
		if field := spec.Type().Field(i); field.Anonymous && field.IsExported() {
			validate(spec.Field(i), faults)
		}
	}
	if v, ok := spec.Addr().Interface().(validator); ok {
		faults.addJoined(v.Validate())
	}
}

// faultList collects what is wrong with the settings, each fault once. The first read of them were found while
// reading: a variable that could not be read is not complained about again for its meaning.
type faultList struct {
	texts []string
	read  int
}

func (l *faultList) add(text string) {
	if !slices.Contains(l.texts, text) {
		l.texts = append(l.texts, text)
	}
}

func (l *faultList) addJoined(err error) {
	for _, each := range setting.Faults(err) {
		text := each.Error()
		unread := func(read string) bool { return variable(read) != "" && variable(read) == variable(text) }
		if !slices.ContainsFunc(l.texts[:l.read], unread) {
			l.add(text)
		}
	}
}

// variable is the name with which a fault's text begins; empty if it begins with none.
func variable(fault string) string {
	end := strings.IndexAny(fault, "=:")
	if end < 0 || strings.Contains(fault[:end], " ") {
		return ""
	}
	return fault[:end]
}

func (l *faultList) err() error {
	switch len(l.texts) {
	case 0:
		return nil
	case 1:
		return errors.New(l.texts[0])
	default:
		return fmt.Errorf("%d faults:\n  %s", len(l.texts), strings.Join(l.texts, "\n  "))
	}
}

// misread says what is wrong with a value that cannot be read, by the setting's type, whose own words are those of Go.
var misread = map[string]string{
	"bool":          "neither true nor false",
	"int":           "not a whole number",
	"uint16":        "not a whole number from 0 to 65535",
	"time.Duration": "no duration: write it with its unit, as in 30s or 1h30m",
	"netip.Addr":    "not an IP address",
	"netip.Prefix":  "no prefix: write it as 192.0.2.0/24 or 2001:db8::/64",
	"slog.Level":    "none of debug, info, warn, error",
}

// describe turns envconfig's errors, which speak of Go types, into words for the person who set the variable.
func describe(err error) string {
	var parse *envconfig.ParseError
	if errors.As(err, &parse) {
		if words := misread[strings.TrimPrefix(parse.TypeName, "[]")]; words != "" {
			return fmt.Sprintf("%s=%q: %s", parse.KeyName, parse.Value, words)
		}
		return fmt.Sprintf("%s=%q: %v", parse.KeyName, parse.Value, parse.Err)
	}
	if key, ok := strings.CutPrefix(err.Error(), "required key "); ok {
		return strings.TrimSuffix(key, " missing value") + ": required, and not set"
	}
	return err.Error()
}

// keys lists the names of every variable that spec has.
func keys(prefix string, spec any) ([]string, error) {
	var out bytes.Buffer
	if err := envconfig.Usagef(prefix, spec, &out, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		return nil, fmt.Errorf("failed to list settings of %T: %w", spec, err)
	}
	return strings.Fields(out.String()), nil
}

// unknown says that a variable is not one of ours, and which one may have been meant.
func unknown(key string, known []string) string {
	i := slices.IndexFunc(known, func(k string) bool { return setting.Near(k, key) })
	if i < 0 {
		return key + ": no such variable"
	}
	return fmt.Sprintf("%s: no such variable (did you mean %s?)", key, known[i])
}

// usage writes the table of every variable with its type, default and meaning.
func usage(w io.Writer, prefix string, spec any) error {
	tabs := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	const row = `{{range .}}  {{usage_key .}}	{{usage_type .}}	` +
		`{{with usage_default .}}{{.}}{{else}}{{if usage_required .}}(required){{else}}-{{end}}{{end}}	` +
		`{{usage_description .}}
{{end}}`
	if _, err := fmt.Fprintln(tabs, "  VARIABLE\tTYPE\tDEFAULT\tMEANING"); err != nil {
		return err
	}
	if err := envconfig.Usagef(prefix, spec, tabs, row); err != nil {
		return fmt.Errorf("failed to describe settings: %w", err)
	}
	return tabs.Flush()
}
