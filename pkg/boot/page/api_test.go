package page

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// serve serves a page until the test ends.
func serve(t *testing.T, o Options) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	s := New(o)
	for pattern, handler := range s.Handlers() {
		mux.Handle(pattern, handler)
	}
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// get asks a server, and returns status, header and body.
func get(t *testing.T, url string, header ...string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

// description is the OpenAPI file, whose schemas are those of JSON Schema 2020-12.
type description struct {
	t        *testing.T
	compiler *jsonschema.Compiler
	document map[string]any
}

func describe(t *testing.T, text []byte) description {
	t.Helper()
	encoded, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	return description{t, c, document.(map[string]any)}
}

// check holds an answer to a schema.
func (d description) check(schema, answer string) {
	d.t.Helper()
	compiled, err := d.compiler.Compile("openapi.json#/components/schemas/" + schema)
	if err != nil {
		d.t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(answer))
	if err != nil {
		d.t.Fatalf("%v: %s", err, answer)
	}
	if err := compiled.Validate(value); err != nil {
		d.t.Errorf("not %s: %v\n%.2000s", schema, err, answer)
	}
}

// fill sets every field that it finds, so that none is left out of an answer.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1e9, 5e8).UTC()))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("192.0.2.1")))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("192.0.2.1:80")))
		return
	case journal.State:
		v.SetString(string(journal.Stuck))
		return
	case journal.Step:
		v.SetString(string(journal.Script))
		return
	case journal.Result:
		v.SetString(string(journal.Failed))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("some")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(3)
	case reflect.Uint64:
		v.SetUint(3)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[journal.State]int{"booting": 1, "stuck": 1, "booted": 1, "failed": 1, "quiet": 1}))
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
		if c, ok := v.Addr().Interface().(*journal.Cause); ok {
			c.Name = "not-found"
		}
	default:
		panic(v.Type().String())
	}
}

// Every property that the code can answer is described, and every one that is described is answered.
func TestOpenAPIDescribesEveryField(t *testing.T) {
	d := describe(t, openAPI)
	var list List
	var machine journal.MachineView
	problem := Problem{"Not Found", 404, "none"}
	answered := map[string]bool{}
	for schema, value := range map[string]any{"List": &list, "Machine": &machine, "Problem": &problem} {
		if schema != "Problem" {
			fill(reflect.ValueOf(value).Elem())
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		d.check(schema, string(text))
		var decoded any
		if err := json.Unmarshal(text, &decoded); err != nil {
			t.Fatal(err)
		}
		properties(decoded, answered)
	}
	described := map[string]bool{}
	schemas := d.document["components"].(map[string]any)["schemas"].(map[string]any)
	for _, schema := range schemas {
		collect(schema, described)
	}
	for name := range described {
		if !answered[name] {
			t.Errorf("%s is described and never answered", name)
		}
	}
}

var update = flag.Bool("update", false, "write anew what v1 of the API has, after an addition")

// What v1 has stays: each path, parameter, property and value that was described once. An addition is written to
// testdata/v1.txt by "go test ./pkg/boot/page -run Stays -update", and nothing is ever taken out of it by hand.
func TestWhatV1HasStays(t *testing.T) {
	var lines []string
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, each := range v {
				if name != "description" && name != "summary" && name != "info" && name != "example" {
					walk(at+"/"+name, each)
				}
			}
		case []any:
			for _, each := range v {
				if named, ok := each.(map[string]any); ok && named["name"] != nil {
					walk(fmt.Sprintf("%s/%v", at, named["name"]), each)
				} else {
					walk(at+"/-", each)
				}
			}
		default:
			lines = append(lines, fmt.Sprintf("%s = %v", at, v))
		}
	}
	walk("", describe(t, openAPI).document)
	slices.Sort(lines)
	lines = slices.Compact(lines)
	const file = "testdata/v1.txt"
	before, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(before)) {
		if !slices.Contains(lines, strings.TrimSpace(line)) {
			t.Errorf("gone from /api/v1: %s", strings.TrimSpace(line))
		}
	}
	text := strings.Join(lines, "\n") + "\n"
	switch {
	case *update && !t.Failed():
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	case !t.Failed() && text != string(before):
		t.Error("v1 has more than testdata/v1.txt: write it with -update")
	}
}

// properties gathers the names of all properties of a value.
func properties(v any, into map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, each := range v {
			into[name] = true
			properties(each, into)
		}
	case []any:
		for _, each := range v {
			properties(each, into)
		}
	}
}

// collect gathers the names of all properties of a schema.
func collect(schema any, into map[string]bool) {
	m, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if named, ok := m["properties"].(map[string]any); ok {
		for name, each := range named {
			into[name] = true
			collect(each, into)
		}
	}
	collect(m["items"], into)
}

