// Package strict reads settings files in YAML into structs and goes on after each mistake, so that a person is told all
// of them at once, with line and field. The usual decoders stop at the first, or do not tell its line.
package strict

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tinkerbell/stack/internal/setting"
)

// hints say in a person's words what the YAML parser means.
var hints = map[string]string{
	"did not find expected key":                      "indented otherwise than its neighbours?",
	"mapping values are not allowed in this context": "indented too far, or a colon in a text without quotes?",
	"could not find expected ':'":                    "a field without its colon?",
	"found unexpected end of stream":                 "a quote that is not closed?",
	"did not find expected ',' or ']'":               "a bracket that is not closed?",
	"did not find expected ',' or '}'":               "a brace that is not closed?",
}

// Mistake is one thing that is wrong with a file.
type Mistake struct {
	Line  int    // 0 where it belongs to no line
	Field string // such as routes[2].listen
	Text  string
}

func (m Mistake) Error() string {
	s := m.Text
	if m.Field != "" {
		s = m.Field + ": " + s
	}
	if m.Line > 0 {
		s = fmt.Sprintf("line %d: %s", m.Line, s)
	}
	return s
}

// Mistakes are all that is wrong with a file, in the order of its lines.
type Mistakes []Mistake

func (m Mistakes) Error() string {
	lines := make([]string, len(m))
	for i, each := range m {
		lines[i] = each.Error()
	}
	return strings.Join(lines, "\n")
}

