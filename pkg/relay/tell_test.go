package relay

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// told is a boot.Event for comparison.
type told struct {
	Kind                                      boot.Kind
	Outcome                                   boot.Outcome
	Type                                      dhcp.Type
	MAC                                       string
	UUID                                      [16]byte
	XID, Lease                                uint32
	Arch                                      int
	Secs                                      uint16
	Client, Given, Requested                  netip.Addr
	Server, Next, Relay                       netip.Addr
	Endpoint                                  netip.AddrPort
	Vendor, User, Host, File, Where, DropName string
}

func eventOf(e *boot.Event) told {
	out := told{
		Kind: e.Kind, Outcome: e.Outcome, Type: dhcp.Type(e.DHCP), MAC: net.HardwareAddr(e.MAC[:]).String(), UUID: e.UUID,
		XID: e.XID, Lease: e.Lease, Arch: -1, Secs: e.Secs, Client: boot.Addr(e.Client), Given: boot.Addr(e.Given),
		Requested: boot.Addr(e.Requested), Server: boot.Addr(e.Server), Next: boot.Addr(e.Next), Relay: boot.Addr(e.Relay),
		Endpoint: netip.AddrPortFrom(boot.Addr(e.Endpoint), e.Port),
		Vendor:   string(e.Text(boot.VendorClass)), User: string(e.Text(boot.UserClass)), Host: string(e.Text(boot.HostName)),
		File: string(e.Text(boot.File)), Where: string(e.Text(boot.Where)), DropName: string(e.Text(boot.Reason)),
	}
	if e.HasArch {
		out.Arch = int(e.Arch)
	}
	return out
}

// machine is a message of firmware, as another library writes it.
func machine(t *testing.T, change ...dhcpv4.Modifier) dhcp.Message {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0, 0x5e, 0, 1}, change...)
	if err != nil {
		t.Fatal(err)
	}
	m.TransactionID = dhcpv4.TransactionID{1, 2, 3, 4}
	out := make(dhcp.Message, mmsg.SlotLen)
	return out[:copy(out, m.ToBytes())]
}

func option(code uint8, value string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(code), []byte(value)))
}

var (
	smee      = netip.MustParseAddrPort("10.244.0.11:67")
	anAddress = netip.MustParseAddr("192.0.2.50")
)

