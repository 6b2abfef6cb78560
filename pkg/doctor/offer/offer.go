package offer

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Offer is what a server offers.
type Offer struct {
	Stage Stage
	Arch  Arch
	After time.Duration // since the first DISCOVER

	From    frame.MAC      // the station that sent it: server or relay
	Source  netip.AddrPort // of the datagram
	Server  netip.Addr     // option 54
	Relay   netip.Addr     // giaddr; the zero address: none
	Addr    netip.Prefix   // not valid: a proxy, which offers no address
	Routers []netip.Addr
	Static  []Route    // option 121 (RFC 3442); none where it is malformed
	Next    netip.Addr // where the file is: siaddr, or option 66; for UEFI siaddr, or the server itself
	// Itself tells that Next is the DHCP server, since siaddr is zero.
	Itself bool
	Name   string // option 66
	File   string
	Class  string // option 60
	Vendor []byte // option 43
	MTU    int    // option 26; 0: not said
	Log    []netip.Addr
	DNS    []netip.Addr
	Search []string // domains that complete short names: option 119, else option 15
}

// Route is a route to a network.
type Route struct {
	To netip.Prefix
	By netip.Addr
}

// read takes over what a message says.
func (o *Offer) read(m *dhcpv4.DHCPv4) {
	o.Server = addrOf(m.ServerIdentifier())
	o.Relay = addrOf(m.GatewayIPAddr)
	if addr := addrOf(m.YourIPAddr); addr.IsValid() {
		bits, _ := m.SubnetMask().Size()
		if m.SubnetMask() == nil {
			bits = 32
		}
		o.Addr = netip.PrefixFrom(addr, bits)
	}
	o.Routers, o.Log, o.DNS = addrsOf(m.Router()), addrsOf(dhcpv4.GetIPs(dhcpv4.OptionLogServer, m.Options)),
		addrsOf(m.DNS())
	for _, r := range m.ClasslessStaticRoute() {
		to, _ := netip.AddrFromSlice(r.Dest.IP)
		bits, _ := r.Dest.Mask.Size()
		o.Static = append(o.Static, Route{netip.PrefixFrom(to, bits).Masked(), addrOf(r.Router)})
	}
	o.Search = domains(m)
	o.File, _, _ = strings.Cut(m.BootFileName, "\x00")
	if name := m.Options.Get(dhcpv4.OptionBootfileName); len(name) > 0 {
		o.File = string(bytes.TrimRight(name, "\x00\xff"))
	}
	o.Class, o.Vendor = m.ClassIdentifier(), m.Options.Get(dhcpv4.OptionVendorSpecificInformation)
	if mtu := m.Options.Get(dhcpv4.OptionInterfaceMTU); len(mtu) == 2 {
		o.MTU = int(mtu[0])<<8 | int(mtu[1])
	}
	o.Next = addrOf(m.ServerIPAddr)
	o.Name = string(bytes.TrimRight(m.Options.Get(dhcpv4.OptionTFTPServerName), "\x00"))
	switch u := o.URL(); {
	case u != nil:
		o.Next, _ = netip.ParseAddr(u.Hostname())
	case o.Next.IsValid():
	case o.Stage == Firmware && o.Arch.Machine != 0 && !o.Arch.HTTP: // as EDK2 does, which does not read option 66
		o.Next, o.Itself = o.Server, true
	default:
		o.Next, _ = netip.ParseAddr(o.Name)
	}
}

// domains are those that iPXE completes short names by: the search list, and without one the domain name.
func domains(m *dhcpv4.DHCPv4) []string {
	if list := m.DomainSearch(); list != nil && len(list.Labels) > 0 {
		return list.Labels
	}
	if name := strings.Trim(m.DomainName(), ".\x00"); name != "" {
		return []string{name}
	}
	return nil
}

// unpack reads the options that a server puts into the fields of file and server name (RFC 2132 section 9.3; RFC 3396
// section 5 has their order). It is false where the option that says so is none.
func unpack(m *dhcpv4.DHCPv4, payload []byte) bool {
	const sname, file, cookie, inFile, inName = 44, 108, 236, 1, 2
	overload := m.Options.Get(dhcpv4.OptionOptionOverload)
	if overload == nil {
		return true
	}
	if len(overload) != 1 || overload[0] < inFile || overload[0] > inFile|inName {
		return false
	}
	if overload[0]&inFile != 0 {
		m.BootFileName = ""
		addOptions(m, payload[file:cookie])
	}
	if overload[0]&inName != 0 {
		m.ServerHostName = ""
		addOptions(m, payload[sname:file])
	}
	return true
}

func addOptions(m *dhcpv4.DHCPv4, b []byte) {
	const pad, end = 0, 255
	for len(b) >= 2 && b[0] != end {
		if b[0] == pad {
			b = b[1:]
			continue
		}
		value := b[2:min(len(b), 2+int(b[1]))]
		m.Options[b[0]] = append(m.Options[b[0]], value...)
		b = b[2+len(value):]
	}
}

func addrOf(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

func addrsOf(ips []net.IP) (all []netip.Addr) {
	for _, ip := range ips {
		if a := addrOf(ip); a.IsValid() {
			all = append(all, a)
		}
	}
	return all
}

// URL is the file, where it is a URL; else nil.
func (o *Offer) URL() *url.URL {
	u, err := url.Parse(o.File)
	if err != nil || u.Host == "" {
		return nil
	}
	return u
}

// Boots tells whether the offer has boot data: a siaddr without a file is no order to boot.
func (o *Offer) Boots() bool { return o.File != "" }

// BootData is what decides on what the machine loads, in words.
func (o *Offer) BootData() string {
	if !o.Boots() {
		return "no boot file"
	}
	if o.URL() != nil {
		return fmt.Sprintf("%q", o.File)
	}
	at := fmt.Sprintf("%q at %s", o.File, o.Next)
	switch {
	case o.Itself && o.Name != "":
		at += fmt.Sprintf(" itself (siaddr 0.0.0.0, option 66 %s)", o.Name)
	case o.Itself:
		at += " itself (siaddr 0.0.0.0)"
	}
	return at
}

// Router is the first router, where there is one.
func (o *Offer) Router() netip.Addr {
	if len(o.Routers) == 0 {
		return netip.Addr{}
	}
	return o.Routers[0]
}

// StaticTo is the route of option 121 to a host; ok is false where there is none.
func (o *Offer) StaticTo(host netip.Addr) (best Route, ok bool) {
	for _, r := range o.Static {
		if r.By.IsValid() && r.To.Contains(host) && (!ok || r.To.Bits() > best.To.Bits()) {
			best, ok = r, true
		}
	}
	return best, ok
}

// Menu is what option 43 says of PXE's discovery (PXE 2.1, table 2-3): the bits of sub-option 6, and whether it has a
// menu of servers or files.
func (o *Offer) Menu() (control byte, menu bool) {
	for b := o.Vendor; len(b) >= 2 && b[0] != 255; {
		size := int(b[1])
		if len(b) < 2+size {
			break
		}
		switch b[0] {
		case 6:
			if size == 1 {
				control = b[2]
			}
		case 8, 9:
			menu = true
		}
		b = b[2+size:]
	}
	return control, menu
}
