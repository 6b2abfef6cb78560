package charttest

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const onNode = "publicIP: 192.0.2.10\nbroadcast: {provider: hostNetwork, parents: [eno1]}\n"

// TestAdminPortsAreNotOnTheMachinesNetwork: on the node's network every address of the node may be one that machines reach.
func TestAdminPortsAreNotOnTheMachinesNetwork(t *testing.T) {
	for name, test := range map[string]struct {
		values, proxy, relay, probe string
	}{
		"in the pod":                {"publicIP: 192.0.2.10", ":9069", ":9067", ""},
		"on the node":               {onNode, "127.0.0.1:9069", "127.0.0.1:9067", "127.0.0.1"},
		"former host network":       {"stack: {hostNetwork: true, service: {enabled: false}}", "127.0.0.1:9069", "127.0.0.1:9067", "127.0.0.1"},
		"an address of the node's":  {onNode + "proxy: {adminAddress: 10.0.0.5}\nrelay: {adminAddress: 10.0.0.5}", "10.0.0.5:9069", "10.0.0.5:9067", "10.0.0.5"},
		"of IPv6":                   {onNode + "proxy: {adminAddress: '2001:db8::5'}\nrelay: {adminAddress: '2001:db8::5'}", "[2001:db8::5]:9069", "[2001:db8::5]:9067", "2001:db8::5"},
		"the node's own, as pod":    {onNode + "proxy: {adminAddress: pod}\nrelay: {adminAddress: pod}\nmonitoring: {podMonitor: {enabled: true}}", "[$(POD_IP)]:9069", "[$(POD_IP)]:9067", ""},
		"the pod's own, in the pod": {"publicIP: 192.0.2.10\nproxy: {adminAddress: pod}\nrelay: {adminAddress: pod}", "[$(POD_IP)]:9069", "[$(POD_IP)]:9067", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := rendersFrom(t, test.values)
			var deployment appsv1.Deployment
			out.object(t, "Deployment", "-proxy", &deployment)
			if got := variable(&deployment, "stack-proxy", "STACK_PROXY_ADMIN_ADDRESS"); got != test.proxy {
				t.Errorf("the proxy listens on %s", got)
			}
			if got := variable(&deployment, "dhcp-relay", "DHCP_RELAY_ADMIN_ADDRESS"); got != test.relay {
				t.Errorf("the relay listens on %s", got)
			}
			for _, c := range deployment.Spec.Template.Spec.Containers {
				for _, p := range []string{c.StartupProbe.HTTPGet.Host, c.ReadinessProbe.HTTPGet.Host, c.LivenessProbe.HTTPGet.Host} {
					if p != test.probe {
						t.Errorf("%s is probed at %q", c.Name, p)
					}
				}
				for _, p := range c.Ports {
					if strings.HasPrefix(p.Name, "admin-") && (p.HostPort != 0 || p.HostIP != test.probe) {
						t.Errorf("%s has %+v", c.Name, p)
					}
				}
			}
			if told := strings.Contains(out.notes(), "port-forward deployment/stack-proxy"); told != (test.probe == "127.0.0.1") {
				t.Errorf("the notes say:\n%s", out.notes())
			}
		})
	}
	refuses(t, onNode+"proxy: {adminAddress: 192.0.2.10}", "the address that machines use")
	refuses(t, onNode+"relay: {adminAddress: not-an-ip}", "/relay/adminAddress")
	refuses(t, "publicIP: 192.0.2.10\nproxy: {adminAddress: 10.0.0.5}", "only on the node's network")
	refuses(t, onNode+"monitoring: {podMonitor: {enabled: true}}", "set proxy.adminAddress and relay.adminAddress to pod")
	refuses(t, onNode+"monitoring: {podMonitor: {enabled: true}}\nproxy: {adminAddress: pod}", "set relay.adminAddress to pod")
	refuses(t, onNode+"replicas: 2\naffinity: {podAntiAffinity: {}}\nproxy: {adminAddress: 10.0.0.5}", "set proxy.adminAddress=pod")
}

// TestNobodyReachesTheAdminPortsUnlessNamed: a rule without "from" is for everybody.
func TestNobodyReachesTheAdminPortsUnlessNamed(t *testing.T) {
	for values, peers := range map[string]int{
		"{}": 1, "{adminFrom: []}": 1, "{adminFrom: null}": 1,
		"{adminFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}": 2,
	} {
		values = "networkPolicy: " + strings.Replace(values, "{", "{enabled: true, ", 1)
		var policy networkingv1.NetworkPolicy
		rendersFrom(t, values).object(t, "NetworkPolicy", "stack", &policy)
		admin := 0
		for _, rule := range policy.Spec.Ingress {
			for _, port := range rule.Ports {
				if n := port.Port.IntValue(); n != 9067 && n != 9069 {
					continue
				}
				admin++
				if len(rule.From) != peers || rule.From[0].PodSelector.MatchLabels["app.kubernetes.io/instance"] != "stack" {
					t.Errorf("%s: port %d is for %+v", values, port.Port.IntValue(), rule.From)
				}
			}
		}
		if admin != 2 {
			t.Errorf("%s: %d rules for admin ports", values, admin)
		}
	}
	refuses(t, "networkPolicy: {enabled: true, adminFrom: [monitoring]}", "/networkPolicy/adminFrom/0")
	if notes := rendersFrom(t, onNode+"networkPolicy: {enabled: true}").notes(); !strings.Contains(notes, "network policies do not hold") {
		t.Errorf("the notes say:\n%s", notes)
	}
	if notes := rendersFrom(t, "networkPolicy: {enabled: true}\nmonitoring: {podMonitor: {enabled: true}}").notes(); !strings.Contains(notes, "Prometheus is kept away") {
		t.Errorf("the notes say:\n%s", notes)
	}
}
