package route

import (
	"os"
	"strings"
	"testing"
)

// The example in the document is one that works.
func TestDocumentedEdge(t *testing.T) {
	text, err := os.ReadFile("../../docs/edge.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if _, err := Parse([]byte(example), Defaults{}); !ok || err != nil {
		t.Errorf("%v in\n%s", err, example)
	}
}

func TestEdgeMistakes(t *testing.T) {
	const head = "routes:\n"
	tests := map[string]struct {
		text string
		want []string // mistakes, by how they begin
	}{
		"two hosts on one port": {text: `
- {name: a, protocol: http, listen: 80, backends: "x:1", hosts: a.example.org}
- {name: b, protocol: files, listen: 80, hosts: [b.example.org, "*.c.example.org"]}
- {name: c, protocol: http, listen: 80, backends: "x:1"}
`},
		"the same host on one port": {text: `
- {name: a, protocol: http, listen: 80, backends: "x:1", hosts: a.example.org}
- {name: b, protocol: files, listen: 80, hosts: A.example.org}
`, want: []string{`line 4: routes[1].listen[0]: :80/tcp is taken by route a: host "a.example.org" is in two routes`}},
		"no hosts": {text: `
- {name: a, protocol: http, listen: 80, backends: "x:1"}
- {name: b, protocol: files, listen: 80}
`, want: []string{"line 4: routes[1].listen[0]: :80/tcp is taken by route a; routes share a port by hosts"}},
		"TLS on one of two": {text: `
- {name: a, protocol: files, listen: 443, hosts: a, tls: {certificates: {certificate: /a, key: /b}}}
- {name: b, protocol: files, listen: 443, hosts: b}
`, want: []string{"line 4: routes[1].listen[0]: :443/tcp is taken by route a, and either both have tls or none"}},
		"not HTTP": {text: `
- {name: a, protocol: tcp, listen: 80, backends: "x:1", hosts: a, rewrite: {stripPrefix: /a}, tls: {certificates: {certificate: /a, key: /b}}}
- {name: b, protocol: grpc, listen: 81, backends: "x:1", rewrite: {stripPrefix: /a}}
- {name: c, protocol: tftp, listen: 69, backends: "x:1", limits: {requests: {preset: files}}}
`, want: []string{
			"line 3: routes[0].hosts: does not apply to protocol tcp", "line 3: routes[0].rewrite: does not apply to protocol tcp",
			"line 3: routes[0].tls: does not apply to protocol tcp",
			"line 4: routes[1].rewrite: does not apply to protocol grpc",
			"line 5: routes[2].limits.requests: does not apply to protocol tftp",
		}},
		"TLS to backends": {text: `
- {name: a, protocol: http, listen: 80, backends: "x:1", backendTLS: {ca: a}}
- {name: b, protocol: http, listen: 81, backends: "x:1", backendTLS: {name: b}}
- {name: c, protocol: tcp, listen: 82, backends: "x:1", backendTLS: {name: c}}
- {name: d, protocol: tftp, listen: 82, backends: "x:1", backendTLS: {name: c}, tls: {certificates: {certificate: /a, key: b}}}
- {name: e, protocol: tcp, listen: 84, backends: "x:1", tls: {certificates: {certificate: /a, key: /b}}}
`, want: []string{
			"line 3: routes[0].backendTLS.ca: ", "line 3: routes[0].backendTLS.name: missing",
			"line 5: routes[2].backendTLS: does not apply to protocol tcp",
			"line 6: routes[3].backendTLS: does not apply to protocol tftp", "line 6: routes[3].tls: does not apply to protocol tftp",
			"line 7: routes[4].tls: does not apply to protocol tcp",
		}},
		"parts that are wrong": {text: `
- name: a
  protocol: http
  listen: 80
  backends: "x:1"
  hosts: "a b"
  tls:
    minVersion: 1.1
  jwt:
    issuer: https://example.org
    audience: x
    algorithms: [none]
    forwards: {}
  rewrite:
    regex: "/(a"
    replacement: /
  limits:
    requests: {total: {perSecond: -1}}
`, want: []string{
			"line 7: routes[0].hosts[0]: ", "line 8: routes[0].tls.certificates: missing", "line 9: routes[0].tls.minVersion: ",
			"line 13: routes[0].jwt.algorithms[0]: ", "line 14: routes[0].jwt.forwards: no such field (did you mean forward?)",
			"line 16: routes[0].rewrite.regex: ", "line 19: routes[0].limits.requests.total.perSecond: ",
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(head+test.text), Defaults{})
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %d mistakes, want %d:\n%v", len(got), len(test.want), err)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], test.want[i]) {
					t.Errorf("got %s\nwant %s", got[i], test.want[i])
				}
			}
		})
	}
}
