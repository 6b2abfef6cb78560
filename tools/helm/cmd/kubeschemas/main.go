// Command kubeschemas writes the JSON schemas by which kubeconform judges the chart's objects, without a network of
// schemas: from the OpenAPI document in the Kubernetes module and from the CRDs in the modules of their projects. With
// -crds it lists the files of the CRDs instead, for a cluster to have them.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubernetes holds the OpenAPI document of its release.
const (
	kubernetes = "k8s.io/kubernetes@v1.36.3"
	openAPI    = "api/openapi-spec/swagger.json"
)

// crds are modules and the files in them that define kinds.
var crds = []struct{ module, files string }{
	{"sigs.k8s.io/gateway-api@v1.6.0", "config/crd/experimental/*.yaml"},
	{
		"github.com/prometheus-operator/prometheus-operator@v0.85.0",
		"example/prometheus-operator-crd/monitoring.coreos.com_*.yaml",
	},
	{
		"github.com/traefik/traefik/v3@v3.5.0",
		"docs/content/reference/dynamic-configuration/kubernetes-crd-definition-v1.yml",
	},
	{"github.com/argoproj/argo-cd/v3@v3.2.0", "manifests/crds/application-crd.yaml"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kubeschemas <directory>|-crds")
		os.Exit(2)
	}
	work := run
	if os.Args[1] == "-crds" {
		work = list
	}
	if err := work(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "kubeschemas: %v\n", err)
		os.Exit(1)
	}
}

func run(directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	if err := builtin(directory); err != nil {
		return fmt.Errorf("failed to make schemas of %s: %w", kubernetes, err)
	}
	for _, crd := range crds {
		if err := custom(directory, crd.module, crd.files); err != nil {
			return fmt.Errorf("failed to make schemas of %s: %w", crd.module, err)
		}
	}
	return nil
}

// list prints where the files of the CRDs are.
func list(string) error {
	for _, crd := range crds {
		paths, err := find(crd.module, crd.files)
		if err != nil {
			return err
		}
		for _, path := range paths {
			fmt.Println(path)
		}
	}
	return nil
}

// find downloads a module and says where its files are.
func find(name, files string) ([]string, error) {
	root, err := module(name)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(root, files))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no file %s in %s: %w", files, name, err)
	}
	return paths, nil
}

// module downloads a module and says where it is.
func module(name string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command("go", "mod", "download", "-json", name)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var info struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &info); jsonErr != nil || info.Dir == "" {
		return "", errors.Join(err, fmt.Errorf("failed to download: %s%s", info.Error, &stderr))
	}
	return info.Dir, nil
}

// builtin writes a schema for each kind of the OpenAPI document; they refer to one file with all definitions.
func builtin(directory string) error {
	root, err := module(kubernetes)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, openAPI))
	if err != nil {
		return err
	}
	var document struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return err
	}
	const all = "_definitions.json"
	for name, definition := range document.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		strict(definition, all)
		for _, each := range kinds {
			gvk, ok := each.(map[string]any)
			if !ok {
				continue
			}
			kind, group, version := fmt.Sprint(gvk["kind"]), fmt.Sprint(gvk["group"]), fmt.Sprint(gvk["version"])
			ref := map[string]any{"$ref": all + "#/definitions/" + name}
			if err := write(directory, kind, group, version, ref); err != nil {
				return err
			}
		}
	}
	out, err := json.Marshal(map[string]any{"definitions": document.Definitions})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, all), out, 0o644)
}

// custom writes a schema for each version of each CRD.
func custom(directory, name, files string) error {
	paths, err := find(name, files)
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, document := range bytes.Split(text, []byte("\n---")) {
			var crd struct {
				Kind string
				Spec struct {
					Group    string
					Names    struct{ Kind string }
					Versions []struct {
						Name   string
						Schema struct {
							OpenAPI map[string]any `yaml:"openAPIV3Schema"`
						}
					}
				}
			}
			if err := yaml.Unmarshal(document, &crd); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if crd.Kind != "CustomResourceDefinition" {
				continue
			}
			for _, version := range crd.Spec.Versions {
				strict(version.Schema.OpenAPI, "")
				// The object's metadata is free in a CRD's schema.
				if properties, ok := version.Schema.OpenAPI["properties"].(map[string]any); ok {
					properties["metadata"] = map[string]any{"type": "object"}
				}
				if err := write(directory, crd.Spec.Names.Kind, crd.Spec.Group, version.Name, version.Schema.OpenAPI); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// strict turns OpenAPI into JSON schema that refuses unknown fields, as the API server's strict validation does.
func strict(schema any, definitions string) {
	switch s := schema.(type) {
	case []any:
		for _, each := range s {
			strict(each, definitions)
		}
	case map[string]any:
		for key, each := range s {
			if key != "enum" && key != "default" && key != "example" {
				strict(each, definitions)
			}
		}
		if ref, ok := s["$ref"].(string); ok {
			s["$ref"] = strings.Replace(ref, "#/definitions/", definitions+"#/definitions/", 1)
		}
		if format, ok := s["format"].(string); ok {
			delete(s, "format") // the API's formats are not JSON schema's
			if format == "int-or-string" {
				s["type"] = []any{"string", "integer"}
			}
		}
		if s["x-kubernetes-int-or-string"] == true {
			delete(s, "type")
		}
		if d, ok := s["description"].(string); ok && strings.HasPrefix(d, "Quantity is a fixed-point") {
			s["type"] = []any{"string", "number"}
		}
		_, free := s["additionalProperties"]
		if _, ok := s["properties"].(map[string]any); ok && !free && s["x-kubernetes-preserve-unknown-fields"] != true {
			s["additionalProperties"] = false
		}
	}
}

// write writes a schema under the name by which kubeconform is told to look for it.
func write(directory, kind, group, version string, schema any) error {
	out, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	name := strings.ToLower(kind + "-" + version + ".json")
	if group != "" {
		name = strings.ToLower(kind + "-" + strings.SplitN(group, ".", 2)[0] + "-" + version + ".json")
	}
	return os.WriteFile(filepath.Join(directory, name), out, 0o644)
}
