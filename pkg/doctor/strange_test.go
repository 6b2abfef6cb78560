package doctor

import (
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/doctor/link"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/frame"
)

// says makes a site of what its DHCP server answers.
func says(answer func(*dhcpv4.DHCPv4) []*dhcpv4.DHCPv4) func(*testing.T, *site) {
	return func(_ *testing.T, s *site) { s.dhcp = answer }
}

// changed makes a site whose OFFERs are changed.
func changed(mods ...dhcpv4.Modifier) func(*testing.T, *site) { return says(offers(mods...)) }

// from has an OFFER come from another server.
func from(last byte, mods ...dhcpv4.Modifier) []dhcpv4.Modifier {
	return append(mods, dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 30, 0, last))))
}

func option(code uint8, value ...byte) dhcpv4.Modifier {
	return dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), value)
}

// byHTTP asks as firmware that boots by HTTP.
func byHTTP(o *Options) { o.Arch, _ = offer.ArchNamed("http") }

// Networks that look wrong and are not, and OFFERs as they are found.
func TestOffersOfStrangers(t *testing.T) {
	t.Parallel() // it waits
	isFirmware := func(m *dhcpv4.DHCPv4) bool { return len(m.UserClass()) == 0 }
	var machine net.HardwareAddr
	runStaged(t, map[string]staged{
		"two relays of one server": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			return []*dhcpv4.DHCPv4{good(m, dhcpv4.WithRelay(net.IPv4(10, 30, 0, 1))), good(m, dhcpv4.WithRelay(net.IPv4(10, 30, 0, 254)))}
		}), nil, "", "10.30.0.2 by the relay 10.30.0.254"},
		"two servers of one pair": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			return []*dhcpv4.DHCPv4{good(m), good(m, from(3, dhcpv4.WithYourIP(net.IPv4(10, 30, 0, 150)))...)}
		}), nil, "", "servers-alike"},
		"two servers of a pair with files of their own": {func(t *testing.T, s *site) {
			s.server.Addr(t, "eth1", "10.30.0.3/24")
			s.addr, s.files["second.efi"] = "0.0.0.0", s.files["ipxe.efi"]
			s.dhcp = func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				second := good(m, from(3, dhcpv4.WithYourIP(net.IPv4(10, 30, 0, 150)))...)
				if second.BootFileName == "ipxe.efi" {
					second.BootFileName = "second.efi"
				}
				second.BootFileName = strings.Replace(second.BootFileName, "10.30.0.2", "10.30.0.3", 1)
				return []*dhcpv4.DHCPv4{good(m), second}
			}
		}, nil, "two-dhcp-servers", "Both lead to files that are there"},
		"a home router": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			return []*dhcpv4.DHCPv4{good(m), good(m, from(3, file(""))...)}
		}), nil, "other-dhcp-server", "without boot data"},
		"proxy and server both name a file": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			return []*dhcpv4.DHCPv4{good(m), good(m, from(3, dhcpv4.WithYourIP(net.IPv4zero), file("pxelinux.0"))...)}
		}), nil, "two-boot-data", "pxelinux.0"},
		"a server that cannot decide": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			return []*dhcpv4.DHCPv4{good(m), good(m, file("old.efi"))}
		}), nil, "changing-answers", "old.efi"},
		"use the file that is named": {changed(option(60, []byte("PXEClient")...), option(43, 6, 1, 8, 255)), nil, "", ""},
		"a class without options": {changed(option(60, []byte("PXEClient")...)), nil, "boot-server-needed",
			"boots only if that answers"},
		"a menu": {changed(option(43, 6, 1, 3, 9, 3, 0, 0, 0, 255)), nil, "boot-server-asked", "menu"},
		"only Smee's own iPXE is told": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			if classes := m.UserClass(); len(classes) > 0 && classes[0] == "iPXE" {
				return []*dhcpv4.DHCPv4{good(m, file("ipxe.efi"))}
			}
			return []*dhcpv4.DHCPv4{good(m)}
		}), nil, "", ""},
		"an installed machine": {changed(file("/netboot-not-allowed"), dhcpv4.WithServerIP(net.IPv4zero)), nil, "",
			"normal"},
		"NAT before the server": {func(_ *testing.T, s *site) { s.port = 10387 }, nil, "offer-from-port", "10387"},
		"an OFFER without a server": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			bad := good(m)
			delete(bad.Options, 54)
			return []*dhcpv4.DHCPv4{bad, good(m)}
		}), nil, "malformed-offer", "option 54"},
		"a name of 765 bytes": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			if isFirmware(m) {
				return []*dhcpv4.DHCPv4{good(m, option(67, []byte(strings.Repeat("a", 765))...))}
			}
			return []*dhcpv4.DHCPv4{good(m)}
		}), nil, "malformed-offer", "765 bytes"},
		"a storm": {says(func(m *dhcpv4.DHCPv4) (all []*dhcpv4.DHCPv4) {
			for range 150 {
				all = append(all, good(m))
			}
			return all
		}), nil, "many-answers", "150 answers"},
		"many servers": {says(func(m *dhcpv4.DHCPv4) (all []*dhcpv4.DHCPv4) {
			for i := range 12 {
				all = append(all, good(m, from(byte(2+i))...))
			}
			return all
		}), nil, "many-answers", "12 servers"},
		"packets larger than any that pass": {changed(option(26, 9000>>8, 9000&0xff)), nil, "offered-mtu", "9000"},
		"no router, and the server elsewhere": {changed(dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)), func(d *dhcpv4.DHCPv4) {
			delete(d.Options, 3)
			d.GatewayIPAddr = net.IPv4(10, 30, 0, 1)
		}), nil, "router", "the DHCP server 10.30.0.2 offers no router (option 3); most likely it is the relay, 10.30.0.1"},
		"a router that is nobody's": {changed(dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)),
			dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(10, 30, 0, 9)))), nil, "router", "10.30.0.9"},
		"a log server that does not listen": {changed(option(7, 10, 30, 0, 2)), nil, "log-server", "10.30.0.2:514"},
		"HTTP boot without its class": {says(func(m *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
			d := good(m)
			delete(d.Options, 60)
			return []*dhcpv4.DHCPv4{d}
		}), byHTTP, "http-class-missing", "HTTPClient"},
		"the machine is up": {func(t *testing.T, s *site) {
			ns := another(t, s, "10.30.0.100/24")
			machine = ns.Link(t, "eth1").Attrs().HardwareAddr
		}, func(o *Options) { o.MAC = machine }, "", "machine-is-up"},
		"somebody answers for all addresses": {func(t *testing.T, s *site) {
			another(t, s, "10.30.0.9/24").Do(t, func() error {
				l, err := link.Open("eth1")
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = l.Close() })
				l.Tap(func(in link.Received) {
					if ask, from, ok := frame.ParseARP(in.Frame); ok && ask.Operation == frame.ARPRequest && from == frame.Broadcast {
						_ = l.Send(frame.AppendARP(nil, l.MAC, ask.SenderMAC, frame.ARP{
							Operation: frame.ARPReply, SenderMAC: l.MAC, SenderIP: ask.TargetIP, TargetMAC: ask.SenderMAC, TargetIP: ask.SenderIP,
						}))
					}
				})
				return nil
			})
		}, nil, "proxy-arp", "for every address"},
		"an interface that is down": {func(t *testing.T, s *site) {
			if err := s.doctor.Links().LinkSetDown(s.doctor.Link(t, "eth1")); err != nil {
				t.Fatal(err)
			}
		}, nil, "interface-down", "eth1"},
		"another VLAN on the wire": {func(t *testing.T, s *site) {
			s.dhcp = nil
			another(t, s, "10.30.0.9/24").Do(t, func() error {
				l, err := link.Open("eth1")
				if err != nil {
					return err
				}
				tagged := append(append(append(frame.Broadcast[:], l.MAC[:]...), 0x81, 0, 0, 20, 8, 0), make([]byte, 46)...)
				var sending sync.WaitGroup
				sending.Go(func() {
					for ; t.Context().Err() == nil; time.Sleep(200 * time.Millisecond) {
						_ = l.Send(tagged)
					}
				})
				t.Cleanup(func() {
					sending.Wait()
					_ = l.Close()
				})
				return nil
			})
		}, nil, "wrong-vlan", "VLAN 20"},
		"loopback":                   {nil, func(o *Options) { o.Interface = "lo" }, "not-ethernet", "lo"},
		"what a terminal would obey": {changed(file("\x1b]0;own\x07\u202eipxe.efi")), nil, "loader-loop not-found", `\\x1b]0;own\\a\\u202eipxe.efi`},
	})
}

