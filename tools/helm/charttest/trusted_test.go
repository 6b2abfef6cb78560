package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// believed is what stack-proxy's routes file says of those whose X-Forwarded-For is believed; empty: nobody.
func believed(t *testing.T, out rendered) string {
	t.Helper()
	var routes corev1.ConfigMap
	out.object(t, "ConfigMap", "-routes", &routes)
	_, rest, _ := strings.Cut(routes.Data["routes.yaml"], "trustedPrefixes: ")
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// TestMachinesAreNeverBelievedOfThemselves: a prefix that has machines in it lets each of them be any other.
func TestMachinesAreNeverBelievedOfThemselves(t *testing.T) {
	refused := map[string]string{
		"0.0.0.0/0": "nearly everybody", "::/0": "nearly everybody", "0.0.0.0/1": "nearly everybody", "::/1": "nearly everybody",
		"8000::/1": "nearly everybody", "::ffff:0:0/96": "nearly everybody", "::ffff:0.0.0.0/96": "nearly everybody",
		"192.0.2.0/24": "192.0.2.10 lies", "192.0.2.10/24": "192.0.2.10 lies", "192.0.0.0/8": "192.0.2.10 lies",
		"192.0.2.10": "192.0.2.10 lies", "::ffff:192.0.2.0/120": "192.0.2.10 lies", "::FFFF:c000:20a": "192.0.2.10 lies",
		"2001:db8::/32": "2001:db8::10 lies", "198.51.100.128/25": "is of the machines' network", "203.0.113.9": "is of the machines' network",
	}
	const base = "publicIP: 192.0.2.10\npublicIPv6: 2001:db8::10\nservice: {loadBalancerClass: kube-vip.io/kube-vip-class}\n" +
		"broadcast: {parents: [198.51.100.0/24, 'aa:bb:cc:dd:ee:ff', fe80, eno1, 203.0.113.9]}\n"
	for prefix, why := range refused {
		refuses(t, base+"trustedProxies: ['"+prefix+"']", why)
		if strings.Contains(prefix, "/") {
			refuses(t, base+"routes: {hegel: {trustedPrefixes: ['"+prefix+"']}}", "routes.hegel.trustedPrefixes has "+prefix)
		}
	}
	for _, malformed := range []string{"['0/0']", "['000.000.0.0/0']", "[' 0.0.0.0/0 ']", "['10.0.0.0/8,0.0.0.0/0']", "['10.0.0.0/08']",
		"[any]", "['*']", "[all]", "{0.0.0.0/0: true}", "0.0.0.0/0", "['0.0.0.0/0 # lab']", "[10]"} {
		refuses(t, base+"trustedProxies: "+malformed, "/trustedProxies")
	}
	for given, want := range map[string]string{
		"['']": "", "[]": "", "null": "", "['', 198.51.101.7]": `["198.51.101.7/32"]`,
		"[198.51.101.7, 198.51.101.7]":                `["198.51.101.7/32"]`,
		"[198.51.101.7/32, '2001:db9:ffff::/64']":     `["198.51.101.7/32","2001:db9:ffff::/64"]`,
		"[10.244.0.0/16, 198.51.101.0/24, 'fd00::1']": `["10.244.0.0/16","198.51.101.0/24","fd00::1/128"]`,
	} {
		out := rendersFrom(t, base+"trustedProxies: "+given)
		if got := believed(t, out); got != want {
			t.Errorf("%s: %s are believed, not %s", given, got, want)
		}
		if told := strings.Contains(out.notes(), "of a machine's address (X-Forwarded-For) is believed"); told != (want != "") {
			t.Errorf("%s: the notes say:\n%s", given, out.notes())
		}
	}
}

// TestMasqueradingIsNamedWhereProxiesAreBelieved: with policy Cluster a machine arrives with an address of the cluster's.
func TestMasqueradingIsNamedWhereProxiesAreBelieved(t *testing.T) {
	out := rendersFrom(t, "publicIP: 192.0.2.10\ntrustedProxies: [10.244.0.0/16]\nservice: {externalTrafficPolicy: Cluster}")
	if !strings.Contains(out.notes(), "machines themselves arrive with an address of a node") {
		t.Errorf("the notes say:\n%s", out.notes())
	}
}

// TestWhomSmeeAndHegelBelieveIsNotTakenOver: the same key was theirs in each former chart, and means something else here.
func TestWhomSmeeAndHegelBelieveIsNotTakenOver(t *testing.T) {
	for _, values := range []string{
		"global: {trustedProxies: [10.42.0.0/24]}", "global: {trustedProxies: ['10.42.0.0/24', '10.7.1.200/24'], publicIP: 10.7.1.200}",
		"global: {trustedProxies: ['{podCIDR}']}", "smee: {trustedProxies: [10.42.0.0/24]}", "hegel: {trustedProxies: [10.42.0.0/24]}",
	} {
		out := rendersFrom(t, values)
		if got := believed(t, out); got != "" {
			t.Errorf("%s: %s are believed", values, got)
		}
		if !strings.Contains(out.notes(), "trustedProxies: said whom Smee and Hegel believe") {
			t.Errorf("%s: the notes say:\n%s", values, out.notes())
		}
	}
	refuses(t, "preset: tinkerbell\ntrustedProxies: [10.42.0.0/24]\nartifactsFileServer: http://192.0.2.2:7173",
		"set here preset=tinkerbell and publicIP; the route files serves them at publicIP:7173; its trustedProxies do not carry over")
}
