package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscovery "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/tinkerbell/stack/internal/kube"
	"github.com/tinkerbell/stack/pkg/lb"
	"github.com/tinkerbell/stack/pkg/lb/elect"
)

// cluster is the Kubernetes API.
type cluster struct {
	client    lb.API
	leases    typedcoordination.LeasesGetter
	namespace string
	owner     *meta.OwnerReference // of the leases
}

// api is the groups of the API that are used.
type api struct {
	core         typedcore.CoreV1Interface
	discovery    typeddiscovery.DiscoveryV1Interface
	coordination typedcoordination.CoordinationV1Interface
}

func (a *api) CoreV1() typedcore.CoreV1Interface                         { return a.core }
func (a *api) DiscoveryV1() typeddiscovery.DiscoveryV1Interface          { return a.discovery }
func (a *api) CoordinationV1() typedcoordination.CoordinationV1Interface { return a.coordination }

func newAPI(config *rest.Config) (*api, error) {
	// One client for all groups, so that they share their connections.
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	a := &api{}
	var faults [3]error
	a.core, faults[0] = typedcore.NewForConfigAndClient(config, client)
	a.discovery, faults[1] = typeddiscovery.NewForConfigAndClient(config, client)
	a.coordination, faults[2] = typedcoordination.NewForConfigAndClient(config, client)
	return a, errors.Join(faults[:]...)
}

// newLeases is the API for leases alone. A renewal never waits for another request: the rate has no limit, and what
// hangs is bounded by lanes.
func newLeases(config *rest.Config, times elect.Times) (typedcoordination.LeasesGetter, error) {
	leases := rest.CopyConfig(config)
	leases.QPS = -1
	lanes, err := newLanes(leases, times)
	if err != nil {
		return nil, err
	}
	return typedcoordination.NewForConfigAndClient(leases, &http.Client{Transport: lanes})
}

// cluster finds the API by the kubeconfig or the service account, and asks it nothing yet.
func (s *settings) cluster(logger *slog.Logger) (cluster, error) {
	// The library repeats what it cannot do; the controller says it once.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	config, own, err := s.config()
	if err != nil {
		return cluster{}, err
	}
	config.UserAgent = "stack-lb"
	// kube-proxy forwards to an address once the status has it: those of a hundred Services within seconds.
	config.QPS, config.Burst = 50, 100
	// Costs the API server less than JSON, where a hundred leases move at once.
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	c := cluster{namespace: cmp.Or(s.WatchNamespace, own)}
	if c.client, err = newAPI(config); err != nil {
		return cluster{}, fmt.Errorf("failed to make a client of the Kubernetes API at %s: %w", config.Host, err)
	}
	if c.leases, err = newLeases(config, s.times()); err != nil {
		return cluster{}, fmt.Errorf("failed to make a client of the Kubernetes API at %s: %w", config.Host, err)
	}
	if s.Kubeconfig == "" {
		text, err := os.ReadFile(tokenFile)
		if err == nil {
			c.owner = account(text, c.namespace)
		}
	}
	logger.Info("using the Kubernetes API", "host", config.Host, "namespace", c.namespace)
	return c, nil
}

// config is the way to the API, and the namespace that goes with it: the pod's, or that of the kubeconfig's context.
func (s *settings) config() (config *rest.Config, namespace string, err error) {
	if s.Kubeconfig == "" {
		if config, err = kube.Config(nil); err != nil {
			return nil, "", fmt.Errorf("%w; or set %s_KUBECONFIG", err, prefix)
		}
		namespace, err = kube.Namespace("")
		return config, namespace, err
	}
	file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig}, &clientcmd.ConfigOverrides{})
	if config, err = file.ClientConfig(); err != nil {
		return nil, "", fmt.Errorf("failed to read %s_KUBECONFIG: %w", prefix, err)
	}
	if namespace, _, err = file.Namespace(); err != nil {
		return nil, "", fmt.Errorf("failed to read %s_KUBECONFIG: %w", prefix, err)
	}
	return config, namespace, nil
}

// alone takes a name that one process of this network namespace can have: two would withdraw each other's addresses.
func alone() (net.Listener, error) {
	var config net.ListenConfig
	only, err := config.Listen(context.Background(), "unix", "@tinkerbell/stack-lb")
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New(
			"another stack-lb runs in this network namespace: stop it first (a DaemonSet of it needs maxSurge 0)")
	}
	return only, err
}

// bootID tells this boot of the node from others; it is the same in all containers.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return string(text)
}
