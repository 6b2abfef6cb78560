package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor/cluster"
)

// account is where a pod has its service account's token and CA.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// cluster is what to look at in Kubernetes, by the pod's service account.
func (s *settings) cluster() (func(context.Context, func(string, string, ...any)), error) {
	namespace, name, ok := strings.Cut(s.KubeService, "/")
	if !ok || namespace == "" {
		return nil, fmt.Errorf("STACK_DOCTOR_KUBE_SERVICE: %q is not namespace/name", s.KubeService)
	}
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("failed to find a pod's service account: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("failed to read the cluster's CA: there is no certificate")
	}
	const patience = 10 * time.Second
	o := cluster.Options{
		API: &cluster.API{
			Base: "https://kubernetes.default.svc",
			Token: func() (string, error) {
				text, err := os.ReadFile(filepath.Join(account, "token"))
				return strings.TrimSpace(string(text)), err
			},
			Client: &http.Client{
				Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
				Timeout:   patience,
			},
		},
		Namespace: namespace, Service: name, Pods: s.KubePods, AdminPort: s.KubeAdminPort, Backends: s.KubeBackends,
	}
	if s.Service != "" {
		o.Addresses = []string{s.Service}
	}
	return func(ctx context.Context, find func(string, string, ...any)) { cluster.Look(ctx, o, find) }, nil
}
