package main

import (
	"bytes"
	"encoding/json"
)

// defaultsFile is read by the templates: a key that is null has its default from there, a value is given where it differs
// from there, and values of other charts are held to the patterns of this one's.
// Removed values are named with what to do about them.
const defaultsFile = "files/defaults.json"

func (c *chart) defaults() ([]byte, error) {
	values := map[string]any{}
	if err := collect(c.values, values); err != nil {
		return nil, err
	}
	patterns := map[string]any{}
	for name, definition := range c.definitions {
		d, ok := definition.(map[string]any)
		if !ok {
			continue
		}
		if items, ok := d["items"].(map[string]any); ok {
			d = items
		}
		if pattern, ok := d["pattern"]; ok {
			patterns[name] = pattern
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(map[string]any{
		"values": values, "patterns": patterns, "removed": c.definitions["removed"],
	})
	return out.Bytes(), err
}

// collect puts the default of each documented value under its path.
func collect(children []value, into map[string]any) error {
	for _, v := range children {
		if v.children != nil {
			if err := collect(v.children, into); err != nil {
				return err
			}
			continue
		}
		var preset any
		if err := v.preset.Decode(&preset); err != nil {
			return err
		}
		into[v.path] = preset
	}
	return nil
}