// scripted has iPXE told a script.
func scripted(text string) func(*testing.T, *site) {
	return func(_ *testing.T, s *site) { script("#!ipxe\n" + text)(s) }
}

// behind has the kernel at an address behind the server, which is a router too.
func behind(route func(*testing.T, *site)) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		t.Helper()
		s.other = nstest.New(t)
		nstest.Veth(t, s.server, "eth2", s.other, "eth1")
		s.server.Addr(t, "eth2", "10.99.0.1/24")
		s.other.Addr(t, "eth1", "10.99.0.2/24")
		for _, router := range []*nstest.NS{s.server, s.other} {
			router.Do(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
		}
		route(t, s)
		scripted("kernel http://10.40.0.2:8080/vmlinuz\n")(t, s)
	}
}

// served answers one path by a handler.
func served(path string, handler http.HandlerFunc) func(*testing.T, *site) {
	return func(_ *testing.T, s *site) {
		before := s.web
		s.web = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == path {
				handler(w, r)
				return
			}
			before.ServeHTTP(w, r)
		})
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// named has the server know some names, and iPXE told a script; the domain is option 15.
func named(domain, text string, known ...string) func(*testing.T, *site) {
	return func(t *testing.T, s *site) {
		scripted(text)(t, s)
		s.dhcp = offers(option(6, 10, 30, 0, 2), option(15, []byte(domain)...))
		s.server.Do(t, func() error {
			conn, err := net.ListenPacket("udp4", "10.30.0.2:53")
			if err != nil {
				return err
			}
			server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
				answer := new(dns.Msg).SetReply(r)
				answer.Rcode = dns.RcodeNameError
				if name := r.Question[0].Name; slices.Contains(known, name) {
					header := dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}
					answer.Rcode, answer.Answer = dns.RcodeSuccess, []dns.RR{&dns.A{Hdr: header, A: net.IPv4(10, 30, 0, 2)}}
				}
				_ = w.WriteMsg(answer)
			})}
			go func() { _ = server.ActivateAndServe() }()
			t.Cleanup(func() { _ = server.Shutdown() })
			return nil
		})
	}
}

