package doctor

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/doctor/finding"
)

// Flags of a router's advertisement; 0: none is sent.
const (
	managed   = 0x80
	stateless = 0x40
)

const server6 = "2001:db8:30::2"

// site6 is a site that speaks IPv6, and is silent where it is asked by DHCPv4.
type site6 struct {
	*site
	flags  byte
	prefix string                                  // that routers advertise; empty: they advertise none
	answer func(*dhcpv6.Message) []dhcpv6.Modifier // nil: nobody answers SOLICIT

	mu    sync.Mutex
	kinds []dhcpv6.MessageType // that were heard
	rapid bool                 // one of them asks for a lease at once
}

func newSite6(t *testing.T) *site6 {
	t.Helper()
	s := &site6{site: newSite(t), flags: managed, prefix: "2001:db8:30::/64"}
	s.server.Addr(t, "eth1", server6+"/64")
	s.addr, s.dhcp = server6, nil
	mux, content := http.NewServeMux(), efi(0x8664)
	for path, text := range map[string][]byte{
		"/ipxe.efi": content, "/vmlinuz": content,
		"/auto.ipxe": []byte("#!ipxe\nkernel http://[" + server6 + "]/vmlinuz\nboot\n"),
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, path, time.Now(), bytes.NewReader(text))
		})
	}
	s.web = mux
	s.answer = func(m *dhcpv6.Message) []dhcpv6.Modifier {
		switch {
		case len(m.Options.UserClasses()) > 0:
			return advertises("http://["+server6+"]/auto.ipxe", m)
		case slices.Contains(m.Options.ArchTypes(), iana.EFI_X86_64_HTTP):
			return advertises("http://["+server6+"]/ipxe.efi", m)
		}
		return advertises("tftp://["+server6+"]/ipxe.efi", m)
	}
	return s
}

// advertises is an answer with an address and a boot file URL.
func advertises(u string, m *dhcpv6.Message) []dhcpv6.Modifier {
	mods := []dhcpv6.Modifier{
		dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}),
		dhcpv6.WithIAID(m.Options.OneIANA().IaId),
		dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("2001:db8:30::100"), PreferredLifetime: time.Hour, ValidLifetime: time.Hour}),
	}
	if u != "" {
		mods = append(mods, dhcpv6.WithOption(dhcpv6.OptBootFileURL(u)))
	}
	return mods
}

// only names another boot file URL for firmware.
func only(u string) func(*site6) {
	return func(s *site6) {
		before := s.answer
		s.answer = func(m *dhcpv6.Message) []dhcpv6.Modifier {
			if len(m.Options.UserClasses()) > 0 {
				return before(m)
			}
			return advertises(u, m)
		}
	}
}

// start6 starts the servers.
func (s *site6) start6(t *testing.T) {
	t.Helper()
	s.start(t)
	s.server.Do(t, func() error {
		eth1, err := net.InterfaceByName("eth1")
		if err != nil {
			return err
		}
		conn, err := net.ListenPacket("udp6", "[::]:547")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = conn.Close() })
		group := &net.UDPAddr{IP: net.ParseIP("ff02::1:2")}
		if err := ipv6.NewPacketConn(conn).JoinGroup(eth1, group); err != nil {
			return err
		}
		go s.serveDHCP6(conn)
		if s.flags == 0 {
			return nil
		}
		raw, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = raw.Close() })
		if err := ipv6.NewPacketConn(raw).SetMulticastHopLimit(255); err != nil {
			return err
		}
		go s.advertise(raw)
		return nil
	})
}

// advertise sends a router's advertisement each second: its flags, a default route and the network.
func (s *site6) advertise(conn net.PacketConn) {
	body := []byte{134, 0, 0, 0, 64, s.flags, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	if s.prefix != "" {
		p := netip.MustParsePrefix(s.prefix)
		network := p.Addr().As16()
		body = slices.Concat(body, []byte{3, 4, byte(p.Bits()), 0x80}, make([]byte, 12), network[:])
	}
	for {
		if _, err := conn.WriteTo(body, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: "eth1"}); errors.Is(err, net.ErrClosed) {
			return
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func (s *site6) serveDHCP6(conn net.PacketConn) {
	buffer := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		m, err := dhcpv6.MessageFromBytes(buffer[:n])
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.kinds = append(s.kinds, m.MessageType)
		s.rapid = s.rapid || m.GetOneOption(dhcpv6.OptionRapidCommit) != nil
		s.mu.Unlock()
		if s.answer == nil {
			continue
		}
		if reply, err := dhcpv6.NewAdvertiseFromSolicit(m, s.answer(m)...); err == nil {
			_, _ = conn.WriteTo(reply.ToBytes(), from)
		}
	}
}

// silent puts the server behind the router, which drops what is for it in silence, and advertises another prefix, or none.
func silent(t *testing.T, s *site6, prefix bool) {
	t.Helper()
	if s.prefix = ""; prefix {
		s.prefix = "2001:db8:77::/64"
	}
	const far = "2001:db8:40::2"
	s.answer = func(m *dhcpv6.Message) []dhcpv6.Modifier {
		switch {
		case len(m.Options.UserClasses()) > 0:
			return advertises("http://["+far+"]/auto.ipxe", m)
		case slices.Contains(m.Options.ArchTypes(), iana.EFI_X86_64_HTTP):
			return append(advertises("http://["+far+"]/ipxe.efi", m), dhcpv6.WithOption(&dhcpv6.OptVendorClass{
				EnterpriseNumber: 343, Data: [][]byte{[]byte("HTTPClient")},
			}))
		}
		return advertises("tftp://["+far+"]/ipxe.efi", m)
	}
	blackhole := &netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(far)), Type: unix.RTN_BLACKHOLE}
	if err := s.server.Links().RouteAdd(blackhole); err != nil {
		t.Fatal(err)
	}
}

