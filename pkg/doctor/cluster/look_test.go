package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type object = map[string]any

// Paths of the objects.
const (
	ofPods        = "/api/v1/namespaces/stack/pods"
	ofService     = "/api/v1/namespaces/stack/services/stack"
	ofSlices      = "/apis/discovery.k8s.io/v1/namespaces/stack/endpointslices"
	ofPolicies    = "/apis/networking.k8s.io/v1/namespaces/stack/networkpolicies"
	ofDeployments = "/apis/apps/v1/namespaces/stack/deployments"
	ofBackends    = "/api/v1/namespaces/tink/pods"
	ofHardware    = "/apis/tinkerbell.org/v1alpha1/namespaces/tink/hardware"
	ofWorkflows   = "/apis/tinkerbell.org/v1alpha1/namespaces/tink/workflows"
)

func items(all ...any) object { return object{"items": all} }

func named4(name string, more object) object {
	o := object{"metadata": object{"name": name}}
	maps.Copy(o, more)
	return o
}

// machine is a Hardware object.
func machine(name, mac string, allowed bool) object {
	return named4(name, object{"spec": object{"interfaces": []any{object{
		"dhcp": object{"mac": mac}, "netboot": object{"allowPXE": allowed},
	}}}})
}

// good is a cluster in which nothing is wrong.
func good() map[string]object {
	many := []any{machine("m1", "02:00:00:00:00:01", true), machine("gone", "02:00:00:00:00:02", false)}
	for i := range 2000 {
		many = append(many, machine(fmt.Sprint("good-", i), fmt.Sprintf("02:01:00:00:%02x:%02x", i>>8, i&255), true))
	}
	tinkerbell := object{"args": []any{"--x", "-trusted-proxies", "10.42.0.0/16"}, "env": []any{
		object{"name": "TINKERBELL_TRUSTED_PROXIES", "value": "192.0.2.1,10.42.0.0/16"},
	}}
	return map[string]object{
		ofPods: items(object{
			"metadata": object{"name": "stack-1", "labels": object{"app": "stack"}},
			"status": object{"podIP": "10.42.0.7", "initContainerStatuses": []any{
				object{"name": "broadcast-init", "state": object{"terminated": object{"exitCode": 0, "reason": "Completed"}}},
			}, "containerStatuses": []any{object{"name": "stack-proxy", "ready": true}}},
		}),
		ofService: {
			"spec": object{"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": []any{
				object{"name": "tftp", "port": 69, "protocol": "UDP"}, object{"name": "http", "port": 7080, "protocol": "TCP"},
			}},
			"status": object{"loadBalancer": object{"ingress": []any{object{"ip": "192.0.2.2"}}}},
		},
		ofSlices: items(object{
			"endpoints": []any{object{"addresses": []any{"10.42.0.7"}, "conditions": object{"ready": true}}},
			"ports":     []any{object{"name": "http", "port": 7080, "protocol": "TCP"}},
		}),
		ofPolicies: items(
			named4("others", object{"spec": object{"podSelector": object{"matchLabels": object{"app": "other"}}}}),
			named4("open", object{"spec": object{"podSelector": object{}, "ingress": []any{
				object{"ports": []any{object{"port": 69, "protocol": "UDP"}}},
				object{"from": []any{object{"ipBlock": object{"cidr": "192.0.2.0/24"}}}, "ports": []any{object{"port": "http"}}},
			}}})),
		ofBackends: items(
			named4("tinkerbell", object{"spec": object{"containers": []any{tinkerbell}}}),
			named4("stack", object{"spec": object{"containers": []any{object{"env": []any{
				object{"name": "STACK_PROXY_TRUSTED_PROXIES", "value": "192.0.2.1"},
			}}}}})),
		ofHardware:  items(many...),
		ofWorkflows: items(named4("w", object{"spec": object{"hardwareRef": "m1"}, "status": object{"state": "PENDING"}})),
	}
}

// look looks at a cluster of objects, and gives what is found.
func look(t *testing.T, objects map[string]object, dial func(string) error, metrics string) (found []string) {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		o, ok := objects[r.URL.Path]
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		case o == nil:
			w.WriteHeader(http.StatusForbidden)
		default:
			// Lists come in two pages.
			if all, ok := o["items"].([]any); ok && len(all) > 1 {
				o = object{"items": all[:1], "metadata": object{"continue": "more"}}
				if r.URL.Query().Get("continue") != "" {
					o = object{"items": all[1:]}
				}
			}
			_ = json.NewEncoder(w).Encode(o)
		}
	}))
	defer api.Close()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(metrics)) }))
	defer admin.Close()
	var mu sync.Mutex
	Look(t.Context(), Options{
		API:       &API{Base: api.URL, Token: func() (string, error) { return "secret", nil }, Client: api.Client()},
		Namespace: "stack", Service: "stack", Pods: "app=stack", Addresses: []string{"192.0.2.2"}, Backends: []string{"tink"},
		AdminPort: 9069,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if strings.HasSuffix(address, ":9069") {
				address = admin.Listener.Addr().String()
			} else if err := dial(address); err != nil {
				return nil, err
			} else {
				address = api.Listener.Addr().String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}, func(name, format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, name+": "+fmt.Sprintf(format, args...))
	})
	slices.Sort(found)
	return found
}

