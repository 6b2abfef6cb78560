package relay

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// ourBehaviour6 is what dhcp-relay has to do in each case of DHCPv6: with its default settings, and, where that is
// something else, with TRUSTED_RELAYS.
var ourBehaviour6 = map[string][2]string{
	"solicit":            {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"information":        {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"unknown-type":       {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"from-global":        {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"advertise-on-lan":   {"dropped", "dropped"},
	"reconfigure-on-lan": {"dropped", "dropped"},
	"relay-repl-on-lan":  {"dropped", "dropped"},
	"bad-checksum":       {"dropped", "dropped"},
	"short":              {"dropped", "dropped"},
	"no-options":         {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"cut-option":         {"dropped", "dropped"},
	"large":              {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"oversize":           {"hop-count 0, link-address its own, options 18 79", "hop-count 0, link-address its own, options 18 79"},
	"other-relay":        {"dropped", "hop-count 1, link-address its own, options 18"},
	"zero-link":          {"dropped", "hop-count 1, link-address its own, options 18"},
	"hop-7":              {"dropped", "hop-count 8, link-address its own, options 18"},
	"hop-8":              {"dropped", "dropped"},
	"hop-10":             {"dropped", "dropped"},
	"hop-32":             {"dropped", "dropped"},
	"nested-12":          {"dropped", "dropped"},
	"no-relay-message":   {"dropped", "dropped"},
	"own-link":           {"dropped", "dropped"},
	"no-global":          {"hop-count 0, link-address zero, options 18 79", "hop-count 0, link-address zero, options 18 79"},
	"reply":              {"to the peer, port 546", "to the peer, port 546"},
	"reply-no-global":    {"to the peer, port 546", "to the peer, port 546"},
	"reply-other-relay":  {"the request is not relayed", "to the peer, port 547"},
	"no-interface-id":    {"to the peer, port 546", "to the peer, port 546"},
	"wrong-interface-id": {"dropped", "dropped"},
	"no-link-no-id":      {"dropped", "dropped"},
	"other-port":         {"to the peer, port 546", "to the peer, port 546"},
	"reply-hops":         {"to the peer, port 546", "to the peer, port 546"},
	"reconfigure":        {"dropped", "dropped"},
	"unasked":            {"dropped", "dropped"},
	"other-peer":         {"dropped", "dropped"},
	"request-in-reply":   {"dropped", "dropped"},
	"reply-no-message":   {"dropped", "dropped"},
	"reply-not-wrapped":  {"dropped", "dropped"},
	"reply-cut":          {"dropped", "dropped"},
}

// TestDifferential6 sends the same DHCPv6 messages through dhcp-relay, with and without trust in other relays, ISC
// dhcrelay and dnsmasq: ours does what it has to, and every case in which a peer does something else is explained in
// PEERS.md.
func TestDifferential6(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces and run the peers")
	}
	var log bytes.Buffer
	comparisons, err := Differential6(Options{Relay: program.ForTest(t, "dhcp-relay"), Directory: "../../../../build/bench/peers", Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Logf("peers are left out:\n%s", &log)
	}
	docs, err := os.ReadFile("PEERS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(docs), "\n## DHCPv6\n")
	if !found {
		t.Fatal("PEERS.md has no table of DHCPv6")
	}
	if len(comparisons) != len(ourBehaviour6) {
		t.Errorf("%d cases, want %d", len(comparisons), len(ourBehaviour6))
	}
	for _, c := range comparisons {
		for i, candidate := range []string{Ours, OursTrusting} {
			if got, want := c.Results[candidate], ourBehaviour6[c.Name][i]; got != want {
				t.Errorf("%s (%s), %s: got %q, want %q", c.Name, c.What, candidate, got, want)
			}
		}
		if c.Differs() && !strings.Contains(table, "| `"+c.Name+"` |") {
			t.Errorf("%s: PEERS.md does not explain %v", c.Name, c.Results)
		}
	}
}
