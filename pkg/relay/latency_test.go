package relay

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/dhcp6"
)

// answersCounted is how many first replies were timed.
func answersCounted(t *testing.T, registry *prometheus.Registry, name string) uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestReplyWithoutTokenIsNotTheFirst: a reply that is dropped for its missing token leaves the time to the first reply to
// the one that has it.
func TestReplyWithoutTokenIsNotTheFirst(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := newBench(t, func(c *Config) { c.TokenKey, c.Registerer = []byte("0123456789abcdef"), registry })
	request, drop := b.hear(message(dhcp.OpRequest, byte(dhcp.Discover)))
	if drop != None {
		t.Fatal(drop)
	}
	stripped := dhcp.Message(append(make([]byte, 0, 2048), request...)).StripOption82()
	if _, _, drop := b.answer(stripped); drop != TokenMissing {
		t.Fatalf("got %v", drop)
	}
	if _, _, drop := b.answer(request); drop != None {
		t.Fatalf("got %v", drop)
	}
	if got := answersCounted(t, registry, "dhcp_relay_reply_seconds"); got != 1 {
		t.Errorf("%d first replies are counted, want 1", got)
	}
}

// TestReplyWithoutTokenIsNotTheFirst6: the same of DHCPv6.
func TestReplyWithoutTokenIsNotTheFirst6(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := newBench6(t, func(c *Config) { c.TokenKey, c.Registerer = []byte("0123456789abcdef"), registry })
	request, drop := b.fromClient(message6(dhcp6.Solicit))
	if drop != None {
		t.Fatal(drop)
	}
	reply := answered(request, dhcp6.Advertise)
	bare := around(dhcp6.RelayReply, 0, reply.Link(), reply.Peer(), reply.Inner())
	if _, drop := reply6(b.worker, bare, serverIP, b.targets, b.now()); drop != TokenMissing {
		t.Fatalf("got %v", drop)
	}
	if _, drop := reply6(b.worker, reply, serverIP, b.targets, b.now()); drop != None {
		t.Fatalf("got %v", drop)
	}
	if got := answersCounted(t, registry, "dhcp_relay6_reply_seconds"); got != 1 {
		t.Errorf("%d first replies are counted, want 1", got)
	}
}
