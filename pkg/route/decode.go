package route

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

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

// decoder turns YAML nodes into a struct and goes on after each mistake. The usual decoders stop at the first one,
// or do not tell its line.
type decoder struct {
	mistakes Mistakes
	lines    map[string]int // field → line, for what is checked afterwards
}

func (d *decoder) mistake(line int, field, format string, args ...any) {
	d.mistakes = append(d.mistakes, Mistake{Line: line, Field: field, Text: fmt.Sprintf(format, args...)})
}

// line finds the line of a field, or of what it is in.
func (d *decoder) line(field string) int {
	for field != "" {
		if line, ok := d.lines[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 0
}

// decodeFile reads one document into the struct that into points to.
func (d *decoder) decodeFile(text []byte, into any) {
	d.lines = map[string]int{}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		line := 0
		message := strings.TrimPrefix(err.Error(), "yaml: ")
		if n, err := fmt.Sscanf(message, "line %d:", &line); n == 1 && err == nil {
			_, message, _ = strings.Cut(message, ": ")
		}
		d.mistake(line, "", "not YAML: %s", message)
		return
	}
	if len(document.Content) == 0 {
		d.mistake(0, "", "the file is empty")
		return
	}
	d.decode(document.Content[0], reflect.ValueOf(into).Elem(), "")
}

func (d *decoder) decode(node *yaml.Node, into reflect.Value, field string) {
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
		panic(fmt.Sprintf("route: field %s is of type %s, which no file can hold", field, into.Type()))
	}
}

func (d *decoder) decodeStruct(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.mistake(node.Line, field, "expected fields (%s), found %s", strings.Join(names(into.Type()), ", "), kind(node))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		path := join(field, key.Value)
		if line, ok := seen[key.Value]; ok {
			d.mistake(key.Line, path, "given before, on line %d", line)
			continue
		}
		seen[key.Value] = key.Line
		index := fieldIndex(into.Type(), key.Value)
		if index == nil {
			d.mistake(key.Line, path, "no such field%s", suggest(key.Value, names(into.Type())))
			continue
		}
		d.decode(value, into.FieldByIndex(index), path)
		d.lines[path] = key.Line
	}
}

func (d *decoder) decodeMap(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.MappingNode {
		d.mistake(node.Line, field, "expected names and values, found %s", kind(node))
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

func (d *decoder) decodeScalar(node *yaml.Node, into reflect.Value, field string) {
	if node.Kind != yaml.ScalarNode {
		d.mistake(node.Line, field, "expected one value, found %s", kind(node))
		return
	}
	var err error
	switch target := into.Addr().Interface().(type) {
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
		d.mistake(node.Line, field, "%v", err)
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
		return k == lower || k == lower+"s" || k+"s" == lower || near(k, lower)
	})
	if i < 0 {
		return " (there are " + strings.Join(known, ", ") + ")"
	}
	return " (did you mean " + known[i] + "?)"
}

// near is whether two words differ by one letter: changed, missing, or swapped with its neighbour.
func near(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) < len(b) {
		return a[i:] == b[i+1:]
	}
	return i == len(a) || a[i+1:] == b[i+1:] ||
		i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}
