package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tokenFile is the service account's token of a pod.
const tokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// account is the service account that a token is of, if it is in the namespace of the leases; nil if the token does
// not say so. The leases belong to it: when stack-lb is uninstalled the cluster collects them with the account. Nothing
// else depends on it, and the API server alone believes the token: it is not verified here.
func account(token []byte, namespace string) *meta.OwnerReference {
	parts := strings.Split(strings.TrimSpace(string(token)), ".")
	if len(parts) != 3 {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var claims struct {
		Kubernetes struct {
			Namespace      string
			ServiceAccount struct {
				Name string
				UID  types.UID
			}
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(text, &claims) != nil {
		return nil
	}
	of := claims.Kubernetes
	if of.Namespace != namespace || of.ServiceAccount.Name == "" || of.ServiceAccount.UID == "" {
		return nil
	}
	return &meta.OwnerReference{
		APIVersion: "v1", Kind: "ServiceAccount", Name: of.ServiceAccount.Name, UID: of.ServiceAccount.UID,
	}
}