// Servers of files as they are found.
func TestServersOfStrangers(t *testing.T) {
	t.Parallel() // it waits
	const kernel = "/vmlinuz"
	var asked atomic.Int64
	answers := func(answer func(words []string) []byte) func(*testing.T, *site) {
		return func(_ *testing.T, s *site) { s.tftp = answer }
	}
	always := func(answer string) func(*testing.T, *site) {
		return answers(func([]string) []byte { return []byte(answer) })
	}
	many := strings.Builder{}
	for i := range 4000 {
		fmt.Fprintf(&many, "imgfetch http://10.30.0.2/none/%d\n", i)
	}
	runStaged(t, map[string]staged{
		"TFTP without options": {func(_ *testing.T, s *site) { s.plain = true }, nil, "", "512 (no option)"},
		"TFTP that refuses options": {answers(func(words []string) []byte {
			if len(words) > 3 {
				return []byte("\x00\x05\x00\x08no options\x00")
			}
			return nil
		}), nil, "tftp-options", "error 8"},
		"a file that may not be read": {always("\x00\x05\x00\x02no\x00"), nil, "forbidden", "error 2"},
		"blocks of no bytes":          {always("\x00\x06blksize\x000\x00"), nil, "tftp-options", "blksize"},
		"blocks of too many bytes":    {always("\x00\x06blksize\x0065465\x00"), nil, "tftp-options", "blksize"},
		"an opcode that is none":      {always("\x00\x09\x00\x00"), nil, "tftp-options", "opcode"},
		"a loader of 40 MiB": {func(_ *testing.T, s *site) {
			big := append(efi(0x8664), make([]byte, 40<<20)...)
			s.files["ipxe.efi"] = big
			served("/ipxe.efi", func(w http.ResponseWriter, r *http.Request) {
				http.ServeContent(w, r, "", started, strings.NewReader(string(big)))
			})(nil, s)
		}, nil, "", "first 65536 bytes equal"},
		"an empty loader": {func(_ *testing.T, s *site) { s.files["ipxe.efi"] = []byte{} }, nil, "wrong-architecture", "empty"},
		"no ranges and no HEAD": {served(kernel, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			_, _ = w.Write(efi(0x8664))
		}), nil, "", "ends-not-read"},
		"a packed script, and a fault behind it": {served("/auto.ipxe", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Server", "nginx/1.22.1")
			packed := gzip.NewWriter(w)
			_, _ = packed.Write([]byte("#!ipxe\nkernel gone\n"))
			_ = packed.Close()
		}), nil, "compressed not-found", "as gzip by nginx/1.22.1"},
		"an initrd that a server calls packed": {served("/initrd", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "x-gzip")
			_, _ = w.Write([]byte("\x1f\x8b"))
		}), nil, "", ""},
		"a kernel that may not be had": {served(kernel, status(http.StatusForbidden)), nil, "forbidden", "403"},
		"a server that fails":          {served(kernel, status(http.StatusInternalServerError)), nil, "server-error", "500"},
		"a redirect that leads nowhere": {served(kernel, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/gone", http.StatusMovedPermanently)
		}), nil, "not-found", "/gone"},
		"a redirect in a circle": {served(kernel, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, kernel, http.StatusFound)
		}), nil, "redirects", "circle"},
		"a kernel of another architecture": {served(kernel, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", started, strings.NewReader(string(efi(0xaa64))))
		}), nil, "wrong-architecture", "ARM64"},
		"an empty initramfs": {served("/initrd", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", started, strings.NewReader(""))
		}), nil, "file-torn", "is empty"},
		"what nobody asked to be packed": {served(kernel, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write([]byte("\x1f\x8b"))
		}), nil, "compressed", "What is in it was not looked at"},
		"a server that says nothing": {served(kernel, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			nil, "waits-for-backend", "takes the connection, and then: no answer"},
		"a routing loop": {behind(func(t *testing.T, s *site) {
			s.server.Route(t, "10.40.0.0/24", "10.99.0.2")
			s.other.Route(t, "0.0.0.0/0", "10.99.0.1")
		}), nil, "unreachable", "answers packets for 10.40.0.2 with time exceeded"},
		"a loader behind a routing loop": {behind(func(t *testing.T, s *site) {
			s.server.Route(t, "10.40.0.0/24", "10.99.0.2")
			s.other.Route(t, "0.0.0.0/0", "10.99.0.1")
			s.dhcp = offers(dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)))
		}), nil, "unreachable unreachable", "nothing came to the requests for"},
		"a router that forbids": {behind(func(t *testing.T, s *site) {
			if err := s.server.Links().RouteAdd(&netlink.Route{
				Dst: &net.IPNet{IP: net.IPv4(10, 40, 0, 0), Mask: net.CIDRMask(24, 32)}, Type: unix.RTN_PROHIBIT,
			}); err != nil {
				t.Fatal(err)
			}
		}), nil, "unreachable", "administratively prohibited"},
		"a server that drops what comes": {behind(func(t *testing.T, s *site) {
			if err := s.server.Links().RouteAdd(&netlink.Route{
				Dst: &net.IPNet{IP: net.IPv4(10, 40, 0, 0), Mask: net.CIDRMask(24, 32)}, Type: unix.RTN_BLACKHOLE,
			}); err != nil {
				t.Fatal(err)
			}
		}), nil, "no-connection", "10.40.0.2:8080 does not answer when a connection is asked for"},
		"a script without end": {served("/auto.ipxe", func(w http.ResponseWriter, _ *http.Request) {
			for line := []byte("#!ipxe\n"); ; {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}), nil, "not-a-script", "longer than"},
		"a page in place of an initramfs": {served("/initrd", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			http.ServeContent(w, r, "", started, strings.NewReader("<!doctype html><title>app</title>"))
		}), nil, "page-for-file", "33 bytes, text/html"},
		"a page in place of a kernel": {served(kernel, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", started, strings.NewReader("\n<HTML><body>login"))
		}), nil, "page-for-file", "the kernel"},
		"a firewall that lets 69/udp alone pass": {answers(func(words []string) []byte {
			if len(words) > 3 { // the OACK, and after it nothing is heard
				return []byte("\x00\x06tsize\x00204800\x00")
			}
			return append([]byte{0, 3, 0, 1}, make([]byte, 512)...)
		}), nil, "tftp-answers-lost", "1500 bytes pass"},
		"a server missing on the link": {scripted("kernel http://10.30.0.9/vmlinuz\n"), nil, "address-without-owner",
			"by the offered mask /24"},
		"a mask that is too wide": {func(t *testing.T, s *site) {
			s.server.Addr(t, "lo", "10.30.7.2/32") // which answers ARP for what is on another interface no more
			s.server.Do(t, func() error {
				return os.WriteFile("/proc/sys/net/ipv4/conf/all/arp_ignore", []byte("1"), 0)
			})
			s.addr, s.dhcp = "0.0.0.0", offers(dhcpv4.WithNetmask(net.CIDRMask(16, 32)))
			scripted("kernel http://10.30.7.2/vmlinuz\n")(t, s)
		}, nil, "mask-too-wide", "way of the router 10.30.0.1"},
		"an empty script":           {func(_ *testing.T, s *site) { script("")(s) }, nil, "not-a-script", ""},
		"a mark before a script":    {func(_ *testing.T, s *site) { script("\ufeff#!ipxe\nexit\n")(s) }, nil, "byte-order-mark", "no-kernel"},
		"a menu":                    {scripted("menu X\nitem a A\nchoose t && goto ${t}\n:a\nexit\n"), nil, "", "no-kernel"},
		"the disk":                  {scripted("sanboot --no-describe --drive 0x80 || exit 1\n"), nil, "", "no-kernel"},
		"a script that runs itself": {scripted("chain auto.ipxe\n"), nil, "chains-itself", "itself"},
		"a host's own addresses": {scripted("kernel http://127.0.0.1:6443/k\ninitrd http://169.254.169.254/i\nimgfetch file:///etc/shadow\n"),
			nil, "", "not-followed"},
		"4,000 URLs": {func(t *testing.T, s *site) {
			scripted(many.String())(t, s)
			before := s.web
			s.web = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				before.ServeHTTP(w, r)
			})
		}, nil, strings.TrimSuffix(strings.Repeat("not-found ", mostURLs), " "), "many-urls"},
		"a name server that is silent": {func(t *testing.T, s *site) {
			s.dhcp = offers(option(6, 10, 30, 0, 53))
			scripted("kernel http://boot.lab/vmlinuz\n")(t, s)
		}, nil, "name-not-resolved", "does not answer"},
		"labels that nothing leads to": {scripted("goto deb\n:test\nkernel http://10.30.0.2/gone\n:old\n" +
			"kernel http://10.30.0.9/k\ninitrd http://10.30.0.9/i\n:deb\nkernel vmlinuz\ninitrd initrd\nboot\n"),
			nil, "", "http://10.30.0.2/auto.ipxe (behind the label test"},
		"a short name in the offered domain": {named("prov.lab", "kernel http://mirror/vmlinuz\ninitrd http://mirror/initrd\n",
			"mirror.prov.lab."), nil, "", "http://mirror/initrd"},
		"a short name in another domain": {named("rack.lab", "kernel http://mirror/vmlinuz\ninitrd http://mirror/initrd\n",
			"mirror.prov.lab."), nil, "short-name", "asked for as mirror.rack.lab and mirror"},
		"a script behind a redirect, with relative URLs": {func(t *testing.T, s *site) {
			served("/auto.ipxe", func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/there/auto.ipxe", http.StatusFound)
			})(t, s)
			for path, text := range map[string]string{
				"/there/auto.ipxe": "#!ipxe\nkernel linux\ninitrd img\n", "/there/linux": string(efi(0x8664)), "/there/img": "070701",
			} {
				served(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })(t, s)
			}
		}, nil, "", "redirected to http://10.30.0.2/there/auto.ipxe"},
		"a server with an address on another link": {func(t *testing.T, s *site) {
			s.server.Addr(t, "lo", "10.40.0.2/32")
			s.dhcp = offers(dhcpv4.WithServerIP(net.IPv4(10, 40, 0, 2)))
		}, nil, "tftp-refused", "10.40.0.2:69"},
	})
	const most = 60
	if n := asked.Load(); n > most {
		t.Errorf("4,000 URLs are %d requests", n)
	}
}
