package main

import (
	"encoding/base64"
	"testing"

	"github.com/google/go-cmp/cmp"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// token is one with claims, signed by nobody.
func token(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

func TestAccountOfToken(t *testing.T) {
	const claims = `{"kubernetes.io":{"namespace":"boot","pod":{"name":"p","uid":"1"},"serviceaccount":{"name":"stack-lb","uid":"2"}}}`
	tests := map[string]struct {
		token, namespace string
		want             *meta.OwnerReference
	}{
		"of the leases' namespace": {
			token(claims) + "\n", "boot",
			&meta.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: "stack-lb", UID: "2"},
		},
		"of another namespace": {token(claims), "else", nil},
		"without an account":   {token(`{"kubernetes.io":{"namespace":"boot"}}`), "boot", nil},
		"without a UID":        {token(`{"kubernetes.io":{"namespace":"boot","serviceaccount":{"name":"a"}}}`), "boot", nil},
		"of somebody else":     {token(`{"iss":"https://issuer.example","sub":"a"}`), "", nil},
		"no JSON":              {token(`{`), "boot", nil},
		"no base64":            {"a.!.c", "boot", nil},
		"no JWT":               {"admin", "boot", nil},
		"empty":                {"", "", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, account([]byte(test.token), test.namespace)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzAccount(f *testing.F) {
	for _, seed := range []string{token(`{"kubernetes.io":{"namespace":"","serviceaccount":{"name":"a","uid":"b"}}}`), "a.b.c", ""} {
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, text, namespace string) {
		if owner := account([]byte(text), namespace); owner != nil && (owner.Name == "" || owner.UID == "") {
			t.Errorf("an owner without name or UID: %+v", owner)
		}
	})
}
