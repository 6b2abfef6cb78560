package doctor

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
)

// names are the findings' names that are more than worth knowing.
func names(r *Report) (all []string) {
	for _, f := range r.Findings {
		if f.Severity != Info {
			all = append(all, f.Name)
		}
	}
	return all
}

// offers makes a server that answers with changed OFFERs.
func offers(mods ...dhcpv4.Modifier) func(*dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
	return func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return []*dhcpv4.DHCPv4{good(m, mods...)} }
}

func file(name string) dhcpv4.Modifier { return func(d *dhcpv4.DHCPv4) { d.BootFileName = name } }

// onlyScript replaces what iPXE is told to run.
func script(text string) func(*site) {
	return func(s *site) {
		before := s.web
		s.web = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/auto.ipxe" {
				http.ServeContent(w, r, "", time.Now(), strings.NewReader(text))
				return
			}
			before.ServeHTTP(w, r)
		})
	}
}

// another gives an address to another host on the network.
func another(t *testing.T, s *site, addr string) *nstest.NS {
	t.Helper()
	ns := nstest.New(t)
	s.join(t, ns, "p-another")
	ns.Addr(t, "eth1", addr)
	return ns
}

// elsewhere has 10.30.0.3 answer DHCP without a next server in siaddr: there is no TFTP. Option 66 may name one.
func elsewhere(option66 string) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		another(t, s, "10.30.0.3/24")
		mods := from(3, dhcpv4.WithServerIP(net.IPv4zero))
		if option66 != "" {
			mods = append(mods, dhcpv4.WithOption(dhcpv4.OptTFTPServerName(option66)))
		}
		s.dhcp = offers(mods...)
	}
}

// closeOld closes the connections of clients that do not know TLS 1.3.
func closeOld(h *tls.ClientHelloInfo) (*tls.Config, error) {
	if !slices.Contains(h.SupportedVersions, tls.VersionTLS13) {
		return nil, h.Conn.Close()
	}
	return nil, nil //nolint:nilnil // that of the server
}

// byTLS has firmware that boots by HTTP load from an HTTPS server.
func byTLS(config *tls.Config) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		s.server.Do(t, func() error {
			listener, err := net.Listen("tcp", "10.30.0.2:443")
			if err != nil {
				return err
			}
			server := httptest.NewUnstartedServer(s.web)
			_ = server.Listener.Close()
			server.Listener, server.TLS = listener, config
			server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
			server.StartTLS()
			t.Cleanup(server.Close)
			return nil
		})
		s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			if strings.HasPrefix(m.ClassIdentifier(), "HTTPClient") && len(m.UserClass()) == 0 {
				return []*dhcpv4.DHCPv4{good(m, file("https://10.30.0.2/ipxe.efi"))}
			}
			return []*dhcpv4.DHCPv4{good(m)}
		}
	}
}

// routeless has everything behind a router that is not offered, or as option 121 alone, to those that ask for it.
func routeless(static ...byte) func(*testing.T, *site) {
	return says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
		d := good(m, dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)))
		d.BootFileName = strings.Replace(d.BootFileName, "10.30.0.2", "10.40.0.2", 1)
		d.DeleteOption(dhcpv4.OptionRouter)
		if len(static) > 0 && m.IsOptionRequested(dhcpv4.OptionClasslessStaticRoute) {
			option(121, static...)(d)
		}
		return []*dhcpv4.DHCPv4{d}
	})
}

// scriptBehind has the script, and no more, behind the router of option 3, and gives iPXE option 121 as well.
func scriptBehind(static ...byte) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		s.server.Addr(t, "eth1", "10.40.0.2/32")
		s.server.Do(t, func() error {
			listener, err := net.Listen("tcp", "10.40.0.2:80")
			if err != nil {
				return err
			}
			server := &http.Server{Handler: s.web, ReadHeaderTimeout: time.Second}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
			return nil
		})
		s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			d := good(m)
			if m.IsOptionRequested(dhcpv4.OptionClasslessStaticRoute) {
				d.BootFileName = "http://10.40.0.2/auto.ipxe"
				option(121, static...)(d)
			}
			return []*dhcpv4.DHCPv4{d}
		}
	}
}