// The answers of a server are as its description says, and every path and parameter of that is there.
func TestOpenAPIHoldsForAnswers(t *testing.T) {
	now := time.Now()
	f := newFake(site(60, now)...)
	server := serve(t, Options{Journal: f, Sources: oneSource})
	status, header, text := get(t, server.URL+"/api/v1/openapi.yaml")
	if status != http.StatusOK || header.Get("Content-Type") != "application/yaml" {
		t.Fatalf("got %d %v", status, header)
	}
	d := describe(t, []byte(text))
	id := site(60, now)[0].ID
	tests := map[string]struct {
		path, operation, schema string
		status                  int
	}{
		"list":         {"/api/v1/boots", "/api/v1/boots", "List", 200},
		"stuck":        {"/api/v1/boots?state=stuck&q=node", "/api/v1/boots", "List", 200},
		"a part":       {"/api/v1/boots?offset=3&limit=2", "/api/v1/boots", "List", 200},
		"no limit":     {"/api/v1/boots?limit=few", "/api/v1/boots", "Problem", 400},
		"misspelled":   {"/api/v1/boots?stat=stuck", "/api/v1/boots", "Problem", 400},
		"of a machine": {"/api/v1/boots/" + id + "?x=1", "/api/v1/boots/{id}", "Problem", 400},
		"named":        {"/api/v1/boots/" + site(60, now)[0].Name, "/api/v1/boots/{id}", "Machine", 200},
		"none":         {"/api/v1/boots?q=nonsense", "/api/v1/boots", "List", 200},
		"no state":     {"/api/v1/boots?state=dead", "/api/v1/boots", "Problem", 400},
		"machine":      {"/api/v1/boots/" + id, "/api/v1/boots/{id}", "Machine", 200},
		"spelled":      {"/api/v1/boots/" + strings.ToUpper(strings.ReplaceAll(id, ":", "-")), "/api/v1/boots/{id}", "Machine", 200},
		"unknown":      {"/api/v1/boots/02:00:00:00:00:01", "/api/v1/boots/{id}", "Problem", 404},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status, header, body := get(t, server.URL+test.path)
			if status != test.status {
				t.Fatalf("got %d %s", status, body)
			}
			d := description{t, d.compiler, d.document}
			d.check(test.schema, body)
			media, _ := d.find(test.operation, status)
			if !slices.Contains(media, header.Get("Content-Type")) {
				t.Errorf("got %s, described %v", header.Get("Content-Type"), media)
			}
		})
	}
}

// A list is given in parts, and not again to those who have it.
func TestPartsAndETags(t *testing.T) {
	f := newFake(site(60, time.Now())...)
	server := serve(t, Options{Journal: f})
	ids := func(query string) (ids []string) {
		_, _, body := get(t, server.URL+"/api/v1/boots"+query)
		var l List
		if err := json.Unmarshal([]byte(body), &l); err != nil {
			t.Fatal(err)
		}
		for _, m := range l.Machines {
			ids = append(ids, m.ID)
		}
		return ids
	}
	all := ids("")
	for query, want := range map[string][]string{
		"?limit=7": all[:7], "?offset=50": all[50:], "?offset=3&limit=2": all[3:5], "?offset=99": nil, "?limit=0": all,
	} {
		if got := ids(query); !slices.Equal(got, want) {
			t.Errorf("%s: %d machines, want %d", query, len(got), len(want))
		}
	}
	for _, path := range []string{"/api/v1/boots", "/api/v1/boots/" + all[0]} {
		_, header, _ := get(t, server.URL+path)
		tag := header.Get("ETag")
		if status, _, body := get(t, server.URL+path, "If-None-Match", tag); status != http.StatusNotModified || body != "" {
			t.Errorf("%s again: %d, %d bytes", path, status, len(body))
		}
		m, _ := f.Machine(all[0])
		m.Boots[0].End = m.Boots[0].End.Add(time.Second)
		f.put(m)
		testwait.Until(t, "it is another answer", func() bool {
			status, _, _ := get(t, server.URL+path, "If-None-Match", tag)
			return status == http.StatusOK
		})
	}
}

// find returns the media types of an answer.
func (d description) find(path string, status int) (media []string, found bool) {
	operation := d.document["paths"].(map[string]any)[path].(map[string]any)["get"].(map[string]any)
	answer, ok := operation["responses"].(map[string]any)[strconv.Itoa(status)]
	if !ok {
		d.t.Errorf("%s: status %d is not described", path, status)
		return nil, false
	}
	content := answer.(map[string]any)
	if reference, ok := content["$ref"].(string); ok {
		name := reference[strings.LastIndex(reference, "/")+1:]
		content = d.document["components"].(map[string]any)["responses"].(map[string]any)[name].(map[string]any)
	}
	for each := range content["content"].(map[string]any) {
		media = append(media, each)
	}
	return media, true
}

// events opens a stream until the test ends.
func events(t *testing.T, url string) *bufio.Scanner {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return lines
}
