package hardware

import (
	"bytes"
	"net"
	"slices"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tinkerbell/stack/internal/kube"
	"github.com/tinkerbell/stack/pkg/boot"
)

// groupVersion is Tinkerbell's.
var groupVersion = schema.GroupVersion{Group: "tinkerbell.org", Version: "v1alpha1"}

// kind and resource of the objects.
const (
	kind     = "Hardware"
	resource = "hardware"
)

// scheme knows the types of this package, in place of Tinkerbell's whole API.
var scheme = kube.Scheme(groupVersion, map[string]runtime.Object{
	kind: &object{}, kind + "List": &kube.List[object]{},
	"Workflow": &workflow{}, "WorkflowList": &kube.List[workflow]{},
})

// object is what this package reads of a Hardware object. Decoding skips the rest, user data and templates included.
type object struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Interfaces []nic `json:"interfaces"`
	} `json:"spec"`

	ports []port // what is kept of the interfaces
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

// port is an interface of a machine.
type port struct {
	mac     [6]byte
	netboot bool
	arch    string
}

// DeepCopyObject implements runtime.Object. Nobody changes a decoded object.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// full is namespace/name.
func (o *object) full() string { return o.Namespace + "/" + o.Name }

// port is the interface that has a MAC; nil if there is none.
func (o *object) port(mac [6]byte) *port {
	if at := slices.IndexFunc(o.ports, func(p port) bool { return p.mac == mac }); at >= 0 {
		return &o.ports[at]
	}
	return nil
}

// maxInterfaces bounds the interfaces of one object that are kept, maxArch the bytes of an architecture's name.
const maxInterfaces, maxArch = 64, 16

// trim leaves out the fields that nobody here reads: annotations and managers take most of an object. It implements
// cache.TransformFunc.
func trim(given any) (any, error) {
	switch o := given.(type) {
	case *object:
		kept := &object{ObjectMeta: trimmed(&o.ObjectMeta), ports: o.ports}
		for _, i := range o.Spec.Interfaces {
			mac, ok := macOf(i.DHCP.MAC)
			if ok && kept.port(mac) == nil && len(kept.ports) < maxInterfaces {
				kept.ports = append(kept.ports, port{mac, i.Netboot.AllowPXE, boot.CleanCut(i.DHCP.Arch, maxArch)})
			}
		}
		return kept, nil
	case *workflow:
		kept := &workflow{ObjectMeta: trimmed(&o.ObjectMeta), job: o.job}
		if kept.job == nil {
			kept.job = o.read()
		}
		return kept, nil
	}
	return given, nil
}

func trimmed(m *meta.ObjectMeta) meta.ObjectMeta {
	return meta.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp,
	}
}

// byMachine is the index of objects by the machines that they name: the bytes of a MAC, or namespace/name of a Hardware
// object.
const byMachine = "machine"

// machinesOf implements cache.IndexFunc.
func machinesOf(given any) (keys []string, err error) {
	switch o := given.(type) {
	case *object:
		for _, p := range o.ports {
			keys = append(keys, string(p.mac[:]))
		}
	case *workflow:
		keys = o.job.machines
	}
	return keys, nil
}

// macOf reads a MAC that a machine can have.
func macOf(text string) (mac [6]byte, ok bool) {
	parsed, err := net.ParseMAC(text)
	if err != nil || len(parsed) != 6 || bytes.Equal(parsed, mac[:]) {
		return mac, false
	}
	return [6]byte(parsed), true
}
