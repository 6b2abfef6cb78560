package jwt

import (
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A claim's header does not come from outside under a name that a backend takes for it.
func TestClaimsHaveNoAlias(t *testing.T) {
	v := &Verifier{forward: map[string]string{"X-Auth-Subject": "sub", "X_tenant": "tenant"}}
	h := http.Header{}
	for _, name := range []string{
		"X-Auth-Subject", "X_Auth_Subject", "x-auth_subject", "X.Auth.Subject", "X~AUTH!SUBJECT", "X_Tenant", "X-Tenant",
		"Authorization", "X-Auth-Subjects", "X_Other",
	} {
		h[http.CanonicalHeaderKey(name)] = []string{"a"}
	}
	v.clean(h)
	var left []string
	for name := range h {
		left = append(left, name)
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"Authorization", "X-Auth-Subjects", "X_other"}, left); diff != "" {
		t.Error(diff)
	}
}
