package offer

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Solicit is a SOLICIT, which may be sent several times. It never asks for rapid commit (RFC 9915 section 21.14): an
// answer to that would be a lease.
type Solicit struct {
	Stage Stage
	Arch  Arch

	message *dhcpv6.Message
}

// The ports of DHCPv6, and Intel's enterprise number, under which PXE and HTTP boot have their vendor class (UEFI
// 24.7.3).
const (
	serverPort6 = 547
	clientPort6 = 546
	enterprise  = 343
)

// NewSolicit makes a SOLICIT with a transaction of its own. The machine's MAC stands in the DUID, as the end of its
// UUID, and in the IAID.
func NewSolicit(stage Stage, arch Arch, mac net.HardwareAddr) (*Solicit, error) {
	var uuid [16]byte
	copy(uuid[10:], mac)
	mods := []dhcpv6.Modifier{
		dhcpv6.WithClientID(&dhcpv6.DUIDUUID{UUID: uuid}),
		dhcpv6.WithRequestedOptions(dhcpv6.OptionBootfileURL, dhcpv6.OptionBootfileParam, dhcpv6.OptionVendorClass),
		dhcpv6.WithArchType(arch.Code),
		dhcpv6.WithOption(&dhcpv6.OptNetworkInterfaceID{Typ: dhcpv6.NII_PXE_GEN_I, Major: 3, Minor: 16}),
		dhcpv6.WithOption(&dhcpv6.OptVendorClass{EnterpriseNumber: enterprise, Data: [][]byte{[]byte(arch.class())}}),
	}
	if class := stage.userClass(); class != "" {
		mods = append(mods, dhcpv6.WithUserClass([]byte(class)))
	}
	message, err := dhcpv6.NewSolicit(mac, mods...)
	if err != nil {
		return nil, fmt.Errorf("failed to make SOLICIT: %w", err)
	}
	return &Solicit{Stage: stage, Arch: arch, message: message}, nil
}

// Frame is the SOLICIT as sent from a station some time after the first, from the link-local address that its Ethernet
// address makes.
func (s *Solicit) Frame(from frame.MAC, since time.Duration) []byte {
	s.message.UpdateOption(dhcpv6.OptElapsedTime(since))
	payload := s.message.ToBytes()
	b := append(make([]byte, frame.HeaderLen6, frame.HeaderLen6+len(payload)), payload...)
	group := frame.AllRelays()
	header := frame.Header6{
		SrcMAC: from, DstMAC: frame.GroupMAC(group), Src: frame.LinkLocal(from), Dst: group,
		SrcPort: clientPort6, DstPort: serverPort6,
	}
	header.Put(b)
	return b
}

// Hear looks whether a frame answers the SOLICIT.
func (s *Solicit) Hear(b []byte, sum frame.Checksum) (h Heard, ok bool) {
	d, bad := frame.Parse6(b, sum)
	if bad == frame.BadChecksum {
		if d, bad = frame.Parse6(b, frame.Trust); bad == frame.OK {
			bad = frame.BadChecksum
		}
	}
	if bad != frame.OK && bad != frame.BadChecksum || d.Dst.Port() != clientPort6 || len(d.Payload) < 4 ||
		!bytes.Equal(d.Payload[1:4], s.message.TransactionID[:]) {
		return h, false
	}
	h.From, h.Source, h.Server, h.Stage, h.Arch = d.SrcMAC, d.Src, d.Src.Addr(), s.Stage, s.Arch
	m, err := dhcpv6.MessageFromBytes(d.Payload)
	switch {
	case err != nil:
		h.Fault = fmt.Sprintf("it cannot be read: %v", err)
		return h, true
	case m.Options.ClientID() == nil || !m.Options.ClientID().Equal(s.message.Options.ClientID()):
		return h, false // another client's
	case bad == frame.BadChecksum:
		h.Fault = "its checksum is wrong"
	case m.MessageType != dhcpv6.MessageTypeAdvertise:
		h.Fault = fmt.Sprintf("it is no ADVERTISE but %s", m.MessageType)
	case m.Options.ServerID() == nil:
		h.Fault = "it names no server (option 2)"
	}
	h.read6(m)
	return h, true
}

// read6 takes over what a message of DHCPv6 says.
func (o *Offer) read6(m *dhcpv6.Message) {
	if id := m.Options.ServerID(); id != nil {
		o.ID = hex.EncodeToString(id.ToBytes())
	}
	o.File = m.Options.BootFileURL()
	if u := o.URL(); u != nil {
		o.Next, _ = netip.ParseAddr(u.Hostname())
	}
	for _, ip := range m.Options.DNS() {
		if a, ok := netip.AddrFromSlice(ip); ok {
			o.DNS = append(o.DNS, a)
		}
	}
	for _, class := range m.Options.VendorClasses() {
		if len(class.Data) > 0 && o.Class == "" {
			o.Class = string(class.Data[0])
		}
	}
	refused := func(s *dhcpv6.OptStatusCode) {
		if s != nil && s.StatusCode != iana.StatusSuccess {
			o.Refusal = fmt.Sprintf("%s: %s", s.StatusCode, s.StatusMessage)
		}
	}
	refused(m.Options.Status())
	for _, ia := range m.Options.IANA() {
		refused(ia.Options.Status())
		for _, each := range ia.Options.Addresses() {
			if a, ok := netip.AddrFromSlice(each.IPv6Addr.To16()); ok && a.Is6() && !o.Addr.IsValid() && a.IsGlobalUnicast() {
				o.Addr = netip.PrefixFrom(a, a.BitLen())
			}
		}
	}
}
