package charttest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp/syntax"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// generator makes random values by the chart's schema.
type generator struct {
	*rand.Rand
}

// confusing are strings that are something else where nobody quotes them, for wherever the schema takes them.
var confusing = []string{"true", "null", "no", "1e3", "0x10", "012", "1.0", "~", "a: b", "# a", "- a", "2026-11-22", "{a}", `"`, "a\nb", "é"}

// samples stand where the schema takes any object, by the last key of the path.
var samples = map[string][]string{
	"affinity":                  {"{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}"},
	"tolerations":               {"[]", "[{key: a, operator: Exists, effect: NoSchedule}]", `[{key: a, value: "true"}]`},
	"topologySpreadConstraints": {"[{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]"},
	"podSecurityContext":        {"{runAsUser: 5, sysctls: [{name: net.core.somaxconn, value: \"1\"}]}", "{fsGroup: 7}"},
	"podSpec":                   {"{hostname: a}", "{dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.1]}, enableServiceLinks: true}", "{nodeSelector: {a: b}}"},
	"updateStrategy":            {"{type: Recreate}", "{type: RollingUpdate, rollingUpdate: {maxSurge: 50%}}"},
	"extraVolumes":              {"[{name: extra, emptyDir: {}}]", "[{name: files, emptyDir: {}}]", "[{name: secret-a, configMap: {name: a}}]"},
	"extraVolumeMounts":         {"[{name: extra, mountPath: /extra}]", "[{name: routes, mountPath: /etc/stack-proxy}]"},
	"extraContainers":           {"[{name: sidecar, image: a}]", "[{name: dhcp-relay, image: a}]"},
	"extraInitContainers":       {"[{name: before, image: a, restartPolicy: Always}]"},
	"extraObjects":              {"[{apiVersion: v1, kind: ConfigMap, metadata: {name: extra, namespace: a}}]", `["{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: a}}"]`},
	"valueFrom":                 {"{fieldRef: {fieldPath: status.podIP}}"},
	"resources":                 {"{}", "{limits: {memory: 1Gi}, requests: {cpu: 1}}", "{limits: {memory: 1e8}}"},
	"from":                      {"[{ipBlock: {cidr: 192.0.2.0/24}}]"}, "adminFrom": {"[{namespaceSelector: {}}]"}, "egress": {"[{}]"},
	"relabelings":       {"[{action: replace, targetLabel: a, replacement: b}]"},
	"metricRelabelings": {"[{action: drop, regex: a, sourceLabels: [b]}]"},
	"tls":               {"[{hosts: [a.example], secretName: a}]"},
	"parentRefs":        {"[{name: gw}]", "[{name: gw, namespace: b, sectionName: c}]"},
	"hostnames":         {"[a.example]"}, "matches": {"[]"}, "filters": {"[]"}, "timeouts": {"{}"}, "middlewares": {"[{name: a}]"},
	"forwardAuth": {"{address: 'http://a'}"}, "rateLimit": {"{average: 1}"}, "limits": {"{}", "{connections: 5}"},
	"jwt":   {"{issuer: 'https://a.example', audience: a}"},
	"stack": {"{}", "{relay: {sourceInterface: eno1}}", "{name: boot, hook: {port: 8081}, service: {enabled: false}}", "{enabled: false}", "{hostNetwork: true, foo: 1}"},
	"smee":  {"{}", "{name: smee, hostNetwork: true}", "{http: {port: '7080'}}"}, "hegel": {"{service: {port: 50061}}"}, "tink": {"{server: {name: tink}}"},
	"rufio": {"{a: b}"}, "boots": {"{a: b}"},
	"global":        {"{}", "{publicIP: 192.0.2.7}", "{imageRegistry: registry.example, imagePullSecrets: [a]}", "{other: {a: 1}}", "{trustedProxies: ['10.0.0.0']}"},
	"preset":        {"classic", "tinkerbell", "tinkerbell-0.22", "none"},
	"linkAddresses": {"[]", "[192.0.2.1]"},
	"hosts":         {"[{host: a.example, paths: [{path: /, route: hegel}]}]", "[{host: '', paths: [{route: files}, {path: /b, pathType: Exact, route: smee-http}]}]", "[{host: '*.example', paths: [{route: tftp}]}]"},
	"routes":        {"{}", "{hegel: {enabled: false}, tink: {port: 42114}}", "{a: {protocol: tcp, port: 5000, backends: ['a:1']}, 'null': {protocol: udp, listen: [5001, '192.0.2.1:5002'], backends: ['service:b/a:c']}}", "{hegel: {hosts: [a.example], optional: false}, b: {protocol: grpc, port: 50061, hosts: b.example, backends: ['b:1']}}", "{smee-tftp: {tftp: {source: transparent}}, tink: {service: false}}"},
	"nodePorts":     {"{}", "{dhcp: 30067}", "{files: 30080, dhcp: 30080}"},
	"except":        {"[]", "[files]"},
	"gatewayRoutes": {"{}", "{a: {kind: HTTPRoute, route: files, parentRefs: [{name: gw}], hostnames: [a.example]}}", "{a: {kind: UDPRoute, route: dhcp, parentRefs: [{name: gw}], labels: {a: '1'}}}"},
	"ingressRoutes": {"{}", "{a: {route: files, match: 'Host(`a`)', inFlight: 5, stripPrefix: /a, rateLimit: {average: 1}, forwardAuth: {address: 'http://a'}}}"},
}

