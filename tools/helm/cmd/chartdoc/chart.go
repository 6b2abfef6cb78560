package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	schemaFile = "values.schema.json"
	readmeFile = "README.md"
	// routesSchema is the proxy's, from the chart's directory.
	routesSchema = "../../docs/routes.schema.json"
)

// The README's table stands between these.
const (
	begin = "<!-- values: made by make chart-docs -->\n"
	end   = "<!-- end of values -->\n"
)

// chart is what a chart's directory says of its values.
type chart struct {
	directory   string
	readme      []byte
	definitions map[string]any
	values      []value
}

// value is a key of values.yaml. Groups have children and no description of their own.
type value struct {
	path        string
	key         string
	description string
	intro       string     // what a group is
	preset      *yaml.Node // the default
	refinement  map[string]any
	children    []value
}

func load(directory string) (*chart, error) {
	c := &chart{directory: directory, definitions: map[string]any{}}
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			c.readme = nil
		}
		return content
	}
	if err := yaml.Unmarshal(read("schema.defs.yaml"), &c.definitions); err != nil {
		return nil, fmt.Errorf("failed to read schema.defs.yaml: %w", err)
	}
	names, err := alertNames(read("files/alerts.yaml"))
	if err != nil {
		return nil, fmt.Errorf("failed to read files/alerts.yaml: %w", err)
	}
	c.definitions["alertNames"] = names
	fields, err := routeFields(read(routesSchema))
	if err != nil {
		return nil, fmt.Errorf("failed to read %s: %w", routesSchema, err)
	}
	c.definitions["routeFields"] = fields
	c.readme = read(readmeFile)
	var document yaml.Node
	if err := yaml.Unmarshal(read("values.yaml"), &document); err != nil {
		return nil, fmt.Errorf("failed to read values.yaml: %w", err)
	}
	if len(document.Content) == 0 {
		return nil, fmt.Errorf("no values.yaml in %s", directory)
	}
	c.values, err = values(document.Content[0], "")
	return c, err
}

// alertNames is a schema that has one property for each alert, so that a misspelt one is refused.
func alertNames(text []byte) (map[string]any, error) {
	var alerts []struct{ Alert string }
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		return nil, err
	}
	properties := map[string]any{}
	for _, a := range alerts {
		properties[a.Alert] = map[string]any{"use": "alert"}
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}, nil
}

// routeFields are the fields of a route as the proxy's own schema has them, but for its name, which is a key here.
func routeFields(text []byte) (map[string]any, error) {
	var schema struct {
		Properties struct {
			Routes struct {
				AnyOf []struct{ Properties map[string]any }
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		return nil, err
	}
	if len(schema.Properties.Routes.AnyOf) == 0 || len(schema.Properties.Routes.AnyOf[0].Properties) == 0 {
		return nil, errors.New("it has no fields of a route")
	}
	fields := schema.Properties.Routes.AnyOf[0].Properties
	delete(fields, "name")
	return fields, nil
}

func values(node *yaml.Node, prefix string) ([]value, error) {
	var all []value
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, child := node.Content[i], node.Content[i+1]
		v := value{key: key.Value, path: prefix + key.Value, preset: child}
		if err := v.comment(key.HeadComment); err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
		if child.Kind == yaml.MappingNode && len(child.Content) > 0 && v.refinement == nil {
			var err error
			if v.children, err = values(child, v.path+"."); err != nil {
				return nil, err
			}
		} else if v.description == "" {
			return nil, fmt.Errorf("%s has no comment that begins with --", v.path)
		}
		all = append(all, v)
	}
	return all, nil
}

// comment reads the last paragraph of the comment above a key.
func (v *value) comment(text string) error {
	paragraphs := strings.Split(text, "\n\n")
	var described, schema, plain []string
	inSchema := false
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(line, "#"), " "), "\n")
		switch rest, ok := strings.CutPrefix(line, "@schema"); {
		case ok:
			inSchema = true
			schema = append(schema, rest)
		case inSchema:
			schema = append(schema, line)
		case strings.HasPrefix(line, "-- "):
			described = []string{strings.TrimPrefix(line, "-- ")}
		case len(described) > 0:
			described = append(described, line)
		default:
			plain = append(plain, line)
		}
	}
	v.description, v.intro = strings.Join(described, " "), strings.Join(plain, " ")
	if !inSchema {
		return nil
	}
	if err := yaml.Unmarshal([]byte(strings.Join(schema, "\n")), &v.refinement); err != nil {
		return fmt.Errorf("failed to read @schema: %w", err)
	}
	return nil
}

// files makes what is generated.
func (c *chart) files() (map[string][]byte, error) {
	root, err := c.object(c.values)
	if err != nil {
		return nil, err
	}
	if err := c.foreign(root); err != nil {
		return nil, err
	}
	if err := c.removed(root); err != nil {
		return nil, err
	}
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Values of the chart " + filepath.Base(c.directory)
	var schema bytes.Buffer
	encoder := json.NewEncoder(&schema)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(root); err != nil {
		return nil, err
	}
	before, rest, ok := bytes.Cut(c.readme, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		return nil, fmt.Errorf("%s has no place for the values: %q and %q", readmeFile, begin, end)
	}
	var readme bytes.Buffer
	readme.Write(before)
	readme.WriteString(begin)
	if err := c.tables(&readme); err != nil {
		return nil, err
	}
	readme.WriteString(end)
	readme.Write(after)
	defaults, err := c.defaults()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{schemaFile: schema.Bytes(), readmeFile: readme.Bytes(), defaultsFile: defaults}, nil
}

