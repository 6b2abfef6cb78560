// Command hardware-standin lists Hardware objects from a file as the Kubernetes API does. Smee v0.15.2 knows machines
// from there by an index, while it parses its file of machines anew for each lookup: too slow for many machines.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
)

const group = "tinkerbell.org"

// object is a piece of JSON.
type object = map[string]any

func main() {
	listen := flag.String("listen", ":6443", "`address` to listen on")
	file := flag.String("file", "", "JSON `file`: a list of Hardware objects")
	flag.Parse()
	if err := run(*listen, *file); err != nil {
		fmt.Fprintln(os.Stderr, "hardware-standin:", err)
		os.Exit(1)
	}
}

func run(listen, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("failed to read hardware: %w", err)
	}
	var items []object
	if err := json.Unmarshal(text, &items); err != nil {
		return fmt.Errorf("failed to parse hardware of %s: %w", file, err)
	}
	for i, item := range items {
		metadata, ok := item["metadata"].(object)
		if !ok {
			return fmt.Errorf("failed to parse hardware of %s: object %d has no metadata", file, i)
		}
		metadata["uid"], metadata["resourceVersion"] = fmt.Sprintf("hardware-%d", i), "1"
	}
	return http.ListenAndServe(listen, api(items))
}

// api answers what a client asks for before it lists, and the list. A watch says nothing: no object ever changes.
func api(items []object) http.Handler {
	version := object{"groupVersion": group + "/v1alpha1", "version": "v1alpha1"}
	documents := map[string]object{
		"/api":    {"kind": "APIVersions", "versions": []string{"v1"}},
		"/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []object{}},
		"/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []object{
			{"name": group, "versions": []object{version}, "preferredVersion": version},
		}},
		"/apis/" + group + "/v1alpha1": {
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group + "/v1alpha1",
			"resources": []object{{
				"name": "hardware", "singularName": "hardware", "namespaced": true, "kind": "Hardware",
				"verbs": []string{"get", "list", "watch"},
			}},
		},
	}
	list := object{
		"kind": "HardwareList", "apiVersion": group + "/v1alpha1",
		"metadata": object{"resourceVersion": "1"}, "items": items,
	}
	mux := http.NewServeMux()
	for path, document := range documents {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, document) })
	}
	mux.HandleFunc("GET /apis/"+group+"/v1alpha1/namespaces/{namespace}/hardware",
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				answer(w, list)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	return mux
}

func answer(w http.ResponseWriter, document object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document) // the client notices
}