// TestTellsOfRequests: what a request says, and what became of it.
func TestTellsOfRequests(t *testing.T) {
	base := told{
		Kind: boot.DHCPRequest, Type: dhcp.Discover, MAC: "52:54:00:5e:00:01", XID: 0x01020304, Arch: -1, Endpoint: smee,
		Where: "macvlan0",
	}
	tests := map[string]struct {
		m      func(*testing.T) dhcp.Message
		change func(*Config)
		want   func(*told)
		silent bool
	}{
		"plain": {m: func(t *testing.T) dhcp.Message { return machine(t) }, want: func(*told) {}},
		"firmware": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, option(60, "PXEClient:Arch:00007"), option(93, "\x00\x07"), option(97, "\x00abcdefghijklmnop"),
					option(12, "rack1"), func(m *dhcpv4.DHCPv4) { m.NumSeconds = 4 })
			},
			want: func(e *told) {
				e.Vendor, e.Arch, e.UUID, e.Host, e.Secs = "PXEClient:Arch:00007", int(iana.EFI_X86_64),
					[16]byte([]byte("abcdefghijklmnop")), "rack1", 4
			},
		},
		"iPXE asks for its address": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), option(77, "iPXE"),
					option(50, "\xc0\x00\x02\x32"), option(54, "\x0a\xf4\x00\x0b"))
			},
			want: func(e *told) {
				e.Type, e.User, e.Requested, e.Server = dhcp.Request, "iPXE", anAddress, smee.Addr()
			},
		},
		"a user class by the letter": {
			m:    func(t *testing.T) dhcp.Message { return machine(t, option(77, "\x0aTinkerbell\x01x")) },
			want: func(e *told) { e.User = "Tinkerbell" },
		},
		"options that are too short": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, option(93, "\x00"), option(97, "\x00abc"), option(50, "\xc0"), option(54, ""), option(51, "\x01"),
					option(77, ""))
			},
			want: func(*told) {},
		},
		"renewal": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(anAddress.AsSlice()))
			},
			want: func(e *told) { e.Type, e.Client = dhcp.Request, anAddress },
		},
		"by a router": {
			m:    func(t *testing.T) dhcp.Message { return withGiaddr(machine(t), theirGiaddr) },
			want: func(e *told) { e.Relay = netip.AddrFrom4(theirGiaddr) },
		},
		"dropped": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, func(m *dhcpv4.DHCPv4) { m.HopCount = 16 })
			},
			want: func(e *told) { e.Outcome, e.DropName = boot.Dropped, "hop-limit" },
		},
		"no server": {
			m:      func(t *testing.T) dhcp.Message { return machine(t) },
			change: func(c *Config) { c.Servers = nil },
			want: func(e *told) {
				e.Outcome, e.DropName, e.Endpoint = boot.Dropped, "no-server", netip.AddrPort{}
			},
		},
		"another server's answer": {
			m: func(t *testing.T) dhcp.Message {
				return machine(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithYourIP(anAddress.AsSlice()),
					option(54, "\xc0\x00\x02\x63"), func(m *dhcpv4.DHCPv4) { m.OpCode = dhcpv4.OpcodeBootReply })
			},
			want: func(e *told) {
				e.Kind, e.Type, e.Outcome, e.DropName = boot.DHCPReply, dhcp.Offer, boot.Dropped, "reply-from-client"
				e.Given, e.Server = anAddress, netip.MustParseAddr("192.0.2.99")
				e.Endpoint = netip.MustParseAddrPort("192.0.2.99:67")
			},
		},
		"no message": {
			m:      func(*testing.T) dhcp.Message { return make(dhcp.Message, 100, mmsg.SlotLen) },
			silent: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []told
			b := newBench(t, func(c *Config) { c.Event = func(e *boot.Event) { got = append(got, eventOf(e)) } })
			if test.change != nil {
				var c Config
				c.Servers = []string{"kept"}
				if test.change(&c); c.Servers == nil {
					b.targets.All = nil
				}
			}
			m, a := test.m(t), b.heard
			switch {
			case len(m) > 28 && m.Giaddr() != [4]byte{}:
				a.source.ip = wide(theirGiaddr)
			case m[0] == byte(dhcp.OpReply):
				a.source = peer{wide([4]byte{192, 0, 2, 99}), 67}
			}
			m, drop := b.worker.request4(m, &a, b.targets, b.now())
			tellArrived(b.worker, m, &a, b.targets, b.now(), drop)
			var want []told
			if !test.silent {
				want = []told{base}
				test.want(&want[0])
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTellsOfReplies: what a machine was given, by which server, and how long that took.
func TestTellsOfReplies(t *testing.T) {
	offer := func(t *testing.T, request dhcp.Message, change ...dhcpv4.Modifier) dhcp.Message {
		asked, err := dhcpv4.FromBytes(request)
		if err != nil {
			t.Fatal(err)
		}
		m, err := dhcpv4.NewReplyFromRequest(asked, append([]dhcpv4.Modifier{
			dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithYourIP(anAddress.AsSlice()),
			dhcpv4.WithServerIP(smee.Addr().AsSlice()), option(51, "\x00\x00\x0e\x10"), option(54, "\x0a\xf4\x00\x0b"),
		}, change...)...)
		if err != nil {
			t.Fatal(err)
		}
		out := make(dhcp.Message, mmsg.SlotLen)
		return out[:copy(out, m.ToBytes())]
	}
	base := told{
		Kind: boot.DHCPReply, Type: dhcp.Offer, MAC: "52:54:00:5e:00:01", XID: 0x01020304, Arch: -1, Endpoint: smee,
		Given: anAddress, Next: smee.Addr(), Server: smee.Addr(), Lease: 3600, Where: "macvlan0",
	}
	tests := map[string]struct {
		change []dhcpv4.Modifier
		config func(*Config)
		silent bool // nobody asked
		want   func(*told)
	}{
		"plain": {want: func(*told) {}},
		"boot file by its option": {
			change: []dhcpv4.Modifier{option(67, "http://192.0.2.2:7171/undionly.kpxe\x00")},
			want:   func(e *told) { e.File = "http://192.0.2.2:7171/undionly.kpxe" },
		},
		"boot file by its field": {
			change: []dhcpv4.Modifier{func(m *dhcpv4.DHCPv4) { m.BootFileName = "snp.efi" }},
			want:   func(e *told) { e.File = "snp.efi" },
		},
		"options in the field": {
			change: []dhcpv4.Modifier{func(m *dhcpv4.DHCPv4) { m.BootFileName = "\x0c\x01x\xff" }, option(52, "\x01")},
			want:   func(*told) {},
		},
		"nobody asked": {
			silent: true,
			want: func(e *told) {
				e.Outcome, e.DropName, e.Where = boot.Dropped, "unsolicited", unicastLabel
			},
		},
		"not a server of ours": {
			config: func(c *Config) { c.TrustedServers = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")} },
			want: func(e *told) {
				e.Outcome, e.DropName, e.Where = boot.Dropped, "untrusted-server", unicastLabel
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []told
			var took time.Duration
			b := newBench(t, func(c *Config) {
				c.Event = func(e *boot.Event) { got, took = append(got, eventOf(e)), e.Took }
				if test.config != nil {
					test.config(c)
				}
			})
			request := machine(t)
			if !test.silent {
				var drop Drop
				if request, drop = b.hear(request); drop != None {
					t.Fatal(drop)
				}
			}
			later := b.now() + int64(7*time.Millisecond)
			m, o, drop := reply4(b.worker, offer(t, request, test.change...), smee.Addr(), b.targets, later)
			tellBack(b.worker, m, &o, smee, later, drop)
			want := base
			test.want(&want)
			if diff := cmp.Diff([]told{want}, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if want.Outcome == boot.Passed && (took < 7*time.Millisecond || took > time.Minute) {
				t.Errorf("the answer took %v", took)
			}
		})
	}
}

// TestToldDropsAreBounded: a flood is dropped; what is told of it does not take the place of what machines say.
func TestToldDropsAreBounded(t *testing.T) {
	dropped, passed := 0, 0
	b := newBench(t, func(c *Config) {
		c.Event = func(e *boot.Event) {
			if e.Outcome == boot.Dropped {
				dropped++
			} else {
				passed++
			}
		}
	})
	m, a := machine(t), b.heard
	for range 10 * boot.AllowanceRate {
		tellArrived(b.worker, m, &a, b.targets, int64(time.Second), ClientLimit)
	}
	tellArrived(b.worker, m, &a, b.targets, int64(time.Second), None)
	if dropped != boot.AllowanceRate || passed != 1 {
		t.Errorf("told of %d that were dropped and %d that were not", dropped, passed)
	}
	tellArrived(b.worker, m, &a, b.targets, 2*int64(time.Second), ClientLimit)
	if dropped != boot.AllowanceRate+1 {
		t.Error("not told of the next second's")
	}
}

// TestTellingChangesNothing of what is relayed.
func TestTellingChangesNothing(t *testing.T) {
	with := newBench(t, func(c *Config) { c.Event = func(*boot.Event) {} })
	without := newBench(t, nil)
	var got [2]dhcp.Message
	for i, b := range []*bench{with, without} {
		m, a := machine(t, option(60, "PXEClient"), option(77, "iPXE")), b.heard
		m, drop := b.worker.request4(m, &a, b.targets, 1)
		tellArrived(b.worker, m, &a, b.targets, 1, drop)
		reply, o, drop := b.answer(m)
		tellBack(b.worker, reply, &o, smee, 1, drop)
		got[i] = append(m, reply...)
	}
	if diff := cmp.Diff(got[1], got[0]); diff != "" {
		t.Errorf("(-without +with):\n%s", diff)
	}
}

// BenchmarkTell is an event of a request that firmware sends.
func BenchmarkTell(tb *testing.B) {
	b := newBench(tb, func(c *Config) { c.Event = func(*boot.Event) {} })
	m, a := message(dhcp.OpRequest, byte(dhcp.Discover)), b.heard
	tb.ReportAllocs()
	for tb.Loop() {
		tellArrived(b.worker, m, &a, b.targets, 1, None)
	}
}

// FuzzTell reads options as machines may send them.
func FuzzTell(f *testing.F) {
	f.Add([]byte(message(dhcp.OpRequest, byte(dhcp.Discover))))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Offer))))
	f.Add(append([]byte(message(dhcp.OpRequest, byte(dhcp.Discover)))[:240], 77, 2, 9, 9, 97, 1, 0, 60, 255))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := dhcp.Message(b)
		if m.Check() != dhcp.OK {
			return
		}
		var e boot.Event
		texts := (*v4)(nil).describeEvent(&e, m)
		oracle, err := dhcpv4.FromBytes(b)
		if err != nil || len(oracle.Options[60]) == 0 || len(oracle.Options[52]) > 0 {
			return
		}
		if first, found := m.Option(60); found && len(first) == len(oracle.Options[60]) &&
			string(texts.vendor) != string(oracle.Options[60]) {
			t.Errorf("got vendor class %q, the library %q", texts.vendor, oracle.Options[60])
		}
	})
}
