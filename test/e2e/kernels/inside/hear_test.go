package inside

import (
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// shout sends a frame again and again, until stop is called.
func (s *site) shout(t *testing.T, on string, frame []byte) (stop func()) {
	t.Helper()
	w := openWire(t, s.lan, on)
	ended := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			if _, err := w.file.Write(frame); err != nil {
				t.Error(err)
			}
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() {
		close(ended)
		done.Wait()
	}
}

// dropDHCP drops what is sent to DHCP servers before any interface upon one gets it.
func (s *site) dropDHCP(t *testing.T, on string) {
	t.Helper()
	s.node.do(t, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Name: "deaf", Family: nftables.TableFamilyNetdev})
		chain := conn.AddChain(&nftables.Chain{
			Name: "ingress", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookIngress,
			Priority: nftables.ChainPriorityFilter, Device: on,
		})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			// The port of UDP, behind 20 bytes of IP.
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 22, Len: 2},
			&expr.Cmp{Register: 1, Data: []byte{0, 67}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		return conn.Flush()
	})
}

// The hearing test vouches for a listener that hears machines, tagged or not, and for no other: not for one that hears
// nothing, and not for one to which other broadcasts come while DHCP is taken away below it.
func TestHearing(t *testing.T) {
	t.Parallel()
	arp := slices.Concat(
		net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0x5e, 0, 0, 1, 8, 6}, make([]byte, 46))
	tests := map[string]struct {
		kind, parent string
		arp, dhcp    string // the interface that such frames are sent from
		drop         bool
		says         string
	}{
		"machines, macvlan":      {kind: "macvlan", parent: "nic0.20", dhcp: "lan0.20", says: "listener hears DHCP"},
		"machines, ipvlan":       {kind: "ipvlan", parent: "nic0.20", dhcp: "lan0.20", says: "listener hears DHCP"},
		"nobody boots":           {kind: "macvlan", parent: "nic0.20", arp: "lan0.20", says: "no_dhcp"},
		"nothing":                {kind: "macvlan", parent: "nic0.20", says: "no_traffic"},
		"machines on a VLAN":     {kind: "macvlan", parent: "nic0", arp: "lan0", dhcp: "lan0.20", says: "no_dhcp"},
		"DHCP is dropped before": {kind: "macvlan", parent: "nic0", arp: "lan0", dhcp: "lan0", drop: true, says: "no_dhcp"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node.vlan(t, "nic0", 20, ctag)
			s.lan.vlan(t, "lan0", 20, ctag)
			if test.drop {
				s.dropDHCP(t, "nic0")
			}
			if test.arp != "" {
				defer s.shout(t, test.arp, arp)()
			}
			if test.dhcp != "" {
				frame, _ := ask(t, nil)
				defer s.shout(t, test.dhcp, frame)()
			}
			const long, short = "1m", "1s" // long where the end of the wait is what is awaited
			hear := short
			if test.says == "listener hears DHCP" {
				hear = long
			}
			status, lines := s.init(t, "BROADCAST_INIT_PARENT="+test.parent, "BROADCAST_INIT_KIND="+test.kind,
				"BROADCAST_INIT_HEAR="+hear)
			last := lines[len(lines)-1]
			if said := last["msg"]; said == "listener impaired" {
				last["msg"] = last["cause"]
			}
			if status != 0 || last["msg"] != test.says {
				t.Errorf("status %d, said %v, want %q", status, last, test.says)
			}
		})
	}
}
