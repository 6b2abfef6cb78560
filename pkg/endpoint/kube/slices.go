// Package kube finds the endpoints of a Kubernetes Service by watching its EndpointSlices, and nothing else of the
// cluster. A process without such a backend makes no client.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/tinkerbell/stack/internal/kube"
	"github.com/tinkerbell/stack/pkg/endpoint"
)

// Client watches EndpointSlices. Its zero value uses the pod's service account, which needs the verbs list and watch
// on endpointslices of discovery.k8s.io in the namespaces of the services.
type Client struct {
	// Config says how to reach the API; nil is the pod's service account.
	Config *rest.Config
	// Logger gets the lines of the client library; with nil they go to standard error.
	Logger *slog.Logger

	once   sync.Once
	client rest.Interface
	failed error
}

// connect makes the client when the first service is asked for.
func (c *Client) connect() (rest.Interface, error) {
	c.once.Do(func() {
		if c.Logger != nil {
			klog.SetSlogLogger(c.Logger) // the library knows one logger for the whole process
		}
		config, err := kube.Config(c.Config)
		if err != nil {
			c.failed = err
			return
		}
		c.client, c.failed = kube.Client(config, "stack-proxy", groupVersion, scheme)
	})
	return c.client, c.failed
}

// Service is a source of a Service's endpoints. The namespace is the pod's own if empty. The port is the name that
// the Service gives it, or the number on which the endpoints listen.
func (c *Client) Service(namespace, name, port string) endpoint.Source {
	return &service{client: c, namespace: namespace, name: name, port: port}
}

type service struct {
	client                *Client
	namespace, name, port string
}

// String writes the service as the routes file does.
func (s *service) String() string {
	if s.namespace == "" {
		return "service:" + s.name + ":" + s.port
	}
	return "service:" + s.namespace + "/" + s.name + ":" + s.port
}

// Watch implements endpoint.Source. The API tells every change, so there is nothing to look up again.
func (s *service) Watch(ctx context.Context, _ <-chan struct{}, update func([]endpoint.Member, error)) {
	client, err := s.client.connect()
	if err != nil {
		update(nil, err)
		return
	}
	namespace, err := kube.Namespace(s.namespace)
	if err != nil {
		update(nil, err)
		return
	}
	var store cache.Store
	changed := func() {
		var all []*endpointSlice
		for _, object := range store.List() {
			if slice, ok := object.(*endpointSlice); ok {
				all = append(all, slice)
			}
		}
		update(membersOf(all, s.port))
	}
	away := false
	told := func(err error) { // the reflector tries again, and returns no error
		if err != nil {
			update(nil, err)
		} else if away {
			changed()
		}
		away = err != nil
	}
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: kube.ListWatch[kube.List[endpointSlice]](
			client, namespace, "endpointslices", serviceLabel+"="+s.name, told),
		ObjectType: &endpointSlice{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		},
	})
	informed := make(chan struct{})
	go func() {
		defer close(informed)
		informer.RunWithContext(ctx)
	}()
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		changed() // a service without any slice makes no event
	}
	<-informed
}

var errNoPort = errors.New("the service has no such port")

// membersOf turns a service's slices into endpoints: the ready ones, and as their fallback those that still serve while
// they terminate (KEP-1669). An endpoint may be in two slices for a moment: it counts once.
func membersOf(all []*endpointSlice, port string) ([]endpoint.Member, error) {
	members := map[netip.AddrPort]endpoint.Member{}
	addresses, ports := 0, 0
	for _, slice := range all {
		if slice.AddressType == typeFQDN {
			continue
		}
		number := portOf(slice.Ports, port)
		if number != 0 {
			ports++
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			addresses++
			ready, serving := e.state()
			if number == 0 || !ready && !serving {
				continue
			}
			for _, addr := range parsed(e.Addresses) {
				at := netip.AddrPortFrom(addr, number)
				if before, ok := members[at]; ok && !before.Fallback {
					continue
				}
				members[at] = endpoint.Member{Addr: at, Fallback: !ready}
			}
		}
	}
	if addresses > 0 && ports == 0 {
		return nil, fmt.Errorf("port %s: %w", port, errNoPort)
	}
	return slices.Collect(maps.Values(members)), nil
}

// parsed leaves out texts that are no addresses.
func parsed(texts []string) []netip.Addr {
	addresses := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}

// portOf finds a TCP or UDP port by name or number; 0 is none.
func portOf(ports []namedPort, want string) uint16 {
	for _, p := range ports {
		if p.Port < 1 || p.Port > 65535 {
			continue
		}
		if named := p.Name != "" && p.Name == want; named || strconv.Itoa(int(p.Port)) == want {
			return uint16(p.Port)
		}
	}
	return 0
}

// state reads the conditions; one that is not told means yes.
func (m *member) state() (ready, serving bool) {
	ready = m.Conditions.Ready == nil || *m.Conditions.Ready
	serving = ready
	if m.Conditions.Serving != nil {
		serving = *m.Conditions.Serving
	}
	return ready, serving
}
