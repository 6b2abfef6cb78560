package charttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// documented walks the schema's leaves: the values that the README documents.
func documented(schema map[string]any, path []string, visit func(path []string, leaf map[string]any)) {
	properties, _ := schema["properties"].(map[string]any)
	text, leaf := schema["description"].(string)
	if strings.HasPrefix(text, "No value any more: ") {
		return // whatever it is, the templates leave it out
	}
	if leaf || properties == nil {
		visit(path, schema)
		return
	}
	for key, each := range properties {
		if sub, ok := each.(map[string]any); ok {
			documented(sub, append(slices.Clone(path), key), visit)
		}
	}
}

// nest puts a value at a path.
func nest(path []string, value any) map[string]any {
	for i := len(path) - 1; i > 0; i-- {
		value = map[string]any{path[i]: value}
	}
	return map[string]any{path[0]: value}
}

// wrong are values of every type; one that a schema does not allow is taken.
func wrong(leaf map[string]any) any {
	types := fmt.Sprint(leaf["type"])
	switch {
	case leaf["enum"] != nil:
		return "no such choice"
	case strings.Contains(types, "string"):
		return map[string]any{"a": true}
	default:
		return "text"
	}
}

// rawSchema is the values' schema as it is written.
func rawSchema(t *testing.T) (raw map[string]any) {
	t.Helper()
	text, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestSchema(t *testing.T) {
	raw := rawSchema(t)
	schema := valuesSchema(t)
	text, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var defaults map[string]any
	if err := yaml.Unmarshal(text, &defaults); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(defaults); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	count := 0
	documented(raw, nil, func(path []string, leaf map[string]any) {
		count++
		name := strings.Join(path, ".")
		if err := schema.Validate(nest(path, wrong(leaf))); err == nil {
			t.Errorf("%s: %v is not refused", name, wrong(leaf))
		}
		if err := schema.Validate(nest(append(path[:len(path)-1:len(path)-1], path[len(path)-1]+"x"), leaf["default"])); err == nil {
			t.Errorf("%sx: an unknown key is not refused", name)
		}
		if leaf["description"] == nil || leaf["description"] == "" {
			t.Errorf("%s has no description", name)
		}
	})
	if count < 150 {
		t.Errorf("only %d values are documented", count)
	}
}

// unread are values that no template reads: a former chart's.
var unread = []string{"rufio"}

// TestEveryValueIsUsed finds values that no template reads.
func TestEveryValueIsUsed(t *testing.T) {
	raw := rawSchema(t)
	var templates strings.Builder
	err := filepath.WalkDir(chart+"/templates", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		templates.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := templates.String()
	documented(raw, nil, func(path []string, _ map[string]any) {
		last := path[len(path)-1]
		if !slices.Contains(unread, last) && !strings.Contains(all, "."+last) && !strings.Contains(all, `"`+last+`"`) {
			t.Errorf("no template reads %s", strings.Join(path, "."))
		}
	})
}

// TestEveryRouteFieldIsKnown compares the fields of values.routes with those of the proxy's routes file.
func TestEveryRouteFieldIsKnown(t *testing.T) {
	fields := func(file string, path ...string) map[string]any {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var at any
		if err := json.Unmarshal(text, &at); err != nil {
			t.Fatal(err)
		}
		for _, key := range path {
			if list, ok := at.([]any); ok {
				at = list[0]
				continue
			}
			object, ok := at.(map[string]any)
			if !ok {
				t.Fatalf("%s has no %v", file, path)
			}
			at = object[key]
		}
		properties, ok := at.(map[string]any)
		if !ok {
			t.Fatalf("%s has no %v", file, path)
		}
		return properties
	}
	proxy := fields(root+"/docs/routes.schema.json", "properties", "routes", "anyOf", "0", "properties")
	values := fields(chart+"/values.schema.json", "properties", "routes", "additionalProperties", "properties")
	for name := range proxy {
		if _, ok := values[name]; !ok && name != "name" {
			t.Errorf("schema.defs.yaml: a route of the proxy has %s, one of the values has not", name)
		}
	}
	for name, schema := range values {
		if description, _ := schema.(map[string]any)["description"].(string); strings.HasPrefix(description, "No value any more") {
			continue
		}
		if _, ok := proxy[name]; !ok && !slices.Contains([]string{"enabled", "port", "service"}, name) {
			t.Errorf("schema.defs.yaml: a route of the values has %s, one of the proxy has not", name)
		}
	}
}

// TestRefusalsNameWhatIsWanted, and not null, which Helm takes out of the values before the schema sees them.
func TestRefusalsNameWhatIsWanted(t *testing.T) {
	for text, want := range map[string]string{
		"replicas: many": "got string, want integer", "relay: {maxHops: many}": "got string, want integer",
		"relay: {logLevel: loud}": "value must be one of 'debug', 'info', 'warn', 'error'", "publicIP: [192.0.2.1]": "got array, want string",
	} {
		_, err := inProcess(release{}, from(t, text))
		if said := fmt.Sprint(err); err == nil || !strings.Contains(said, want) || strings.Contains(said, "null") || strings.Contains(said, "<nil>") {
			t.Errorf("%s: says %v\nwant %q", text, err, want)
		}
	}
	rendersFrom(t, "replicas: null\nproxy: null\npublicIP: null")
}
