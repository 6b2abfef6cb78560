package hardware

import (
	"bytes"
	"net"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tinkerbell/stack/pkg/boot"
)

// groupVersion is Tinkerbell's.
var groupVersion = schema.GroupVersion{Group: "tinkerbell.org", Version: "v1alpha1"}

// kind and resource of the objects.
const (
	kind     = "Hardware"
	resource = "hardware"
)

// maxInterfaces bounds what is kept of one object.
const maxInterfaces = 64

// maxArch is what is kept of an architecture's name, in bytes.
const maxArch = 16

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

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Spec.Interfaces = append([]nic(nil), o.Spec.Interfaces...)
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

// trim leaves of an object what is kept: identity, MACs and whether they may boot.
func trim(given any) (any, error) {
	o, ok := given.(*object)
	if !ok {
		return given, nil
	}
	kept := &object{ObjectMeta: meta.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}}
	for _, i := range o.Spec.Interfaces {
		mac, err := net.ParseMAC(i.DHCP.MAC)
		if err != nil || len(mac) != 6 || bytes.Equal(mac, make([]byte, 6)) || len(kept.Spec.Interfaces) == maxInterfaces {
			continue
		}
		i.DHCP.MAC, i.DHCP.Arch = mac.String(), boot.CleanCut(i.DHCP.Arch, maxArch)
		kept.Spec.Interfaces = append(kept.Spec.Interfaces, i)
	}
	return kept, nil
}
