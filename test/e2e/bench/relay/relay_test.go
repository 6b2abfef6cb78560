package relay

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// ourBehaviour is what dhcp-relay has to do in each case of the differential run, with its default settings.
var ourBehaviour = map[string]string{
	"plain":              "hops 1, giaddr set",
	"hops-4":             "dropped",
	"hops-10":            "dropped",
	"hops-16":            "dropped",
	"foreign-giaddr":     "dropped",
	"client-option82":    "dropped",
	"no-cookie":          "hops 1, giaddr set",
	"no-end":             "hops 1, giaddr set",
	"long":               "hops 1, giaddr set",
	"short":              "hops 1, giaddr set, padded to 300",
	"split-option":       "hops 1, giaddr set",
	"pads":               "hops 1, giaddr set",
	"infiniband":         "hops 1, giaddr set",
	"hlen-17":            "dropped",
	"op-3":               "dropped",
	"bad-checksum":       "dropped",
	"wrong-magic":        "hops 1, giaddr set",
	"rebind":             "hops 1, giaddr set",
	"rogue-on-lan":       "dropped",
	"offer":              "to chaddr, yiaddr",
	"offer-broadcast":    "to broadcast, 255.255.255.255",
	"proxy-offer":        "to chaddr, 255.255.255.255",
	"ack-ciaddr":         "to chaddr, ciaddr",
	"nak":                "to broadcast, 255.255.255.255",
	"offer-infiniband":   "to broadcast, 255.255.255.255",
	"other-port":         "to chaddr, yiaddr",
	"unasked":            "dropped",
	"no-giaddr-in-reply": "to chaddr, yiaddr",
}

// TestDifferential sends the same packets through dhcp-relay and its peers: ours does what it has to, and every case
// in which a peer does something else is explained in PEERS.md.
func TestDifferential(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces and run the peers")
	}
	var log bytes.Buffer
	comparisons, err := Differential(Options{Relay: program.ForTest(t, "dhcp-relay"), Directory: "../../../../build/bench/peers", Log: &log})
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
	for _, c := range comparisons {
		if got, want := c.Results[Ours], ourBehaviour[c.Name]; got != want {
			t.Errorf("%s (%s): got %q, want %q", c.Name, c.What, got, want)
		}
		if c.Differs() && !strings.Contains(string(docs), "| `"+c.Name+"` |") {
			t.Errorf("%s: PEERS.md does not explain %v", c.Name, c.Results)
		}
	}
}

// TestCandidates: those that are asked for, and other builds of ours behind them.
func TestCandidates(t *testing.T) {
	found := map[string]string{"dhcrelay": "x", "dhcp-helper": "x"}
	builds := map[string]string{"new": "y", "middle": "z"}
	for name, test := range map[string]struct {
		o    Options
		c    Case
		want []string
	}{
		"all":         {want: []string{Ours, ISC, DHCPHelper}},
		"all of IPv6": {c: Case{IPv6: true}, want: []string{Ours, ISC}},
		"some":        {o: Options{Candidates: []string{DHCPHelper, Ours, Dnsmasq}}, want: []string{Ours, DHCPHelper}},
		"builds": {
			o: Options{Candidates: []string{DHCPHelper}, Builds: builds}, want: []string{DHCPHelper, "middle", "new"},
		},
		"boots":         {o: Options{Boots: true}, want: []string{Ours, OursBoots}},
		"boots of IPv6": {o: Options{Boots: true}, c: Case{IPv6: true}, want: nil},
	} {
		if diff := cmp.Diff(test.want, test.o.candidates(test.c, found)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if got := (Case{Rate: 1}).command("new", Options{Relay: "x", Builds: builds}, found).Path; got != "y" {
		t.Errorf("started %q", got)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{2: {1, 2, 9}, 1.5: {1, 2}, 7: {7}} {
		if got := median(values); got != want {
			t.Errorf("%v: got %v", values, got)
		}
	}
}
