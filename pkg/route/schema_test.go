package route

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/internal/setting"
)

var update = flag.Bool("update", false, "write the schema anew")

// The schema of a routes file is made from the types, by "make generate": editors complete and check by it.
func TestSchemaAgreesWithCode(t *testing.T) {
	const document = "../../docs/routes.schema.json"
	made, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(document, made, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there, err := os.ReadFile(document)
	if err != nil || !bytes.Equal(made, there) {
		t.Errorf("%s is not what the code says (make generate writes it): %v", document, err)
	}
}

// schema is the JSON schema of a routes file. It knows less than [Parse], which also sees what does not go together.
func schema() ([]byte, error) {
	s := schemaOf(reflect.TypeFor[Table](), "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "stack-proxy routes"
	text, err := json.MarshalIndent(s, "", "  ")
	return append(text, '\n'), err
}

const (
	positiveForm = `(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`
	durationForm = `^[-+]?` + positiveForm
	rateForm     = `^[0-9]+(|\.[0-9]+[kMGT]|[kMGT])$`
	octetForm    = `(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])`
	prefixForm   = `^(` + octetForm + `(\.` + octetForm + `){3}/(3[0-2]|[12]?[0-9])` +
		`|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$`
)

// bound narrows a field's schema by its tags min, max (numbers and durations, of which min is 0) and form.
func bound(property map[string]any, tag reflect.StructTag) {
	items := []map[string]any{property}
	for _, each := range asList(property["anyOf"]) {
		items = append(items, each)
		if list, ok := each["items"].(map[string]any); ok {
			items = append(items, list)
		}
	}
	for _, s := range items {
		if form := tag.Get("form"); form != "" && s["type"] == "string" {
			s["pattern"] = form
		}
		if s["pattern"] == durationForm && tag.Get("min") == "0" {
			s["pattern"] = "^[+]?" + positiveForm
		}
		for key, from := range map[string]string{"minimum": "min", "maximum": "max"} {
			if n, err := strconv.Atoi(tag.Get(from)); err == nil && s["type"] == "integer" {
				s[key] = n
			}
		}
	}
}

func asList(anyOf any) []map[string]any {
	var all []map[string]any
	list, _ := anyOf.([]any)
	for _, each := range list {
		if s, ok := each.(map[string]any); ok {
			all = append(all, s)
		}
	}
	return all
}

func schemaOf(t reflect.Type, enum string) map[string]any {
	text := func(pattern string) map[string]any {
		if pattern == "" {
			return map[string]any{"type": "string"}
		}
		return map[string]any{"type": "string", "pattern": pattern}
	}
	switch t {
	case reflect.TypeFor[setting.Duration]():
		return text(durationForm)
	case reflect.TypeFor[setting.Rate]():
		return map[string]any{"type": []string{"string", "integer"}, "pattern": rateForm, "minimum": 0}
	case reflect.TypeFor[Listen]():
		return map[string]any{"type": []string{"string", "integer"}, "minimum": 1, "maximum": 65535}
	case reflect.TypeFor[Backend]():
		return text(":")
	case reflect.TypeFor[netip.Prefix]():
		return text(prefixForm)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), enum)
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem(), "")}
	case reflect.Float64:
		return map[string]any{"type": "number", "minimum": 0}
	case reflect.Struct:
		properties := map[string]any{}
		required := []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			property := schemaOf(f.Type, f.Tag.Get("enum"))
			bound(property, f.Tag)
			if desc := f.Tag.Get("desc"); desc != "" {
				property["description"] = desc
			}
			properties[name] = property
			if options == "" {
				required = append(required, name)
			}
		}
		s := map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
		if len(required) > 0 {
			s["required"] = required
		}
		return s
	case reflect.Slice:
		item := schemaOf(t.Elem(), "")
		return map[string]any{"anyOf": []any{item, map[string]any{"type": "array", "items": item}}}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		s := text("")
		if enum != "" {
			s["enum"] = strings.Split(enum, ",")
		}
		return s
	default:
		return map[string]any{"type": "integer"}
	}
}
