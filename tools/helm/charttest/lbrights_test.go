package charttest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// written are the objects of a resource that stack-lb's Role lets it change by their names; none is all.
func written(t *testing.T, out rendered, resource, verb string) []string {
	t.Helper()
	var role rbacv1.Role
	out.object(t, "Role", "-lb", &role)
	for _, rule := range role.Rules {
		if slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb) {
			return rule.ResourceNames
		}
	}
	t.Fatalf("the Role has no right to %s %s", verb, resource)
	return nil
}

// TestLoadBalancerChangesNothingOfOthers: the token of a node changes this release's Service and the Leases of its
// addresses, as far as the values name them.
func TestLoadBalancerChangesNothingOfOthers(t *testing.T) {
	for values, addresses := range map[string]string{
		"publicIP: 192.0.2.10":                                  "192.0.2.10",
		"publicIP: 192.0.2.10\npublicIPv6: 2001:db8::10":        "192.0.2.10,2001:db8::10",
		"publicIP: 2001:DB8:1:2:3:4:5:6":                        "2001:db8:1:2:3:4:5:6",
		"publicIP: '2001:db8:1:2:3:4:5::'":                      "2001:db8:1:2:3:4:5::",
		"publicIP: 'fd00::'":                                    "fd00::",
		"publicIP: 192.0.2.10\nloadBalancer: {services: [ui]}":  "",
		"publicIP: 192.0.2.10\nloadBalancer: {classWide: true}": "",
		"publicIP: 192.0.2.10\nservice: {enabled: false}":       "",
		"publicIP: 192.0.2.10\nservice: {annotations: {stack-lb.tinkerbell.org/addresses: '192.0.2.10, 2001:db8::7'}}": "192.0.2.10,2001:db8::7",
	} {
		if !strings.Contains(values, "loadBalancer:") {
			values += "\nloadBalancer: {}"
		}
		out := rendersFrom(t, strings.Replace(values, "loadBalancer: {", "loadBalancer: {enabled: true, ", 1))
		var want []string
		if addresses != "" {
			want = append(want, "stack-lb")
			for _, a := range strings.Split(addresses, ",") { // as LeaseName of pkg/lb
				want = append(want, "stack-lb-"+strings.NewReplacer(".", "-", ":", "-").Replace(netip.MustParseAddr(a).StringExpanded()))
			}
		}
		for _, verb := range []string{"get", "update", "patch"} {
			if got := written(t, out, "leases", verb); !slices.Equal(got, want) {
				t.Errorf("%s: may %s the leases %q, want %q", values, verb, got, want)
			}
		}
		if strings.Contains(values, "classWide") {
			continue
		}
		services := []string{"stack"}
		if strings.Contains(values, "ui") {
			services = append(services, "ui")
		}
		if got := written(t, out, "services/status", "update"); !slices.Equal(got, services) {
			t.Errorf("%s: may write the status of %q, want %q", values, got, services)
		}
	}
}
