package kube

import (
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tinkerbell/stack/internal/kube"
)

// groupVersion is that of EndpointSlices.
var groupVersion = schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}

const (
	// serviceLabel is the label of a slice with its Service's name.
	serviceLabel = "kubernetes.io/service-name"
	// typeFQDN is the type of addresses that are names, which nobody uses for a Service's endpoints.
	typeFQDN = "FQDN"
)

// endpointSlice is what this package reads of an EndpointSlice. Decoding skips the rest. The API's own types would link
// those of all pods with them: four megabytes of program.
type endpointSlice struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	AddressType     string      `json:"addressType"`
	Endpoints       []member    `json:"endpoints"`
	Ports           []namedPort `json:"ports"`
}

// member is one endpoint. A condition that is not told is nil.
type member struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready   *bool `json:"ready"`
		Serving *bool `json:"serving"`
	} `json:"conditions"`
}

type namedPort struct {
	Name string `json:"name"`
	Port int32  `json:"port"`
}

// DeepCopyObject implements runtime.Object. Nobody changes what was decoded.
func (s *endpointSlice) DeepCopyObject() runtime.Object {
	c := *s
	return &c
}

// scheme knows these types alone.
var scheme = kube.Scheme(groupVersion, map[string]runtime.Object{
	"EndpointSlice": &endpointSlice{}, "EndpointSliceList": &kube.List[endpointSlice]{},
})
