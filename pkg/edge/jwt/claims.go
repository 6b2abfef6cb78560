package jwt

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// find looks a claim up, by its name or by its path.
func find(claims map[string]any, name string) any {
	if value, ok := claims[name]; ok {
		return value
	}
	first, rest, ok := strings.Cut(name, ".")
	if !ok {
		return nil
	}
	inner, ok := claims[first].(map[string]any)
	if !ok {
		return nil
	}
	return find(inner, rest)
}

// satisfies reports whether a claim is there, and has one of the values if there are any.
func satisfies(name string, claim any, values []string) bool {
	switch claim := claim.(type) {
	case nil:
		return false
	case []any:
		for _, each := range claim {
			if satisfies("", each, values) {
				return true
			}
		}
		return false
	case string:
		if name == "scope" && len(values) > 0 {
			words := strings.Fields(claim)
			return slices.ContainsFunc(values, func(value string) bool { return slices.Contains(words, value) })
		}
		return len(values) == 0 || slices.Contains(values, claim)
	default:
		text, err := json.Marshal(claim)
		return err == nil && (len(values) == 0 || slices.Contains(values, string(text)))
	}
}

// headerValue writes a claim as a header: text as it is, a list of texts with commas, everything else as JSON. A
// value with anything but printable ASCII, or with a percent sign, is percent-encoded: decoding is always right.
func headerValue(claim any) string {
	text, ok := claim.(string)
	if list, isList := claim.([]any); isList {
		words := make([]string, 0, len(list))
		for _, each := range list {
			if word, isText := each.(string); isText && !strings.Contains(word, ",") {
				words = append(words, word)
			}
		}
		text, ok = strings.Join(words, ","), len(words) == len(list)
	}
	if !ok && claim != nil {
		encoded, err := json.Marshal(claim)
		if err != nil {
			return ""
		}
		text = string(encoded)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '%' }) {
		return url.PathEscape(text)
	}
	return strings.TrimSpace(text)
}
