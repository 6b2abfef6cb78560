// Command api is the part of the Kubernetes API that Tinkerbell keeps its objects in: Kubernetes' own server of custom
// resources (k8s.io/apiextensions-apiserver), with etcd in the same process. It has no other resources, lets everybody do
// everything, and keeps nothing over an end: it is for a lab's network namespace.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	address := flag.String("listen", "127.0.0.1:6443", "`address` to listen on by HTTPS, with a certificate of its own")
	dir := flag.String("dir", "", "`directory` for etcd")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *address, *dir)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, dir string) error {
	etcd, err := startEtcd(ctx, dir)
	if err != nil {
		return err
	}
	defer etcd.Close()
	config, err := configure(address, etcd.Clients[0].Addr())
	if err != nil {
		return fmt.Errorf("failed to configure server: %w", err)
	}
	// Groups are found where the whole API server has them.
	var groups http.Handler = http.NotFoundHandler()
	roots := http.NewServeMux()
	roots.HandleFunc("/apis", func(w http.ResponseWriter, r *http.Request) { groups.ServeHTTP(w, r) })
	resources, err := config.Complete().New(server.NewEmptyDelegateWithCustomHandler(roots))
	if err != nil {
		return fmt.Errorf("failed to make server: %w", err)
	}
	groups = aggregated.WrapAggregatedDiscoveryToHandler(http.NotFoundHandler(),
		resources.GenericAPIServer.AggregatedDiscoveryGroupManager, nil)
	return resources.GenericAPIServer.PrepareRun().RunWithContext(ctx)
}

// startEtcd starts an etcd that does not wait for its disk, and takes little of it.
func startEtcd(ctx context.Context, dir string) (*embed.Etcd, error) {
	wal.SegmentSizeBytes = 1 << 20
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.LogLevel = dir, true, "warn"
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, fmt.Errorf("failed to start etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case <-ctx.Done():
		etcd.Close()
		return nil, context.Cause(ctx)
	}
}

// configure leaves out what asks another API server: authentication, authorization, admission.
func configure(address string, etcd net.Addr) (*apiserver.Config, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	o := options.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	r := o.RecommendedOptions
	r.Authentication, r.Authorization, r.CoreAPI, r.Admission = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.Etcd.StorageConfig.Transport.ServerList = []string{"http://" + etcd.String()}
	r.SecureServing.BindAddress = net.ParseIP(host)
	if _, err := fmt.Sscan(port, &r.SecureServing.BindPort); err != nil {
		return nil, err
	}
	r.SecureServing.ServerCert.CertDirectory = "" // it is made in memory
	if err := errors.Join(o.Complete(), o.Validate()); err != nil {
		return nil, err
	}
	if err := r.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{r.SecureServing.BindAddress}); err != nil {
		return nil, err
	}
	generic := server.NewRecommendedConfig(apiserver.Codecs)
	namer := openapinamer.NewDefinitionNamer(apiserver.Scheme, scheme.Scheme)
	generic.OpenAPIConfig = server.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	generic.OpenAPIV3Config = server.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	err = errors.Join(
		o.ServerRunOptions.ApplyTo(&generic.Config),
		r.ApplyTo(generic),
		o.APIEnablement.ApplyTo(&generic.Config, apiserver.DefaultAPIResourceConfigSource(), apiserver.Scheme),
	)
	if err != nil {
		return nil, err
	}
	generic.Authentication.Authenticator = server.InsecureSuperuser{}
	generic.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	return &apiserver.Config{
		GenericConfig: generic,
		ExtraConfig: apiserver.ExtraConfig{
			CRDRESTOptionsGetter: options.NewCRDRESTOptionsGetter(*r.Etcd, generic.ResourceTransformers,
				generic.StorageObjectCountTracker),
			ServiceResolver: noServices{},
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil,
				generic.LoopbackClientConfig, noop.NewTracerProvider()),
		},
	}, nil
}

// noServices are those of webhooks, of which Tinkerbell's resources have none.
type noServices struct{}

func (noServices) ResolveEndpoint(_, name string, _ int32) (*url.URL, error) {
	return nil, fmt.Errorf("failed to find service %s: there are none", name)
}
