package lab

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// apiAddress is where the API server listens, in the namespace of the one binary that keeps its objects there.
const apiAddress = "127.0.0.1:6443"

// api runs the part of the Kubernetes API that has custom resources.
func (l *Lab) api() (Process, func(context.Context) error) {
	args := []string{"-listen", apiAddress, "-dir", filepath.Join(l.dir, "etcd")}
	ready := func(ctx context.Context) error { return l.ask(ctx, http.MethodGet, "/readyz", nil, nil) }
	return Process{Role: RoleSmee, Path: l.opts.Tinkerbell.API, Args: args}, ready
}

// Object is one of tinkerbell.org/v1alpha1, in the namespace of the lab's services.
func Object(kind, name string, spec map[string]any) any {
	return map[string]any{
		"apiVersion": "tinkerbell.org/v1alpha1", "kind": kind,
		"metadata": map[string]any{"name": name, "namespace": Namespace},
		"spec":     spec,
	}
}

// ErrExists is an object that the API has already.
var ErrExists = errors.New("it exists")

// Create gives the one binary's API an object of a resource of tinkerbell.org/v1alpha1, such as "workflows".
func (l *Lab) Create(ctx context.Context, resource string, object any) error {
	return l.ask(ctx, http.MethodPost, objectsPath+resource, object, nil)
}

// Get reads an object of a resource of tinkerbell.org/v1alpha1 into what out points to.
func (l *Lab) Get(ctx context.Context, resource, name string, out any) error {
	return l.ask(ctx, http.MethodGet, objectsPath+resource+"/"+name, nil, out)
}

const objectsPath = "/apis/tinkerbell.org/v1alpha1/namespaces/" + Namespace + "/"

// ask asks the API server. Nothing is sent or read where in or out is nil.
func (l *Lab) ask(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body := []byte{}
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("failed to encode object: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+apiAddress+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{
		DialContext: l.Dial(RoleSmee), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // made anew at each start
	}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("failed to ask the API server: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("failed to read the API server's answer: %w", err)
	case response.StatusCode == http.StatusConflict:
		return fmt.Errorf("failed to create %s: %w", path, ErrExists)
	case response.StatusCode >= http.StatusBadRequest:
		return fmt.Errorf("%s %s: %s: %.300s", method, path, response.Status, said)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(said, out); err != nil {
		return fmt.Errorf("failed to decode the API server's answer: %w", err)
	}
	return nil
}

func (l *Lab) kubeconfigPath() string { return filepath.Join(l.opts.RunDir, "kubeconfig.yaml") }

func (l *Lab) writeKubeconfig() error {
	named := func(kind string, value map[string]any) []any {
		return []any{map[string]any{"name": "lab", kind: value}}
	}
	return program.WriteJSON(l.kubeconfigPath(), map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"clusters": named("cluster", map[string]any{"server": "https://" + apiAddress, "insecure-skip-tls-verify": true}),
		"users":    named("user", map[string]any{}),
		"contexts": named("context", map[string]any{"cluster": "lab", "user": "lab", "namespace": Namespace}),
	})
}
