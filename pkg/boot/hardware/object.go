package hardware

import (
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// groupVersion is Tinkerbell's.
var groupVersion = schema.GroupVersion{Group: "tinkerbell.org", Version: "v1alpha1"}

// kind and resource of the objects.
const (
	kind     = "Hardware"
	resource = "hardware"
)

// object is what this package reads of a Hardware object. Decoding skips the rest, user data and templates included.
type object struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            spec `json:"spec"`
}

type spec struct {
	Interfaces []nic `json:"interfaces"`
}

// nic is a network interface of a machine. What is left out of an object allows nothing, as Smee reads it.
type nic struct {
	DHCP struct {
		MAC  string `json:"mac"`
		Arch string `json:"arch"`
	} `json:"dhcp"`
	Netboot struct {
		AllowPXE bool `json:"allowPXE"`
	} `json:"netboot"`
}

// DeepCopyObject implements runtime.Object. Nobody changes what was decoded.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// scheme knows these types and Workflows, in place of Tinkerbell's whole API.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	meta.AddToGroupVersion(s, meta.SchemeGroupVersion)
	meta.AddToGroupVersion(s, groupVersion)
	s.AddKnownTypeWithName(groupVersion.WithKind(kind), &object{})
	s.AddKnownTypeWithName(groupVersion.WithKind(kind+"List"), &list[object]{})
	s.AddKnownTypeWithName(groupVersion.WithKind("Workflow"), &workflow{})
	s.AddKnownTypeWithName(groupVersion.WithKind("WorkflowList"), &list[workflow]{})
	return s
}()

// trim leaves of a Hardware object what is read of it: its annotations and managers take more.
func trim(given any) (any, error) {
	o, ok := given.(*object)
	if !ok {
		return given, nil
	}
	return &object{Spec: o.Spec, ObjectMeta: meta.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}}, nil
}
