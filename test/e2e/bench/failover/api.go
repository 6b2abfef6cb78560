package failover

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// api is a kube-apiserver on etcd, on a host of its own.
type api struct {
	host         *host
	etcd, server *process.Process
	client       *http.Client
}

// namespace is where the leases and the Services are, and elsewhere is that of another stack-lb.
const (
	namespace = "stack"
	elsewhere = "elsewhere"
)

// Rules are what stack-lb needs of the API, cluster-wide and in its own namespace; docs/stack-lb.md has them.
var (
	ClusterRules = []any{
		rule("", "services", "get", "list", "watch"), rule("", "services/status", "update"),
		rule("", "nodes", "list", "watch"), rule("", "events", "create", "patch"),
		rule("discovery.k8s.io", "endpointslices", "list", "watch"), rule("coordination.k8s.io", "leases", "list", "watch"),
	}
	NamespaceRules = []any{rule(
		"coordination.k8s.io", "leases", "get", "list", "watch", "create", "update", "patch", "delete")}
)

func rule(group, resource string, verbs ...string) any {
	return object{"apiGroups": []string{group}, "resources": []string{resource}, "verbs": verbs}
}

type object = map[string]any

// Binaries are paths of Kubernetes' programs.
type Binaries struct{ apiserver, proxy, etcd string }

// Cached finds the Kubernetes binaries that the kube lab has cached, and says what is missing.
func Cached() (Binaries, error) {
	home, err := os.UserCacheDir()
	if err != nil {
		return Binaries{}, err
	}
	found, err := filepath.Glob(filepath.Join(home, "tinkerbell-stack", "kube-*", "kube-apiserver"))
	if err != nil || len(found) == 0 {
		return Binaries{}, errors.New("no kube-apiserver in ~/.cache/tinkerbell-stack (make e2e-kube builds one)")
	}
	beside := filepath.Dir(found[0])
	b := Binaries{found[0], filepath.Join(beside, "kube-proxy"), filepath.Join(beside, "debian/usr/bin/etcd")}
	for _, path := range []string{b.proxy, b.etcd} {
		if _, err := os.Stat(path); err != nil {
			return b, fmt.Errorf("no %s beside the cached kube-apiserver (make e2e-kube has it)", filepath.Base(path))
		}
	}
	return b, nil
}

func startAPI(ctx context.Context, h *host, dir string) (*api, error) {
	programs, err := Cached()
	if err != nil {
		return nil, err
	}
	if err := writeCredentials(dir); err != nil {
		return nil, err
	}
	a := &api{host: h}
	a.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its own certificate, in a namespace
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = h.in(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	// They come first, as on a machine of their own, where the load of nodes is not theirs.
	a.etcd, err = h.start(ctx, dir, "etcd", nil, nil, "nice", "-n", "-20", programs.etcd,
		"--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level", "error")
	if err != nil {
		return nil, err
	}
	key := filepath.Join(dir, "sa.key")
	ready := func(ctx context.Context) error { return a.do(ctx, http.MethodGet, "/readyz", nil) }
	a.server, err = h.start(ctx, dir, "apiserver", ready, nil, "nice", "-n", "-20", programs.apiserver,
		"--etcd-servers", "http://127.0.0.1:2379",
		"--cert-dir", filepath.Join(dir, "certs"), "--bind-address", apiIP, "--advertise-address", apiIP,
		"--service-cluster-ip-range", "10.96.0.0/16,fd00:96::/112", "--token-auth-file", filepath.Join(dir, "tokens.csv"),
		"--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--service-account-issuer", "https://kubernetes.default.svc", "--authorization-mode", "RBAC",
		"--disable-admission-plugins", "ServiceAccount", "--watch-cache=true")
	return a, err
}

func writeCredentials(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "sa.key"), block, 0o600),
		os.WriteFile(filepath.Join(dir, "tokens.csv"), []byte("admin,admin,1,\"system:masters\"\nlb,lb,2,\n"), 0o600),
		writeKubeconfig(dir, "admin", "admin", apiPort),
	)
}

// apiPort is where the API server listens, and the gates of nodes follow on gatePort.
const (
	apiPort  = 6443
	gatePort = 7000
)