// What is wrong over IPv6 is named, and nothing is requested there either.
func TestFaultsOverIPv6AreNamed(t *testing.T) {
	t.Parallel() // it waits
	yes := func(o *Options) { o.IPv6 = true }
	type test struct {
		stage  func(*testing.T, *site6)
		change func(*Options)
		want   string
		says   string
	}
	answers := func(stage func(*site6)) func(*testing.T, *site6) { return func(_ *testing.T, s *site6) { stage(s) } }
	tests := map[string]test{
		"healthy, where DHCPv4 is silent": {nil, nil, "", "ipv6-only"},
		"healthy, asked alone":            {nil, yes, "", "2001:db8:30::2"},
		"managed, and nobody answers": {answers(func(s *site6) { s.answer = nil }), yes, "no-dhcpv6",
			"says that addresses come by DHCPv6"},
		"stateless":          {answers(func(s *site6) { s.flags, s.answer = stateless, nil }), yes, "no-dhcpv6", "no addresses come by DHCPv6"},
		"no boot file":       {answers(only("")), yes, "no-boot-file", "option 59"},
		"without brackets":   {answers(only("tftp://2001:db8:30::2/ipxe.efi")), yes, "boot-url", "brackets"},
		"a link-local":       {answers(only("tftp://[fe80::2]/ipxe.efi")), yes, "boot-url", "link-local"},
		"a name without DNS": {answers(only("tftp://boot.lab/ipxe.efi")), yes, "boot-url", "no name server"},
		"an empty pool": {answers(func(s *site6) {
			s.answer = func(m *dhcpv6.Message) []dhcpv6.Modifier {
				return []dhcpv6.Modifier{advertises("", m)[0], dhcpv6.WithOption(&dhcpv6.OptStatusCode{
					StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "the pool\x1b is empty",
				})}
			}
		}), yes, "no-address", "the pool? is empty"},
		"the loader is missing": {answers(only("tftp://[" + server6 + "]/gone.efi")), yes, "not-found", "TFTP error 1"},
		"nobody has the server's address": {answers(only("tftp://[2001:db8:30::99]/ipxe.efi")), yes, "address-without-owner",
			"2001:db8:30::99"},
		"two have the server's address": {func(t *testing.T, s *site6) {
			ns := nstest.New(t)
			s.join(t, ns, "p-another")
			ns.Addr(t, "eth1", server6+"/64")
		}, yes, "two-owners", server6},
		"large packets are lost": {func(t *testing.T, s *site6) {
			if err := s.sw.Links().LinkSetMTU(s.sw.Link(t, "p-doctor"), 1400); err != nil {
				t.Fatal(err)
			}
		}, yes, "mtu-hole", "more than 1400 bytes"},
		"nobody serves TFTP": {answers(func(s *site6) { s.files = nil }), yes, "tftp-refused", "ipxe.efi"},
		"an address of another prefix than is advertised": {answers(func(s *site6) { s.prefix = "2001:db8:77::/64" }), yes,
			"address-not-on-link", "2001:db8:30::100, which is in none of the prefixes"},
		"the same, and answers have no way back": {func(t *testing.T, s *site6) { silent(t, s, true) }, yes,
			"no-way-back", "advertise (2001:db8:77::/64)"},
		"the same, by HTTP": {func(t *testing.T, s *site6) { silent(t, s, true) }, func(o *Options) {
			yes(o)
			byHTTP(o)
		}, "no-way-back", "2001:db8:40::2 does not answer"},
		"routers that advertise no prefix, and a silent server": {func(t *testing.T, s *site6) { silent(t, s, false) }, yes,
			"host-silent", "does not answer at all"},
	}
	var all sync.WaitGroup
	sites := map[string]*site6{}
	for name, test := range tests {
		s := newSite6(t)
		if test.stage != nil {
			test.stage(t, s)
		}
		s.start6(t)
		sites[name] = s
		all.Go(func() { s.report, s.err = s.run(t.Context(), test.change) })
	}
	all.Wait()
	for name, s := range sites {
		t.Run(name, func(t *testing.T) {
			s.judge(t, tests[name].want, tests[name].says)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.rapid || len(s.kinds) == 0 || slices.ContainsFunc(s.kinds, func(k dhcpv6.MessageType) bool {
				return k != dhcpv6.MessageTypeSolicit
			}) {
				t.Errorf("it sent %v, rapid commit: %v", s.kinds, s.rapid)
			}
			s.doctor.Do(t, func() error {
				link, err := netlink.LinkByName("eth1")
				if err != nil {
					return err
				}
				addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
				for _, a := range addrs {
					if strings.HasSuffix(a.IP.String(), "::100") {
						t.Errorf("this host has %s", a.IP)
					}
				}
				return err
			})
			if s.report.Frames == 0 || finding.Worst(s.report.Findings) == finding.Blind {
				t.Error("it did not look")
			}
		})
	}
}