// Cover is whether one of the mistakes is of a field, or of what it is part of.
func (m Mistakes) Cover(field string) bool {
	return slices.ContainsFunc(m, func(each Mistake) bool {
		rest, ok := strings.CutPrefix(field, each.Field)
		return ok && (rest == "" || each.Field == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Decoder reads one file.
type Decoder struct {
	// Removed are fields that former versions had, such as routes[].limits.queue, with what to do about them.
	Removed map[string]string

	mistakes Mistakes
	lines    map[string]int // field → line, for what is checked afterwards
}

// Decode reads a document into the struct that into points to. What is wrong is among the [Decoder.Mistakes].
func (d *Decoder) Decode(text []byte, into any) {
	d.lines = map[string]int{}
	document, more, err := parse(text)
	switch {
	case err != nil:
		why := faultText(err)
		if hint := hints[why]; hint != "" {
			why += " (" + hint + ")"
		}
		d.Mistake(faultLine(text, err), "", "not YAML: %s", why)
	case document == nil:
		d.Mistake(0, "", "the file is empty")
	default:
		d.decode(document, reflect.ValueOf(into).Elem(), "")
		if more != nil {
			d.Mistake(more.Line, "", "a second document begins here, which nothing would read")
		}
	}
}

// parse reads the file's document, and one more, where there is one that says something.
func parse(text []byte) (document, more *yaml.Node, err error) {
	var nodes [2]*yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for i := range nodes {
		var node yaml.Node
		switch err := decoder.Decode(&node); {
		case errors.Is(err, io.EOF):
		case err != nil:
			return nil, nil, err
		case len(node.Content) > 0 && (i == 0 || node.Content[0].Tag != "!!null"):
			nodes[i] = node.Content[0]
		}
	}
	return nodes[0], nodes[1], nil
}

// DropAfter forgets the mistakes after the first ones, which were found while reading, that these make pointless: what
// could not be read is empty now, and that it must not be is no second mistake.
func (d *Decoder) DropAfter(read Mistakes) {
	d.Drop(func(m Mistake) bool { return !slices.Contains(read, m) && read.Cover(m.Field) })
}

// Drop forgets mistakes that another one makes pointless.
func (d *Decoder) Drop(pointless func(Mistake) bool) {
	d.mistakes = slices.DeleteFunc(d.mistakes, pointless)
}

// Add notes the faults of an error that [errors.Join] made, each of which begins with its field and a colon.
func (d *Decoder) Add(err error) {
	for _, each := range setting.Faults(err) {
		field, text, _ := strings.Cut(each.Error(), ": ")
		d.Mistake(d.Line(field), field, "%s", text)
	}
}

// Mistake notes what is wrong with a field.
func (d *Decoder) Mistake(line int, field, format string, args ...any) {
	d.mistakes = append(d.mistakes, Mistake{Line: line, Field: field, Text: fmt.Sprintf(format, args...)})
}

// Line finds the line of a field, or of what it is in; 0 where the file has neither.
func (d *Decoder) Line(field string) int {
	for field != "" {
		if line, ok := d.lines[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 0
}

// Mistakes are those so far, in the order of the file's lines.
func (d *Decoder) Mistakes() Mistakes {
	d.mistakes = slices.Clone(d.mistakes)
	slices.SortStableFunc(d.mistakes, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	return d.mistakes
}

// faultText is what the YAML parser says, without its line.
func faultText(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		if _, after, ok := strings.Cut(rest, ": "); ok {
			text = after
		}
	}
	return text
}

// faultLine is where the YAML parser stopped. The line that it tells itself is often that of what it was in the middle
// of, or one beside. It is the first line after which the file may end and fail for the same reason.
func faultLine(text []byte, err error) int {
	lines := slices.Collect(bytes.Lines(text))
	why := faultText(err)
	size := 0
	sizes := make([]int, len(lines))
	for i, line := range lines {
		size += len(line)
		sizes[i] = size
	}
	return 1 + min(len(lines)-1, sort.Search(len(lines), func(i int) bool {
		_, _, err := parse(text[:sizes[i]])
		return err != nil && faultText(err) == why
	}))
}

func (d *Decoder) decode(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	d.lines[field] = node.Line
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return // as if it were absent
	}
	if scalar(into) {
		d.decodeScalar(node, into, field)
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.decodeStruct(node, into, field)
	case reflect.Slice:
		nodes := node.Content
		if node.Kind != yaml.SequenceNode {
			nodes = []*yaml.Node{node} // one alone needs no list
		}
		list := reflect.MakeSlice(into.Type(), len(nodes), len(nodes))
		for i, each := range nodes {
			d.decode(each, list.Index(i), fmt.Sprintf("%s[%d]", field, i))
		}
		into.Set(list)
	case reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.decode(node, into.Elem(), field)
	case reflect.Map:
		d.decodeMap(node, into, field)
	default:
		panic(fmt.Sprintf("strict: field %s is of type %s, which no file can hold", field, into.Type()))
	}
}

// indexes are those of lists in a field's path.
var indexes = regexp.MustCompile(`\[[0-9]+\]`)

func (d *Decoder) decodeStruct(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.Mistake(node.Line, field, "expected fields (%s), found %s", strings.Join(names(into.Type()), ", "), kind(node))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := join(field, key.Value)
		if line, ok := seen[key.Value]; ok {
			d.Mistake(key.Line, path, "given before, on line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		index := fieldIndex(into.Type(), key.Value)
		if index == nil {
			if remedy, ok := d.Removed[indexes.ReplaceAllString(path, "[]")]; ok {
				d.Mistake(key.Line, path, "is no field any more: %s", remedy)
				continue
			}
			d.Mistake(key.Line, path, "no such field%s", suggest(key.Value, names(into.Type())))
			continue
		}
		d.decode(value, into.FieldByIndex(index), path)
		d.lines[path] = key.Line
	}
}

func (d *Decoder) decodeMap(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.Mistake(node.Line, field, "expected names and values, found %s", kind(node))
		return
	}
	into.Set(reflect.MakeMap(into.Type()))
	for i := 0; i+1 < len(node.Content); i += 2 {
		value := reflect.New(into.Type().Elem()).Elem()
		d.decode(node.Content[i+1], value, join(field, node.Content[i].Value))
		into.SetMapIndex(reflect.ValueOf(node.Content[i].Value).Convert(into.Type().Key()), value)
	}
}

// scalar is whether a value is written as one word.
func scalar(v reflect.Value) bool {
	switch v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler, json.Unmarshaler:
		return true
	}
	switch v.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Uint16, reflect.Uint32, reflect.Float64:
		return true
	default:
		return false
	}
}

func (d *Decoder) decodeScalar(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.ScalarNode {
		d.Mistake(node.Line, field, "expected one value, found %s", kind(node))
		return
	}
	var err error
	switch target := into.Addr().Interface().(type) {
	case *netip.Prefix:
		if err = target.UnmarshalText([]byte(node.Value)); err != nil { // its own words are those of Go
			err = fmt.Errorf("%q is no prefix: write it as 192.0.2.0/24 or 2001:db8::/64", node.Value)
		}
	case encoding.TextUnmarshaler:
		err = target.UnmarshalText([]byte(node.Value))
	case json.Unmarshaler:
		text := []byte(node.Value)
		if node.Tag != "!!int" && node.Tag != "!!float" && node.Tag != "!!bool" {
			text, _ = json.Marshal(node.Value)
		}
		err = target.UnmarshalJSON(text)
	default:
		err = setBasic(into, node)
	}
	if err != nil {
		d.Mistake(node.Line, field, "%v", err)
	}
}

func setBasic(into reflect.Value, node *yaml.Node) error {
	switch into.Kind() {
	case reflect.String:
		if node.Tag != "!!str" {
			return fmt.Errorf("%s is not a text: put it in quotes", node.Value)
		}
		into.SetString(node.Value)
	case reflect.Bool:
		value, err := strconv.ParseBool(node.Value)
		if err != nil || node.Tag != "!!bool" {
			return fmt.Errorf("%q is neither true nor false", node.Value)
		}
		into.SetBool(value)
	case reflect.Float64:
		value, err := strconv.ParseFloat(node.Value, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", node.Value)
		}
		into.SetFloat(value)
	case reflect.Uint16, reflect.Uint32:
		value, err := strconv.ParseUint(node.Value, 10, into.Type().Bits())
		if err != nil {
			return fmt.Errorf("%q is not a whole number from 0 to %d", node.Value, uint64(1)<<into.Type().Bits()-1)
		}
		into.SetUint(value)
	default:
		value, err := strconv.ParseInt(node.Value, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", node.Value)
		}
		into.SetInt(value)
	}
	return nil
}

// names lists a struct's fields as the file writes them.
func names(t reflect.Type) []string {
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous && f.Tag.Get("json") == "" {
			all = append(all, names(f.Type)...)
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			all = append(all, name)
		}
	}
	return all
}

func fieldIndex(t reflect.Type, name string) []int {
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name && tag != "-" {
			return f.Index
		}
	}
	return nil
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}

func kind(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	default:
		return strconv.Quote(node.Value)
	}
}

// suggest names the field that may have been meant: one that differs by case, or begins or ends the same.
func suggest(word string, known []string) string {
	lower := strings.ToLower(word)
	i := slices.IndexFunc(known, func(k string) bool {
		k = strings.ToLower(k)
		return k == lower || k == lower+"s" || k+"s" == lower || setting.Near(k, lower)
	})
	if i < 0 {
		return " (there are " + strings.Join(known, ", ") + ")"
	}
	return " (did you mean " + known[i] + "?)"
}
