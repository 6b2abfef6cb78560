package charttest

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// typesOf are the API's own types.
var typesOf = map[string]reflect.Type{
	"DaemonSet":             reflect.TypeFor[appsv1.DaemonSet](),
	"ClusterRole":           reflect.TypeFor[rbacv1.ClusterRole](),
	"ClusterRoleBinding":    reflect.TypeFor[rbacv1.ClusterRoleBinding](),
	"Deployment":            reflect.TypeFor[appsv1.Deployment](),
	"Service":               reflect.TypeFor[corev1.Service](),
	"ConfigMap":             reflect.TypeFor[corev1.ConfigMap](),
	"Pod":                   reflect.TypeFor[corev1.Pod](),
	"PersistentVolumeClaim": reflect.TypeFor[corev1.PersistentVolumeClaim](),
	"ServiceAccount":        reflect.TypeFor[corev1.ServiceAccount](),
	"NetworkPolicy":         reflect.TypeFor[networkingv1.NetworkPolicy](),
	"Ingress":               reflect.TypeFor[networkingv1.Ingress](),
	"PodDisruptionBudget":   reflect.TypeFor[policyv1.PodDisruptionBudget](),
	"Role":                  reflect.TypeFor[rbacv1.Role](),
	"RoleBinding":           reflect.TypeFor[rbacv1.RoleBinding](),
}

// strict decodes a document into the API's own type, where it is one: unknown fields, wrong types and keys that are there
// twice are mistakes.
func strict(t *testing.T, kind, document string) any {
	t.Helper()
	typeOf, ok := typesOf[kind]
	if !ok {
		return nil
	}
	into := reflect.New(typeOf).Interface()
	if err := yaml.UnmarshalStrict([]byte(document), into, yaml.DisallowUnknownFields); err != nil {
		t.Errorf("%s: %v\n%s", kind, err, document)
	}
	return into
}
