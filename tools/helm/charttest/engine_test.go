package charttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

var load = sync.OnceValues(func() (*chartv2.Chart, error) { return loader.Load(chart) })

// release is what an installation has beside its values.
type release struct {
	name       string // default stack
	kubernetes string // default v1.36.0
	skipSchema bool   // the caller has looked
	noPreset   bool   // else it is classic, where the values name none
}

// rendered is what Helm's engine makes of the chart, by template.
type rendered map[string]string

// notes is what the user reads after an installation.
func (r rendered) notes() string { return r["stack/templates/NOTES.txt"] }

// documents are the objects' texts, in the order of their templates.
func (r rendered) documents() []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		for _, document := range strings.Split(r[name], "\n---") {
			if strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(document), "---")) != "" {
				all = append(all, document)
			}
		}
	}
	return all
}

// object finds an object by its kind and the end of its name, and reads it into what the caller has.
func (r rendered) object(t *testing.T, kind, end string, into any) {
	t.Helper()
	for _, document := range r.documents() {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if head.Kind == kind && strings.HasSuffix(head.Metadata.Name, end) {
			if err := yaml.UnmarshalStrict([]byte(document), into, yaml.DisallowUnknownFields); err != nil {
				t.Fatalf("%v\n%s", err, document)
			}
			return
		}
	}
	t.Fatalf("no %s *%s", kind, end)
}

// inProcess renders by Helm's engine in this process, as helm template does.
func inProcess(at release, values map[string]any) (rendered, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	if at.name == "" {
		at.name = "stack"
	}
	if at.kubernetes == "" {
		at.kubernetes = "v1.36.0"
	}
	version, err := common.ParseKubeVersion(at.kubernetes)
	if err != nil {
		return nil, err
	}
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	if values["preset"] == nil && !at.noPreset {
		given := values
		values = map[string]any{}
		maps.Copy(values, given)
		values["preset"] = "classic"
	}
	options := common.ReleaseOptions{Name: at.name, Namespace: "tinkerbell", IsInstall: true, Revision: 1}
	// Helm compiles the schema each time, which takes longer than all the rest.
	all, err := util.ToRenderValuesWithSchemaValidation(c, values, options, capabilities, true)
	if err != nil {
		return nil, err
	}
	if !at.skipSchema {
		if err := valid(all["Values"]); err != nil {
			return nil, err
		}
	}
	return engine.Render(c, all)
}

var schemaOfValues = sync.OnceValues(func() (*jsonschema.Schema, error) {
	return jsonschema.NewCompiler().Compile(chart + "/values.schema.json")
})

// valid holds values to the chart's schema, as Helm does.
func valid(values any) error {
	schema, err := schemaOfValues()
	if err != nil {
		return err
	}
	text, err := json.Marshal(values)
	if err != nil {
		return err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(plain)
}

// from reads values.
func from(t *testing.T, text string) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return values
}

// rendersFrom renders values, which have to be taken.
func rendersFrom(t *testing.T, text string) rendered {
	t.Helper()
	out, err := inProcess(release{}, from(t, text))
	if err != nil {
		t.Fatalf("%v\nof\n%s", err, text)
	}
	return out
}

// refuses has values refused with one sentence.
func refuses(t *testing.T, text, sentence string) {
	t.Helper()
	refusesAt(t, release{}, text, sentence)
}

func refusesAt(t *testing.T, at release, text, sentence string) {
	t.Helper()
	_, err := inProcess(at, from(t, text))
	if err == nil || !strings.Contains(fmt.Sprint(err), sentence) {
		t.Errorf("says %v\nwant %q\nof\n%s", err, sentence, text)
	}
}