// foreign lets the keys of another chart pass, which schema.defs.yaml lists by group: the templates refuse them, with a
// sentence that says what to set here. A group that is not there is a mistake.
func (c *chart) foreign(root map[string]any) error {
	groups, _ := c.definitions["foreign"].(map[string]any)
	for path, list := range groups {
		names, ok := list.([]any)
		if !ok {
			return fmt.Errorf("foreign.%s is no list", path)
		}
		group := root
		if path != "top" {
			properties, _ := root["properties"].(map[string]any)
			if group, ok = properties[path].(map[string]any); !ok {
				return fmt.Errorf("foreign.%s is no group of values", path)
			}
		}
		var either []string
		for _, name := range names {
			either = append(either, regexp.QuoteMeta(fmt.Sprint(name)))
		}
		pattern := "^(" + strings.Join(either, "|") + ")$"
		if path == "top" { // keys of the user's own, for YAML's anchors; the templates refuse those with _ and .
			pattern += "|^(x-|_|\\.)"
		}
		group["patternProperties"] = map[string]any{pattern: true}
	}
	return nil
}

// removed lets the values pass that schema.defs.yaml lists as removed: the templates leave them out, and say so.
func (c *chart) removed(root map[string]any) error {
	list, _ := c.definitions["removed"].(map[string]any)
	for path, remedy := range list {
		at, keys := root, strings.Split(path, ".")
		for i, key := range keys {
			properties, ok := at["properties"].(map[string]any)
			if i == len(keys)-1 && ok {
				properties[key] = map[string]any{"description": fmt.Sprint("No value any more: ", remedy)}
				break
			}
			if key == "*" {
				at, ok = at["additionalProperties"].(map[string]any)
			} else if ok {
				at, ok = properties[key].(map[string]any)
			}
			if !ok {
				return fmt.Errorf("removed: %s is in no group of values", path)
			}
		}
	}
	return nil
}

// object is the schema of a group: its keys and no others.
func (c *chart) object(children []value) (map[string]any, error) {
	properties := map[string]any{}
	for _, v := range children {
		schema, err := c.schema(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.path, err)
		}
		properties[v.key] = schema
	}
	return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}, nil
}

func (c *chart) schema(v value) (map[string]any, error) {
	if v.children != nil {
		return c.object(v.children)
	}
	schema := map[string]any{"description": v.description}
	var preset any
	if err := v.preset.Decode(&preset); err != nil {
		return nil, err
	}
	schema["default"] = preset
	resolved, err := c.resolve(v.refinement)
	if err != nil {
		return nil, err
	}
	nullable(resolved)
	for key, part := range resolved {
		schema[key] = part
	}
	if _, ok := schema["type"]; ok || schema["enum"] != nil {
		return schema, nil
	}
	switch preset.(type) {
	case string:
		schema["type"] = "string"
	case bool:
		schema["type"] = "boolean"
	case int:
		schema["type"] = "integer"
	case map[string]any:
		schema["type"] = "object"
	case []any:
		return nil, errors.New("a list needs an @schema that says of what")
	default:
		return nil, fmt.Errorf("a default of type %T needs an @schema", preset)
	}
	return schema, nil
}

// resolve puts definitions in place of "use".
func (c *chart) resolve(schema map[string]any) (map[string]any, error) {
	out := map[string]any{}
	if name, ok := schema["use"].(string); ok {
		definition, ok := c.definitions[name].(map[string]any)
		if !ok {
			return nil, fmt.Errorf("no %q in schema.defs.yaml", name)
		}
		resolved, err := c.resolve(definition)
		if err != nil {
			return nil, err
		}
		out = resolved
	}
	for key, part := range schema {
		if key == "use" {
			continue
		}
		if nested, ok := part.(map[string]any); ok {
			resolved, err := c.resolve(nested)
			if err != nil {
				return nil, err
			}
			part = resolved
		}
		out[key] = part
	}
	return out, nil
}

// tables writes first what schema.defs.yaml lists as first, then what is at the top, and then each group.
func (c *chart) tables(out *bytes.Buffer) error {
	section := func(heading, intro string, values []value) error {
		fmt.Fprintf(out, "\n### %s\n%s\n\n| value | default | what it is for |\n|---|---|---|\n", heading, intro)
		return table(out, values)
	}
	var first, top []value
	names, _ := c.definitions["first"].([]any)
	for _, name := range names {
		v, ok := find(c.values, fmt.Sprint(name))
		if !ok {
			return fmt.Errorf("first: there is no value %v", name)
		}
		first = append(first, v)
	}
	for _, v := range c.values {
		if v.children == nil {
			top = append(top, v)
		}
	}
	if err := section("Set these", "What differs between installations, the most common first.", first); err != nil {
		return err
	}
	if err := section("At the top", "Values in no group.", top); err != nil {
		return err
	}
	for _, v := range c.values {
		if v.children != nil {
			if err := section("`"+v.key+"`", v.intro, v.children); err != nil {
				return err
			}
		}
	}
	return nil
}

// find is the value of a path.
func find(all []value, path string) (value, bool) {
	for _, v := range all {
		if v.path == path {
			return v, true
		}
		if found, ok := find(v.children, path); ok {
			return found, true
		}
	}
	return value{}, false
}

func table(out *bytes.Buffer, children []value) error {
	for _, v := range children {
		if v.children != nil {
			if err := table(out, v.children); err != nil {
				return err
			}
			continue
		}
		var preset any
		if err := v.preset.Decode(&preset); err != nil {
			return err
		}
		text, err := json.Marshal(preset)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "| `%s` | `%s` | %s |\n", v.path, text, strings.ReplaceAll(v.description, "|", "\\|"))
	}
	return nil
}
