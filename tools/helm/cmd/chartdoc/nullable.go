package main

import "slices"

// nullable lets every property be null that its object does not require: a key that is set to null has its default.
// Helm takes such a key out where the chart has a default, and leaves it where there is none.
func nullable(schema any) {
	switch s := schema.(type) {
	case []any:
		for _, each := range s {
			nullable(each)
		}
	case map[string]any:
		for key, part := range s {
			if key != "default" && key != "enum" {
				nullable(part)
			}
		}
		required, _ := s["required"].([]any)
		if properties, ok := s["properties"].(map[string]any); ok {
			for name, property := range properties {
				if !slices.Contains(required, any(name)) {
					orNull(property)
				}
			}
		}
		orNull(s["additionalProperties"])
	}
}

// orNull adds null to what a schema allows.
func orNull(schema any) {
	s, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if values, ok := s["enum"].([]any); ok && !slices.Contains(values, nil) {
		s["enum"] = append(slices.Clone(values), nil)
	}
	switch kind := s["type"].(type) {
	case string:
		s["type"] = []any{kind, "null"}
	case []any:
		if !slices.Contains(kind, any("null")) {
			s["type"] = append(slices.Clone(kind), "null")
		}
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if choices, ok := s[key].([]any); ok {
			s[key] = append(slices.Clone(choices), map[string]any{"type": "null"})
		}
	}
}