// Each fault of a network or a server is named, and nothing else is; what is well has no name at all.
func TestFaultsAreNamed(t *testing.T) {
	t.Parallel() // it waits, too
	runStaged(t, map[string]staged{
		"healthy":         {nil, nil, "", ""},
		"healthy by HTTP": {nil, func(o *Options) { o.Arch, _ = offer.ArchNamed("http") }, "", ""},
		"options 66 and 67 in place of the fields": {func(_ *testing.T, s *site) {
			s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				d := good(m)
				d.UpdateOption(dhcpv4.OptTFTPServerName("10.30.0.2"))
				d.UpdateOption(dhcpv4.OptBootFileName(d.BootFileName + "\x00"))
				d.BootFileName, d.ServerIPAddr = "", net.IPv4zero
				return []*dhcpv4.DHCPv4{d}
			}
		}, nil, "", ""},
		"option 66 names another server, which UEFI does not ask": {elsewhere("10.30.0.2"), nil, "no-next-server",
			"option 66 alone, 10.30.0.2, which UEFI does not read: UEFI asks the DHCP server 10.30.0.3 itself"},
		"no next server, and the DHCP server has the files": {changed(dhcpv4.WithServerIP(net.IPv4zero)), nil, "",
			"10.30.0.2 itself (siaddr 0.0.0.0)"},
		"option 66 as BIOS reads it": {elsewhere("10.30.0.2"), func(o *Options) { o.Arch, _ = offer.ArchNamed("bios") },
			"wrong-architecture", "at 10.30.0.2"},
		// The certificate is httptest's, for other names.
		"the loader by TLS 1.3 alone": {byTLS(&tls.Config{MinVersion: tls.VersionTLS13}), byHTTP,
			"tls-version certificate-name", "firmware offers"},
		"the loader by TLS 1.3 alone, without an alert": {byTLS(&tls.Config{GetConfigForClient: closeOld}), byHTTP,
			"tls-version certificate-name", "closed the connection at a ClientHello"},
		"the loader by TLS 1.2, too": {byTLS(&tls.Config{MinVersion: tls.VersionTLS12}), byHTTP, "certificate-name", ""},
		"by TLS 1.3 alone to other firmware's asks": {byTLS(&tls.Config{MinVersion: tls.VersionTLS13}), nil,
			"certificate-name", ""},
		"a proxy has the file": {func(_ *testing.T, s *site) {
			s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				return []*dhcpv4.DHCPv4{
					good(m, dhcpv4.WithYourIP(net.IPv4zero)),
					good(m, file(""), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 30, 0, 3))),
						dhcpv4.WithServerIP(net.IPv4(10, 30, 0, 3))),
				}
			}
		}, nil, "", ""},
		"a server that answers the second DISCOVER": {func(_ *testing.T, s *site) {
			begun := time.Now()
			s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				if time.Since(begun) < 900*time.Millisecond {
					return nil
				}
				return []*dhcpv4.DHCPv4{good(m)}
			}
		}, nil, "", ""},
		"a missing file with a way on": {func(_ *testing.T, s *site) {
			script("#!ipxe\nchain http://10.30.0.2/${net0/mac:hexhyp} || echo none\nkernel http://10.30.0.2/vmlinuz\n")(s)
		}, nil, "", ""},
		"URLs that only the machine can complete": {func(_ *testing.T, s *site) {
			script("#!ipxe\nset base http://${next-server}\nkernel ${base}/vmlinuz || goto fail\nchain menu?${serial}\n:fail\nshell\n")(s)
		}, nil, "", ""},
		"nobody is there": {func(t *testing.T, s *site) {
			if err := s.sw.Links().LinkSetNoMaster(s.sw.Link(t, "p-server")); err != nil {
				t.Fatal(err)
			}
			s.sw.Do(t, func() error { // a switch has no address, and asks for none
				return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
			})
			time.Sleep(300 * time.Millisecond) // what it says of that is over
		}, nil, "wrong-vlan", "nothing at all"},
		"the server is silent and others are not": {func(t *testing.T, s *site) {
			s.dhcp = func(*dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return nil }
			s.server.Do(t, func() error { // an ARP request of somebody's
				conn, err := net.Dial("udp4", "10.30.0.77:9")
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = conn.Close() })
				go func() {
					for range 20 {
						_, _ = conn.Write([]byte{0})
						time.Sleep(100 * time.Millisecond)
					}
				}()
				return nil
			})
		}, nil, "no-offer", "serves its own machines only"},
		"two servers": {func(_ *testing.T, s *site) {
			s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				return []*dhcpv4.DHCPv4{good(m), good(m, file("pxelinux.0"),
					dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 30, 0, 3))))}
			}
		}, nil, "other-dhcp-server", "pxelinux.0"},
		"no boot file": {func(_ *testing.T, s *site) { s.dhcp = offers(file("")) }, nil, "no-boot-file", "uefi"},
		"only a proxy": {func(_ *testing.T, s *site) { s.dhcp = offers(dhcpv4.WithYourIP(net.IPv4zero)) }, nil,
			"only-proxy", "10.30.0.2"},
		"iPXE loads itself": {func(_ *testing.T, s *site) { s.dhcp = offers(file("ipxe.efi")) }, nil, "loader-loop", "ipxe.efi"},
		"the next server is nobody's": {func(_ *testing.T, s *site) {
			s.dhcp = offers(dhcpv4.WithServerIP(net.IPv4(10, 30, 0, 99)))
		}, nil, "address-without-owner", "10.30.0.99"},
		"two have the next server's address": {func(t *testing.T, s *site) { another(t, s, "10.30.0.2/32") }, nil,
			"two-owners", "10.30.0.2"},
		"somebody has the offered address": {func(t *testing.T, s *site) { another(t, s, "10.30.0.100/24") }, nil,
			"address-conflict", "10.30.0.100"},
		"the next server is elsewhere and no router leads there": {func(_ *testing.T, s *site) {
			s.dhcp = offers(dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)), dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 99, 0, 1))))
		}, nil, "router", "10.99.0.1"},
		"no router is offered, and everything is behind one": {routeless(), nil, "router", "not asked: no router leads there"},
		"the router is offered as option 121 alone": {routeless(0, 10, 30, 0, 1), nil, "router",
			"option 121 alone (0.0.0.0/0 by 10.30.0.1)"},
		"option 3 beside option 121, which leads elsewhere": {scriptBehind(24, 10, 50, 0, 10, 30, 0, 1), nil, "router-ignored",
			"ignores option 3 (10.30.0.1)"},
		"option 3 beside option 121, which leads there": {scriptBehind(0, 10, 30, 0, 1), nil, "", ""},
		"option 121 leads elsewhere":                    {routeless(24, 10, 50, 0, 10, 30, 0, 1), nil, "router", "(option 3). What is"},
		"option 121 is cut short":                       {routeless(0, 10, 30, 0), nil, "router", "(option 3). What is"},
		"large packets are lost": {func(t *testing.T, s *site) {
			if err := s.sw.Links().LinkSetMTU(s.sw.Link(t, "p-doctor"), 1400); err != nil {
				t.Fatal(err)
			}
		}, nil, "mtu-hole", "more than 1400 bytes"},
		"nobody serves TFTP": {func(_ *testing.T, s *site) { s.files = nil }, nil, "tftp-refused", "ipxe.efi"},
		"TFTP is silent": {func(t *testing.T, s *site) {
			s.files = nil
			s.server.Do(t, func() error {
				conn, err := net.ListenPacket("udp4", "10.30.0.2:69")
				if err == nil {
					t.Cleanup(func() { _ = conn.Close() })
				}
				return err
			})
		}, nil, "tftp-silent", "69/udp"},
		"the loader is missing": {func(_ *testing.T, s *site) { s.files = map[string][]byte{} }, nil, "not-found",
			"TFTP error 1"},
		"the loader is another architecture's": {func(_ *testing.T, s *site) {
			s.files = map[string][]byte{"ipxe.efi": efi(0xaa64)}
		}, nil, "wrong-architecture", "ARM64"},
		"the loader is not the same by HTTP": {func(_ *testing.T, s *site) {
			s.files = map[string][]byte{"ipxe.efi": append(efi(0x8664), 0)}
		}, nil, "copies-differ", "bytes"},
		"the kernel is missing": {func(_ *testing.T, s *site) {
			script("#!ipxe\nkernel http://10.30.0.2/gone || goto fail\ninitrd http://10.30.0.2/initrd\nboot\n:fail\nshell\n")(s)
		}, nil, "not-found", "line 2"},
		"the script is HTML": {func(_ *testing.T, s *site) { script("<!DOCTYPE html>")(s) }, nil, "not-a-script", "DOCTYPE"},
		"the script's port is closed": {func(_ *testing.T, s *site) {
			script("#!ipxe\nkernel http://10.30.0.2:8080/vmlinuz\n")(s)
		}, nil, "port-closed", "10.30.0.2:8080"},
		"a name that no name server was offered for": {func(_ *testing.T, s *site) {
			script("#!ipxe\nkernel http://boot.lab/vmlinuz\n")(s)
		}, nil, "name-not-resolved", "no name server is offered"},
		"the backend is down": {func(_ *testing.T, s *site) {
			s.web = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
		}, nil, "backend-down backend-down", "502"},
		"no carrier": {func(t *testing.T, s *site) {
			if err := s.sw.Links().LinkSetDown(s.sw.Link(t, "p-doctor")); err != nil {
				t.Fatal(err)
			}
		}, nil, "no-carrier", "eth1"},
		"the port of a bridge": {func(t *testing.T, s *site) {
			if err := s.doctor.Links().LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "brx"}}); err != nil {
				t.Fatal(err)
			}
			if err := s.doctor.Links().LinkSetMaster(s.doctor.Link(t, "eth1"), s.doctor.Link(t, "brx")); err != nil {
				t.Fatal(err)
			}
		}, nil, "bridge-port", "brx"},
		"no such interface": {nil, func(o *Options) { o.Interface = "eth7" }, "no-interface", "eth7"},
	})
}

