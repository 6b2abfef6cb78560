package hardware

import (
	"slices"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// list is a list of objects as the API sends it.
type list[T any] struct {
	meta.TypeMeta `json:",inline"`
	meta.ListMeta `json:"metadata"`
	Items         []T `json:"items"`
}

// DeepCopyObject implements runtime.Object. Nobody changes what was decoded.
func (l *list[T]) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = slices.Clone(l.Items)
	return &c
}