func TestObjectsAreJudged(t *testing.T) {
	const metrics = "# TYPE x gauge\nstack_proxy_artifacts_set_state{set=\"hook\",state=\"current\"} 1\n"
	listens := func(string) error { return nil }
	put := func(path string, o object) func(map[string]object) {
		return func(all map[string]object) { all[path] = o }
	}
	spec := func(key string, value any) func(map[string]object) {
		return func(all map[string]object) { all[ofService]["spec"].(object)[key] = value }
	}
	hard := func(more ...any) func(map[string]object) { return put(ofHardware, items(more...)) }
	stack := object{"name": "stack-1", "labels": object{"app": "stack"}}
	for name, test := range map[string]struct {
		change  func(map[string]object)
		dial    func(string) error
		metrics string
		want    []string // names, and what each says
	}{
		"healthy": {want: []string{"hardware-installed: gone"}},
		"no rights at all": {change: func(all map[string]object) {
			for path := range all {
				all[path] = nil
			}
		}, want: []string{"not-judged: Hardware", "not-judged: Service", "not-judged: pods"}},
		"no such Service":   {change: func(all map[string]object) { delete(all, ofService) }, want: []string{"no-service: stack/stack"}},
		"no load balancer":  {change: func(all map[string]object) { delete(all[ofService], "status") }, want: []string{"no-load-balancer: without a class"}},
		"hidden addresses":  {change: spec("externalTrafficPolicy", "Cluster"), want: []string{"source-hidden: Cluster"}},
		"no endpoint ready": {change: put(ofSlices, items(object{"endpoints": []any{object{"addresses": []any{"10.42.0.7"}, "conditions": object{"ready": false}}}})), want: []string{"no-endpoints: stack/stack"}},
		"another address": {change: func(all map[string]object) {
			all[ofService]["status"] = object{"loadBalancer": object{"ingress": []any{object{"ip": "192.0.2.9"}}}}
		}, want: []string{"other-address: 192.0.2.9"}},
		"nothing listens":     {dial: func(string) error { return errors.New("connection refused") }, want: []string{"endpoint-closed: 10.42.0.7:7080"}},
		"silence is no proof": {dial: func(string) error { return context.DeadlineExceeded }},
		"machines are kept out": {change: put(ofPolicies, items(named4("inside", object{"spec": object{
			"podSelector": object{"matchExpressions": []any{object{"key": "app", "operator": "In", "values": []any{"stack"}}}},
			"policyTypes": []any{"Ingress"}, "ingress": []any{object{"from": []any{object{"podSelector": object{}}}}},
		}}))), want: []string{"network-policy: http (7080/TCP)"}},
		"policies may not be read": {change: put(ofPolicies, nil), want: []string{"not-judged: NetworkPolicies in stack"}},
		"proxies are not trusted": {change: put(ofBackends, items(named4("smee", object{"spec": object{
			"containers": []any{object{"args": []any{"-trusted-proxies=10.244.0.0/16"}}},
		}}))), want: []string{"proxies-not-trusted: 10.42.0.7"}},
		"the listener cannot be made": {change: put(ofPods, items(object{"metadata": stack, "status": object{
			"initContainerStatuses": []any{object{
				"name": "broadcast-init", "state": object{"waiting": object{"reason": "CrashLoopBackOff"}},
				"lastState": object{"terminated": object{"reason": "Error", "exitCode": 1, "message": "eth9 is missing"}},
			}},
		}})), want: []string{"pod-not-ready: eth9 is missing"}},
		"Pod Security": {change: func(all map[string]object) {
			all[ofPods] = items()
			all[ofDeployments] = items(named4("stack-proxy", object{"status": object{"conditions": []any{
				object{"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity \"restricted:latest\""},
			}}}))
		}, want: []string{"pod-refused: violates PodSecurity"}},
		"the volume is full": {metrics: strings.ReplaceAll(metrics, "current", "full"), want: []string{"files-not-fetched: hook: full"}},
		"Hardware": {change: hard(named4("bare", object{}), machine("a", "02-00-00-00-AA-01", true),
			machine("b", "02:00:00:00:aa:01", true), machine("group", "01:00:5e:00:00:01", true), machine("m1", "02:00:00:00:00:01", false)),
			want: []string{"hardware-mac: tink/group", "hardware-not-allowed: Workflow w", "hardware-same-mac: tink/a, tink/b",
				"hardware-without-interface: tink/bare"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := good()
			if name != "healthy" { // what is normal is said there
				objects[ofHardware] = items(machine("m1", "02:00:00:00:00:01", true))
			}
			if test.change != nil {
				test.change(objects)
			}
			if test.dial == nil {
				test.dial = listens
			}
			if test.metrics == "" {
				test.metrics = metrics
			}
			found := look(t, objects, test.dial, test.metrics)
			var got, want []string
			for i, f := range found {
				name, _, _ := strings.Cut(f, ":")
				got = append(got, name)
				if _, says, _ := strings.Cut(test.want[min(i, max(len(test.want)-1, 0))], ": "); i < len(test.want) && !strings.Contains(f, says) {
					t.Errorf("%q does not say %q", f, says)
				}
			}
			for _, w := range test.want {
				name, _, _ := strings.Cut(w, ":")
				want = append(want, name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\n%s", diff, strings.Join(found, "\n"))
			}
		})
	}
}

func TestManyObjectsAreNotAllNamed(t *testing.T) {
	var all []string
	for i := range mostNamed + 5 {
		all = append(all, fmt.Sprint("tink/m", i))
	}
	if got := named(all); !strings.HasSuffix(got, " and 5 more") || strings.Count(got, "tink/") != mostNamed {
		t.Error(got)
	}
}