// staged is a network, and what the doctor has to say of it.
type staged struct {
	stage  func(*testing.T, *site)
	change func(*Options)
	want   string // findings that are more than worth knowing; "" where nothing is wrong
	says   string // somewhere in the report
}

// runStaged asks in all networks at one time: it waits for answers, not for a processor.
func runStaged(t *testing.T, tests map[string]staged) {
	t.Helper()
	var all sync.WaitGroup
	sites := map[string]*site{}
	for name, test := range tests {
		s := newSite(t)
		if test.stage != nil {
			test.stage(t, s)
		}
		s.start(t)
		all.Go(func() { s.report, s.err = s.run(t.Context(), test.change) })
		sites[name] = s
	}
	all.Wait()
	for name, s := range sites {
		t.Run(name, func(t *testing.T) { s.judge(t, tests[name].want, tests[name].says) })
	}
}

// judge holds a report to what was staged.
func (s *site) judge(t *testing.T, want, says string) {
	if s.err != nil {
		t.Fatal(s.err)
	}
	if got := strings.Join(names(&s.report), " "); got != want {
		t.Errorf("found %q, want %q", got, want)
	}
	text, err := json.Marshal(s.report)
	if err != nil || says != "" && !bytes.Contains(text, []byte(says)) {
		t.Errorf("%v, and it does not say %q", err, says)
	}
	if bytes.Contains(text, []byte(`\u003cnil\u003e`)) {
		t.Errorf("it says <nil>: %s", text)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.types, func(m dhcpv4.MessageType) bool { return m != dhcpv4.MessageTypeDiscover }) {
		t.Errorf("it sent %v", s.types)
	}
	const most = 400
	if s.report.Frames > most {
		t.Errorf("it sent %d frames", s.report.Frames)
	}
	if t.Failed() {
		for _, step := range s.report.Asked {
			t.Logf("%+v", step)
		}
		for _, f := range s.report.Findings {
			t.Logf("%+v", f)
		}
	}
}
