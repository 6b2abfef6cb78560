package main

import "slices"

// nullable lets every property below a value be null that its object does not require: a key that is set to null has its
// default. Where the chart has one Helm takes the key out before it looks at the schema, which so need not have null in each
// type, nor each message "null or".
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
