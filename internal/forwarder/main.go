// Command forwarder is stack-lb's mode proxy without Kubernetes, as a candidate of benches: the listener of one Service
// with one endpoint, both given by flags, and the bounds of connections that stack-lb has. It measures the forwarding
// alone: no API is followed, no Lease held, and no address announced meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/forward"
	"github.com/tinkerbell/stack/pkg/lb/service"
	"github.com/tinkerbell/stack/pkg/proxy/bounds"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "forwarder:", err)
		os.Exit(1) //nolint:forbidigo // This is a main, of a program that is not shipped.
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var listen, endpoint netip.AddrPort
	flag.TextVar(&listen, "listen", netip.AddrPort{}, "the Service's address and TCP port")
	flag.TextVar(&endpoint, "endpoint", netip.AddrPort{}, "address and port of its endpoint, not a loopback address")
	flag.Parse()
	if !listen.IsValid() || !endpoint.IsValid() {
		return errors.New("failed to start: -listen and -endpoint are required")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	container := bounds.Tune(log)
	manager := forward.New(forward.Options{
		Logger: log,
		Bounds: forward.Bounds{Account: bounds.Reserve{}.Account(container, log), Container: container},
	})
	defer manager.Close()
	manager.Set(state(listen, endpoint))
	if why := manager.Fault(listen.Addr()); why != nil {
		return why
	}
	<-ctx.Done()
	return nil
}

// state is one Service in mode proxy with one endpoint.
func state(listen, endpoint netip.AddrPort) forward.State {
	class, name, protocol, port := "bench", "bench", core.ProtocolTCP, int32(endpoint.Port())
	of := &core.Service{
		ObjectMeta: meta.ObjectMeta{
			Namespace: name, Name: name,
			Annotations: map[string]string{service.AddressesAnnotation: listen.Addr().String()},
		},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeLoadBalancer, LoadBalancerClass: &class,
			IPFamilies: []core.IPFamily{family(listen, core.IPv4Protocol, core.IPv6Protocol)},
			Ports:      []core.ServicePort{{Name: name, Port: int32(listen.Port()), Protocol: protocol}},
		},
	}
	slice := &discovery.EndpointSlice{
		AddressType: family(endpoint, discovery.AddressTypeIPv4, discovery.AddressTypeIPv6),
		Endpoints:   []discovery.Endpoint{{Addresses: []string{endpoint.Addr().String()}}},
		Ports:       []discovery.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	return forward.State{
		Plan:   service.Make([]*core.Service{of}, service.Options{Class: class, Mode: service.Proxy}),
		Slices: func(*core.Service) []*discovery.EndpointSlice { return []*discovery.EndpointSlice{slice} },
		Place:  service.Place{Node: name},
	}
}

// family is one of two, by an address.
func family[F any](at netip.AddrPort, four, six F) F {
	if at.Addr().Is4() {
		return four
	}
	return six
}
