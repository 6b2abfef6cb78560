// Package kube reaches Kubernetes' API from a pod, for programs that know a few kinds of objects: the API's own types
// would link those of all groups with them, four megabytes of program.
package kube

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// namespaceFile tells a pod its own namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Config is the way to the API: the one that is given, or the pod's service account.
func Config(given *rest.Config) (*rest.Config, error) {
	if given != nil {
		return given, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("failed to reach the Kubernetes API (a service account token is needed): %w", err)
	}
	return config, nil
}

// Namespace is the one that is given, or the pod's own.
func Namespace(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	text, err := os.ReadFile(namespaceFile)
	if err != nil {
		return "", fmt.Errorf("failed to find the pod's own namespace: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Client speaks one group of the API in JSON, with the kinds of a scheme. Program is its User-Agent.
func Client(way *rest.Config, program string, group schema.GroupVersion, s *runtime.Scheme) (rest.Interface, error) {
	config := rest.CopyConfig(way)
	if config.APIPath = "/apis"; group.Group == "" {
		config.APIPath = "/api"
	}
	config.GroupVersion, config.UserAgent = &group, program
	config.NegotiatedSerializer = serializer.NewCodecFactory(s).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(config)
}

// Scheme has some kinds of a group, by name; those of lists end in "List".
func Scheme(group schema.GroupVersion, kinds map[string]runtime.Object) *runtime.Scheme {
	s := runtime.NewScheme()
	meta.AddToGroupVersion(s, meta.SchemeGroupVersion)
	meta.AddToGroupVersion(s, group)
	for name, example := range kinds {
		s.AddKnownTypeWithName(group.WithKind(name), example)
	}
	return s
}

// List is a list of objects as the API sends it.
type List[T any] struct {
	meta.TypeMeta `json:",inline"`
	meta.ListMeta `json:"metadata"`
	Items         []T `json:"items"`
}

// DeepCopyObject implements runtime.Object. Nobody changes a decoded object.
func (l *List[T]) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}

// ListWatch lists and watches the objects of one namespace that have some labels, in pages where the API server does
// not stream them. L is their list. Each answer is told: nil, or why there was none.
func ListWatch[L any, P interface {
	*L
	runtime.Object
}](c rest.Interface, namespace, resource, labels string, told func(error)) cache.ListerWatcher {
	request := func(o meta.ListOptions) *rest.Request {
		if o.LabelSelector = labels; o.ResourceVersion == "0" {
			o.ResourceVersion = "" // from the API server's cache, all would come in one answer
		}
		return c.Get().Namespace(namespace).Resource(resource).
			SpecificallyVersionedParams(&o, meta.ParameterCodec, schema.GroupVersion{Version: "v1"})
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			list := P(new(L))
			err := request(o).Do(ctx).Into(list)
			told(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			told(err)
			return w, err
		},
	}
}
