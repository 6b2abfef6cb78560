package failover

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// site builds stack-lb and a site with it.
func site(t *testing.T, nodes int, settings ...string) *Site {
	t.Helper()
	needsRoot(t)
	if _, err := Cached(); err != nil {
		t.Skip(err)
	}
	s, err := NewSite(t.Context(), t.TempDir(), Setup{
		Nodes: nodes, Addresses: 1, Proxy: "nftables", Balancer: StackLB(program.ForTest(t, "stack-lb"), settings...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
}

// TestAddressSurvivesItsNode: the client reaches the address again in time when its node drains, when stack-lb leaves, and
// when it hangs; never do two stations answer one ARP probe; and a drain loses no connection. The bench has the other cases.
func TestAddressSurvivesItsNode(t *testing.T) {
	s := site(t, 2, Short...)
	if err := s.Open(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, s.Logs())
	}
	for _, c := range Cases() {
		if !slices.Contains([]string{"leave", "drain", "stopped"}, c.Name) {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			seen, err := s.Try(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", seen)
			if seen.Echo > c.Bound {
				t.Errorf("no answer for %.2f s, more than %.0f", seen.Echo, c.Bound)
			}
			if seen.Moves != 1 || seen.Next == seen.Owner {
				t.Errorf("the address moved %d times, from %s to %s", seen.Moves, seen.Owner, seen.Next)
			}
			if c.Name != "stopped" && seen.Lost > 0 {
				t.Errorf("%d of %d connections were not established", seen.Lost, seen.Connections)
			}
		})
	}
	if log := s.sampler.Since(time.Time{})[0]; log.Fault() != nil || log.Probes == 0 {
		t.Errorf("%d probes: %v", log.Probes, log.Fault())
	}
}

// TestSamplerSeesTwoOwners: the sampler tells nobody, one station, another one, and two at one time.
func TestSamplerSeesTwoOwners(t *testing.T) {
	needsRoot(t)
	sw, err := newSwitch()
	if err != nil {
		t.Fatal(err)
	}
	hosts := []*host{sw}
	names := map[[6]byte]string{}
	for i, name := range []string{"sampler", "a", "b"} {
		h, err := newHost(name)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, h)
		if err := h.plug(sw, 4+i); err != nil {
			t.Fatal(err)
		}
		own, err := h.links.LinkByName(link)
		if err != nil {
			t.Fatal(err)
		}
		names[[6]byte(own.Attrs().HardwareAddr)] = name
	}
	t.Cleanup(func() {
		for _, h := range hosts {
			if err := h.close(); err != nil {
				t.Error(err)
			}
		}
	})
	s, err := hosts[1].sample(link, names, netip.MustParseAddr(VIP))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	bridge, err := sw.sample("br0", names, netip.MustParseAddr(VIP)) // as the lab of Kubernetes has it
	if err != nil {
		t.Fatal(err)
	}
	defer bridge.Stop()
	var want []string
	for _, step := range []struct {
		host *host
		has  bool
		want string
	}{{nil, false, ""}, {hosts[2], true, "a"}, {hosts[3], true, "a b"}, {hosts[2], false, "b"}, {hosts[3], false, ""}} {
		if step.host != nil {
			if err := step.host.vip(link, 32, step.has); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, step.want)
		progress.Await(t, fmt.Sprintf("the owners are %q", step.want), func() error {
			for _, each := range []*arp.Sampler{s, bridge} {
				spans := each.Since(time.Time{})[0].Spans
				if len(spans) == 0 || spans[len(spans)-1].Owners != step.want {
					return fmt.Errorf("saw %+v", spans)
				}
			}
			return nil
		})
	}
	log := s.Since(time.Time{})[0]
	var got []string
	for _, span := range log.Spans {
		got = append(got, span.Owners)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners differ (-want +got):\n%s", diff)
	}
	if log.TwoOwners == 0 || log.Moves != 1 || !errors.Is(log.Fault(), arp.ErrTwoOwners) {
		t.Errorf("got %+v, %v", log, log.Fault())
	}
}

// Parts add up in one file, and rows count the tries of all.
func TestPartsAddUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "failover.json")
	for i, lost := range []int{3, 1, 2} {
		try := Try{Case: "drain", Seen: Seen{Lost: lost, Connections: 500}, Wire: Wire{Probes: 50}}
		part := Part{Candidate: []string{"stack-lb", "stack-lb", "stack-lb-short"}[i], Tries: []Try{try}}
		result, err := Add(path, part)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range result.Rows {
			if row.Metric != "connects-lost" || row.Candidate != part.Candidate {
				continue
			}
			if want := []int{1, 2, 1}[i]; row.Runs != want || row.Min != float64(lost) {
				t.Errorf("part %d: got %+v, want %d runs", i, row, want)
			}
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Add(path, Part{}); err == nil {
		t.Error("a broken file was taken")
	}
}

func TestUnknownCasesAreRefused(t *testing.T) {
	if _, err := Run(t.Context(), Options{Cases: []string{"leave", "earthquake"}}); err == nil {
		t.Error("got no error")
	}
}

// An outage begins with a request without an answer and ends with the next one that has one. Without requests there is none.
func TestOutage(t *testing.T) {
	began := time.Now()
	at := func(ms int, served bool) attempt {
		return attempt{at: began.Add(time.Duration(ms) * time.Millisecond), served: served}
	}
	for name, test := range map[string]struct {
		attempts []attempt
		want     float64
	}{
		"all answered":       {[]attempt{at(0, true), at(10, true), at(900, true)}, 0},
		"some not":           {[]attempt{at(10, true), at(20, false), at(30, false), at(120, true), at(130, false), at(140, true)}, 0.1},
		"in another order":   {[]attempt{at(120, true), at(30, false), at(20, false), at(10, true)}, 0.1},
		"it goes on":         {[]attempt{at(10, true), at(500, false), at(510, false)}, 0.5},
		"the last under way": {[]attempt{at(10, true), at(990, false)}, 0},
		"before":             {[]attempt{at(-30, false), at(-20, false), at(10, true)}, 0},
		"none":               {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := longest(began, began.Add(time.Second), test.attempts); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
