package failover

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

const (
	metalAPI       = "/apis/metallb.io/v1beta1/namespaces/" + metalNamespace
	metalNamespace = "metallb-system"
)

// MetalLB is its speaker in layer 2 mode, with memberlist, by which speakers find out that a node is dead, as in its
// manifests. Its controller, which chooses addresses, is left out: the bench writes them, as for keepalived. No
// interface has the address, so that echo requests find nobody.
func MetalLB() (Balancer, error) {
	home, err := os.UserCacheDir()
	if err != nil {
		return Balancer{}, err
	}
	speakers, _ := filepath.Glob(filepath.Join(home, "tinkerbell-stack", "front-*", "speaker")) // the pattern is right
	if len(speakers) == 0 {
		return Balancer{}, errors.New("no speaker in ~/.cache/tinkerbell-stack (make kube-front builds it)")
	}
	return Balancer{
		name: "metallb", silent: true, prepare: metalObjects,
		command: func(s *Site, n *node) ([]string, []string, error) {
			config := n.name + "-metallb"
			return []string{
				speakers[0], "-namespace", metalNamespace, "-pod-name", n.name, "-node-name", n.name, "-host", "127.0.0.1",
				"-ml-bindaddr", n.address(), "-ml-bindport", "7946", "-ml-labels", "app=metallb,component=speaker",
				"-kubeconfig", filepath.Join(s.dir, "kubeconfig-"+config),
			}, nil, writeKubeconfig(s.dir, config, "admin", gatePort+n.number)
		},
		ready:   func(ctx context.Context, n *node) error { return n.get(ctx, "http://127.0.0.1:7472/metrics") },
		service: func(_ *Site, number int) object { return service(number, nil) },
	}, nil
}

// metalObjects gives the API MetalLB's kinds, its configuration, and a pod for each speaker, which looks it up.
func metalObjects(ctx context.Context, s *Site) error {
	own := object{"metadata": object{"name": metalNamespace}}
	err := errors.Join(s.api.metalKinds(ctx), s.api.do(ctx, http.MethodPost, "/api/v1/namespaces", own))
	if err != nil {
		return err
	}
	var all []string
	for _, address := range s.addresses {
		all = append(all, address.String()+"/32")
	}
	of := func(kind string, spec object) object {
		return object{"apiVersion": "metallb.io/v1beta1", "kind": kind, "metadata": object{"name": "bench"}, "spec": spec}
	}
	// A kind is known a moment after it was made.
	patience := progress.Patience{Quiet: 30 * time.Second}
	if err := progress.Until(ctx, patience, 200*time.Millisecond, func(ctx context.Context) error {
		return s.api.do(ctx, http.MethodPost, metalAPI+"/ipaddresspools", of("IPAddressPool", object{"addresses": all}))
	}); err != nil {
		return err
	}
	if err := progress.Until(ctx, patience, 200*time.Millisecond, func(ctx context.Context) error {
		return s.api.do(ctx, http.MethodPost, metalAPI+"/l2advertisements",
			of("L2Advertisement", object{"ipAddressPools": []string{"bench"}}))
	}); err != nil {
		return err
	}
	pods := "/api/v1/namespaces/" + metalNamespace + "/pods"
	for _, n := range s.nodes {
		pod := object{
			"metadata": object{"name": n.name, "labels": object{"app": "metallb", "component": "speaker"}},
			"spec":     object{"nodeName": n.name, "containers": []object{{"name": "speaker", "image": "none"}}},
		}
		status := object{"status": object{
			"podIP": n.address(), "podIPs": []object{{"ip": n.address()}}, "phase": "Running",
		}}
		if err := errors.Join(
			s.api.do(ctx, http.MethodPost, pods, pod), s.api.do(ctx, http.MethodPatch, pods+"/"+n.name+"/status", status),
		); err != nil {
			return err
		}
	}
	return nil
}

// metalKinds makes the kinds of the module that the speaker is built from.
func (a *api) metalKinds(ctx context.Context) error {
	repo, err := program.Repo()
	if err != nil {
		return err
	}
	dir, err := exec.CommandContext(ctx, "go", "-C", filepath.Join(repo, "test/e2e/kube/front/metallb"),
		"list", "-m", "-f", "{{.Dir}}/config/crd/bases/*.yaml", "go.universe.tf/metallb").Output()
	if err != nil {
		return fmt.Errorf("failed to find MetalLB's module: %w", err)
	}
	files, err := filepath.Glob(string(dir[:len(dir)-1]))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("failed to find MetalLB's kinds in %s: %w", dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var kind object
		if err := yaml.Unmarshal(text, &kind); err != nil {
			return fmt.Errorf("failed to read %s: %w", file, err)
		}
		if err := a.do(ctx, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kind); err != nil {
			return err
		}
	}
	return nil
}