// writeKubeconfig leads to a port of the API's host, from the namespace of the stack; "-elsewhere" from another one.
func writeKubeconfig(dir, name, token string, port int) error {
	const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s:%d", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: %s}}]
current-context: x
`
	path := filepath.Join(dir, "kubeconfig-"+name)
	return errors.Join(
		os.WriteFile(path, fmt.Appendf(nil, kubeconfig, apiIP, port, token, namespace), 0o600),
		os.WriteFile(path+"-elsewhere", fmt.Appendf(nil, kubeconfig, apiIP, port, token, elsewhere), 0o600),
	)
}

func (a *api) stop() {
	if a == nil {
		return
	}
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
	a.server.Kill()
	a.etcd.Kill()
}

// do sends an object to the API.
func (a *api) do(ctx context.Context, method, path string, in any) error {
	_, err := a.ask(ctx, method, path, in)
	return err
}

// ask sends an object to the API, and returns the answer.
func (a *api) ask(ctx context.Context, method, path string, in any) (string, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return "", err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("https://%s:%d%s", apiIP, apiPort, path), body)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer admin")
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := a.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode >= 300 {
		return "", fmt.Errorf("failed to %s %s: %s: %.300s", method, path, response.Status, text)
	}
	return string(text), nil
}

// rbac is the path of the API group of rights.
const rbac = "/apis/rbac.authorization.k8s.io/v1"

// prepare makes the namespaces, the roles and the nodes.
func (a *api) prepare(ctx context.Context, nodes []*node) error {
	name := object{"name": "lb"}
	err := a.do(ctx, http.MethodPost, rbac+"/clusterroles", object{"metadata": name, "rules": ClusterRules})
	for _, each := range []string{namespace, elsewhere} {
		path := rbac + "/namespaces/" + each
		err = errors.Join(err,
			a.do(ctx, http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": each}}),
			a.do(ctx, http.MethodPost, path+"/roles", object{"metadata": name, "rules": NamespaceRules}),
			a.do(ctx, http.MethodPost, path+"/rolebindings", binding("Role")))
	}
	if err := errors.Join(err, a.admit(ctx)); err != nil {
		return err
	}
	for _, node := range nodes {
		addresses := []object{
			{"type": "InternalIP", "address": node.address()},
			{"type": "InternalIP", "address": fmt.Sprintf("2001:db8::%d", node0+node.number)},
		}
		err := a.do(ctx, http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": node.name}})
		if err == nil {
			err = a.do(ctx, http.MethodPatch, "/api/v1/nodes/"+node.name+"/status",
				object{"status": object{"addresses": addresses}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// binding gives the balancers a role.
func binding(kind string) object {
	const group = "rbac.authorization.k8s.io"
	return object{
		"metadata": object{"name": "lb"}, "subjects": []object{{"kind": "User", "name": "lb", "apiGroup": group}},
		"roleRef": object{"apiGroup": group, "kind": kind, "name": "lb"},
	}
}

// Paths of the bindings of balancers: what is deleted with them, when they are uninstalled.
const (
	clusterBindings = rbac + "/clusterrolebindings"
	bindings        = rbac + "/namespaces/" + namespace + "/rolebindings"
)

// admit gives the balancers their rights in the cluster, and expel takes them and those in their namespace away.
func (a *api) admit(ctx context.Context) error {
	return a.do(ctx, http.MethodPost, clusterBindings, binding("ClusterRole"))
}

func (a *api) expel(ctx context.Context) error {
	return errors.Join(
		a.do(ctx, http.MethodDelete, clusterBindings+"/lb", nil), a.do(ctx, http.MethodDelete, bindings+"/lb", nil))
}

// Paths of the objects.
const (
	servicesPath = "/api/v1/namespaces/" + namespace + "/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
)

// web is the name of the Service that has the address, with an endpoint on each node.
const web = "web"

// A pod's state as the EndpointSlices of a Service have it.
type podState struct{ ready, serving, terminating bool }

var (
	podReady    = podState{ready: true, serving: true}
	podDraining = podState{serving: true, terminating: true}
	podNotReady = podState{}
)

// sliceOf is the EndpointSlice of the Service, with the pod of each node.
func sliceOf(family string, pods map[*node]podState) object {
	endpoints := []object{}
	for node, state := range pods {
		address := podIP(node.number, 1)[0]
		if family == "IPv6" {
			address = podIP(node.number, 1)[1]
		}
		endpoints = append(endpoints, object{
			"addresses": []string{address}, "nodeName": node.name, "conditions": object{
				"ready": state.ready, "serving": state.serving, "terminating": state.terminating,
			},
		})
	}
	return object{
		"metadata": object{
			"name":   web + "-" + map[string]string{"IPv4": "4", "IPv6": "6"}[family],
			"labels": object{"kubernetes.io/service-name": web},
		},
		"addressType": family, "endpoints": endpoints, "ports": []object{{"name": "p", "port": 80, "protocol": "TCP"}},
	}
}

// endpoints writes the EndpointSlices of the Service.
func (a *api) endpoints(ctx context.Context, pods map[*node]podState) error {
	for _, family := range []string{"IPv4", "IPv6"} {
		slice := sliceOf(family, pods)
		name := slice["metadata"].(object)["name"].(string)
		err := a.do(ctx, http.MethodPatch, slicesPath+"/"+name, object{"endpoints": slice["endpoints"]})
		if err != nil {
			err = a.do(ctx, http.MethodPost, slicesPath, slice)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
