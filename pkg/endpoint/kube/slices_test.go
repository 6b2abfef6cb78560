package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/endpoint"
)

func to[T any](v T) *T { return &v }

func ready(addrs ...string) discovery.Endpoint {
	return discovery.Endpoint{Addresses: addrs, Conditions: discovery.EndpointConditions{Ready: to(true)}}
}

func slice(name string, endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
	return &discovery.EndpointSlice{
		TypeMeta:    meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  meta.ObjectMeta{Name: name, Namespace: "tink", ResourceVersion: "2"},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: to("grpc"), Port: to(int32(42113))}, {Name: to("http"), Port: to(int32(80))}},
		Endpoints:   endpoints,
	}
}

// decoded are slices as this package reads those of the API.
func decoded(t *testing.T, all []*discovery.EndpointSlice) (own []*endpointSlice) {
	text, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(text, &own)
	}
	if err != nil {
		t.Fatal(err)
	}
	return own
}

func TestMembers(t *testing.T) {
	leaving := ready("10.0.0.3")
	leaving.Conditions = discovery.EndpointConditions{Ready: to(false), Serving: to(true), Terminating: to(true)}
	gone := ready("10.0.0.4")
	gone.Conditions = discovery.EndpointConditions{Ready: to(false), Serving: to(false)}
	unknown := discovery.Endpoint{Addresses: []string{"10.0.0.6"}}
	at := func(addr string, m endpoint.Member) endpoint.Member {
		m.Addr = netip.MustParseAddrPort(addr)
		return m
	}
	tests := map[string]struct {
		slices []*discovery.EndpointSlice
		port   string
		want   []endpoint.Member
		fault  error
	}{
		"by name":   {[]*discovery.EndpointSlice{slice("a", ready("10.0.0.1"))}, "grpc", []endpoint.Member{at("10.0.0.1:42113", endpoint.Member{})}, nil},
		"by number": {[]*discovery.EndpointSlice{slice("a", ready("10.0.0.1"))}, "80", []endpoint.Member{at("10.0.0.1:80", endpoint.Member{})}, nil},
		"states": {[]*discovery.EndpointSlice{slice("a", leaving, gone, unknown)}, "http", []endpoint.Member{
			at("10.0.0.3:80", endpoint.Member{Fallback: true}), at("10.0.0.6:80", endpoint.Member{}),
		}, nil},
		"twice": {[]*discovery.EndpointSlice{slice("a", leaving), slice("b", ready("10.0.0.3"))}, "http",
			[]endpoint.Member{at("10.0.0.3:80", endpoint.Member{})}, nil},
		"no port":  {[]*discovery.EndpointSlice{slice("a", ready("10.0.0.1"))}, "ssh", nil, errNoPort},
		"no slice": {nil, "http", nil, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := membersOf(decoded(t, test.slices), test.port)
			slices.SortFunc(got, func(a, b endpoint.Member) int { return a.Addr.Compare(b.Addr) })
			if len(got) == 0 {
				got = nil
			}
			equal := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
			if diff := cmp.Diff(test.want, got, equal); diff != "" || !errors.Is(err, test.fault) {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// api answers list and watch of EndpointSlices on the wire.
type api struct {
	mu     sync.Mutex
	first  []discovery.EndpointSlice
	events chan meta.WatchEvent
	asked  []string
	denied bool
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r.URL.Path+"?"+r.URL.Query().Get("labelSelector"))
	first, denied := a.first, a.denied
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	switch {
	case denied:
		w.WriteHeader(http.StatusForbidden)
		_ = encoder.Encode(meta.Status{Status: "Failure", Reason: meta.StatusReasonForbidden, Code: 403, Message: "no"})
	case r.URL.Query().Get("sendInitialEvents") != "":
		// An API server without the streaming list: the client falls back to list and watch.
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = encoder.Encode(meta.Status{Status: "Failure", Reason: meta.StatusReasonInvalid, Code: 422})
	case r.URL.Query().Get("watch") != "":
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case event := <-a.events:
				_ = encoder.Encode(event)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				return
			}
		}
	default:
		_ = encoder.Encode(discovery.EndpointSliceList{
			TypeMeta: meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
			ListMeta: meta.ListMeta{ResourceVersion: "1"}, Items: first,
		})
	}
}

func TestPoolFollowsService(t *testing.T) {
	a := &api{first: []discovery.EndpointSlice{*slice("a", ready("127.0.0.1"))}, events: make(chan meta.WatchEvent)}
	server := httptest.NewServer(a)
	defer server.Close()
	client := &Client{Config: &rest.Config{Host: server.URL}}
	pool := endpoint.NewPool(endpoint.Config{
		Route: "r", Sources: []endpoint.Source{client.Service("tink", "server", "grpc")},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- pool.Run(ctx) }()
	until := func(want string) {
		t.Helper()
		testwait.Success(t, "the pool knows the endpoints", func() error {
			addr, err := pool.Pick(netip.Addr{})
			if err == nil && addr.String() == want || err != nil && want == "" {
				return nil
			}
			return fmt.Errorf("picked %v, %w; want %q", addr, err, want)
		})
	}
	send := func(kind string, s *discovery.EndpointSlice) {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		event := meta.WatchEvent{Type: kind}
		event.Object.Raw = text
		a.events <- event
	}
	until("127.0.0.1:42113")
	send("MODIFIED", slice("a", ready("127.0.0.2")))
	until("127.0.0.2:42113")
	send("DELETED", slice("a", ready("127.0.0.2")))
	until("")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	want := "/apis/discovery.k8s.io/v1/namespaces/tink/endpointslices?kubernetes.io/service-name=server"
	for _, asked := range a.asked {
		if asked != want {
			t.Errorf("asked for %s, want nothing but %s", asked, want)
		}
	}
}

func TestForbiddenIsTold(t *testing.T) {
	a := &api{denied: true}
	server := httptest.NewServer(a)
	defer server.Close()
	client := &Client{Config: &rest.Config{Host: server.URL}}
	source := client.Service("tink", "server", "grpc")
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		source.Watch(ctx, nil, func(_ []endpoint.Member, err error) {
			select {
			case told <- err:
			default:
			}
		})
	}()
	if err := <-told; err == nil {
		t.Error("no error was told")
	}
	cancel()
	<-ended
}

func TestOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var got error
	new(Client).Service("a", "b", "c").Watch(t.Context(), nil, func(_ []endpoint.Member, err error) { got = err })
	if !errors.Is(got, rest.ErrNotInCluster) {
		t.Errorf("got %v", got)
	}
}
