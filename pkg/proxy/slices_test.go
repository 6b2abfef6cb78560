package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tinkerbell/stack/pkg/endpoint/kube"
	"github.com/tinkerbell/stack/pkg/route"
)

// sliceAPI is a Kubernetes API with one EndpointSlice.
type sliceAPI struct {
	mu      sync.Mutex
	slice   *discovery.EndpointSlice
	changed chan struct{} // closed with the next change
}

func (a *sliceAPI) set(slice *discovery.EndpointSlice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.slice = slice
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *sliceAPI) get() (*discovery.EndpointSlice, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slice, a.changed
}

// ServeHTTP implements http.Handler.
func (a *sliceAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	if r.URL.Query().Get("sendInitialEvents") != "" { // not known here: the client asks for a list instead
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = encoder.Encode(meta.Status{Status: "Failure", Reason: meta.StatusReasonInvalid, Code: 422})
		return
	}
	slice, changed := a.get()
	if r.URL.Query().Get("watch") == "" {
		_ = encoder.Encode(discovery.EndpointSliceList{
			TypeMeta: meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
			ListMeta: meta.ListMeta{ResourceVersion: "1"}, Items: []discovery.EndpointSlice{*slice},
		})
		return
	}
	for {
		text, _ := json.Marshal(slice)
		event := meta.WatchEvent{Type: "MODIFIED"}
		event.Object.Raw = text
		_ = encoder.Encode(event)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
			slice, changed = a.get()
		}
	}
}

// pods are a Service's endpoints; those that terminate still serve.
func pods(port uint16, ready []string, terminating ...string) *discovery.EndpointSlice {
	yes, no, number, name := true, false, int32(port), "http"
	slice := &discovery.EndpointSlice{
		TypeMeta:    meta.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  meta.ObjectMeta{Name: "a", Namespace: "tink", ResourceVersion: "2"},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: &name, Port: &number}},
	}
	for _, addr := range ready {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses: []string{addr}, Conditions: discovery.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
		})
	}
	for _, addr := range terminating {
		slice.Endpoints = append(slice.Endpoints, discovery.Endpoint{
			Addresses: []string{addr}, Conditions: discovery.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes},
		})
	}
	return slice
}

// A rolling update: one pod more, one that terminates, then it is gone; under load, twice for every pod.
func TestEndpointsReplacedBySlices(t *testing.T) {
	first := hello(t, "0")
	addrs, ends := []string{first.Host}, []func(){func() {}}
	for i := 1; i < 3; i++ {
		addr := fmt.Sprintf("127.0.1.%d", i)
		ends = append(ends, helloUntil(t, fmt.Sprint(i), addr, first.Port))
		addrs = append(addrs, addr)
	}
	api := &sliceAPI{slice: pods(first.Port, addrs), changed: make(chan struct{})}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close) // waits for the watches, which end with the proxy
	backend := route.Backend{Service: &route.Service{Namespace: "tink", Name: "server", Port: "http"}}
	web, stream := free(t), free(t)
	r := start(t, Options{
		Table: table(row("web", route.HTTP, web, backend), row("stream", route.TCP, stream, backend)),
		Kube:  &kube.Client{Config: &rest.Config{Host: server.URL}},
	})
	waitReady(t, r)
	load := startLoad(t, web, stream)
	for i := 3; i < 9; i++ {
		old := i % 3
		next, gone := fmt.Sprintf("127.0.1.%d", i), addrs[old]
		end := helloUntil(t, fmt.Sprint(i), next, first.Port)
		addrs[old] = next
		api.set(pods(first.Port, addrs, gone))
		load.until(10)
		api.set(pods(first.Port, addrs))
		r.forgets(t, gone)
		load.until(20)
		ends[old]()
		ends[old] = end
		load.until(20)
	}
	t.Logf("%d connections, all pods replaced twice", load.stop())
}