// values gives each key of a group a value with a small chance, so that most files have some, and few have what
// contradicts.
func (g generator) values(schema map[string]any, chance float64) map[string]any {
	out := map[string]any{}
	properties, _ := schema["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		property, ok := properties[key].(map[string]any)
		if !ok {
			continue
		}
		_, leaf := property["description"]
		if inner, _ := property["properties"].(map[string]any); !leaf && inner != nil {
			if group := g.values(property, chance); len(group) > 0 {
				out[key] = group
			}
			continue
		}
		if g.Float64() < chance {
			out[key] = g.value(key, property)
		}
	}
	return out
}

// value is one that the schema takes.
func (g generator) value(key string, schema map[string]any) any {
	if g.IntN(12) == 0 && slices.Contains(types(schema), "null") {
		return nil
	}
	if texts := samples[key]; texts != nil {
		var out any
		if err := yaml.Unmarshal([]byte(texts[g.IntN(len(texts))]), &out); err != nil {
			panic(fmt.Sprintf("%s: %v", key, err))
		}
		return out
	}
	if choices, ok := schema["enum"].([]any); ok {
		return choices[g.IntN(len(choices))]
	}
	if choices, ok := schema["anyOf"].([]any); ok {
		if choice, ok := choices[g.IntN(len(choices))].(map[string]any); ok {
			return g.value(key, choice)
		}
	}
	kinds := slices.DeleteFunc(types(schema), func(kind string) bool { return kind == "null" })
	if len(kinds) == 0 {
		return nil
	}
	switch kinds[g.IntN(len(kinds))] {
	case "boolean":
		return g.IntN(2) == 0
	case "integer", "number":
		return g.number(schema)
	case "string":
		return g.text(schema)
	case "array":
		items, _ := schema["items"].(map[string]any)
		list := []any{}
		for range int(bound(schema, "minItems", 0)) + g.IntN(3) {
			each := g.value("", items)
			if unique, _ := schema["uniqueItems"].(bool); !unique || !slices.ContainsFunc(list, func(o any) bool { return fmt.Sprint(o) == fmt.Sprint(each) }) {
				list = append(list, each)
			}
		}
		if most := int(bound(schema, "maxItems", 9)); len(list) > most {
			list = list[:most]
		}
		return list
	default:
		return g.object(schema)
	}
}

func (g generator) object(schema map[string]any) map[string]any {
	out := map[string]any{}
	required, _ := schema["required"].([]any)
	properties, _ := schema["properties"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(properties)) {
		if property, ok := properties[key].(map[string]any); ok && (slices.Contains(required, any(key)) || g.IntN(3) == 0) {
			out[key] = g.value(key, property)
		}
	}
	if additional, ok := schema["additionalProperties"].(map[string]any); ok {
		names, _ := schema["propertyNames"].(map[string]any)
		for range g.IntN(3) {
			out[g.text(names)] = g.value("", additional)
		}
	}
	return out
}

func (g generator) number(schema map[string]any) any {
	least := bound(schema, "minimum", 0)
	most := bound(schema, "maximum", least+5000)
	return int(least) + g.IntN(int(most-least)+1)
}

// text is confusing where it may be.
func (g generator) text(schema map[string]any) string {
	pattern, _ := schema["pattern"].(string)
	shortest, longest := int(bound(schema, "minLength", 0)), int(bound(schema, "maxLength", 60))
	if pattern == "" {
		if g.IntN(2) == 0 {
			return confusing[g.IntN(len(confusing))]
		}
		return "text"
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		panic(err)
	}
	known := match(pattern)
	compiled := func(s string) bool { return len(s) >= shortest && known(s) }
	if g.IntN(3) == 0 {
		fit := slices.DeleteFunc(slices.Clone(confusing), func(s string) bool { return !compiled(s) })
		if len(fit) > 0 {
			return fit[g.IntN(len(fit))]
		}
	}
	for {
		var out strings.Builder
		g.write(&out, parsed.Simplify())
		if text := out.String(); len(text) <= longest && compiled(text) {
			return text
		}
	}
}

// write writes what a regular expression matches.
func (g generator) write(out *strings.Builder, re *syntax.Regexp) {
	repeat := func(least, most int) {
		for range least + g.IntN(most-least+1) {
			g.write(out, re.Sub[0])
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		out.WriteString(string(re.Rune))
	case syntax.OpCharClass:
		i := 2 * g.IntN(len(re.Rune)/2)
		low, high := re.Rune[i], min(re.Rune[i+1], 126)
		if low = max(low, 33); low > high {
			low, high = 'a', 'z'
		}
		out.WriteRune(low + rune(g.IntN(int(high-low)+1)))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		out.WriteRune('a' + rune(g.IntN(26)))
	case syntax.OpStar:
		repeat(0, 3)
	case syntax.OpPlus:
		repeat(1, 3)
	case syntax.OpQuest:
		repeat(0, 1)
	case syntax.OpAlternate:
		g.write(out, re.Sub[g.IntN(len(re.Sub))])
	case syntax.OpConcat, syntax.OpCapture:
		for _, sub := range re.Sub {
			g.write(out, sub)
		}
	}
}

func types(schema map[string]any) []string {
	switch kind := schema["type"].(type) {
	case string:
		return []string{kind}
	case []any:
		var all []string
		for _, each := range kind {
			all = append(all, fmt.Sprint(each))
		}
		return all
	}
	return nil
}

func bound(schema map[string]any, key string, otherwise float64) float64 {
	if n, ok := schema[key].(float64); ok {
		return n
	}
	return otherwise
}
