// Package offer is the DHCP of stack-doctor: the DISCOVER that firmware sends, or iPXE, and what servers offer. There
// is no REQUEST here, nor anything else that changes a lease.
package offer

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Stage is the program that asks.
type Stage uint8

// The stages.
const (
	Firmware   Stage = iota
	IPXE             // iPXE, by its usual user class
	Tinkerbell       // iPXE as Smee builds it
)

// userClass is option 77 of a stage.
func (s Stage) userClass() string { return [...]string{"", "iPXE", "Tinkerbell"}[s] }

func (s Stage) String() string { return [...]string{"firmware", "iPXE", "iPXE of Smee"}[s] }

// Ask is a DISCOVER, which may be sent several times.
type Ask struct {
	Stage Stage
	Arch  Arch
	// MAC is the machine's: in chaddr and in option 97, never in the frame's own header.
	MAC net.HardwareAddr

	message *dhcpv4.DHCPv4
}

// The ports of DHCP.
const (
	serverPort = 67
	clientPort = 68
)

// options are those that edk2 asks for.
var options = []dhcpv4.OptionCode{
	dhcpv4.OptionSubnetMask, dhcpv4.OptionTimeOffset, dhcpv4.OptionRouter, dhcpv4.OptionTimeServer,
	dhcpv4.OptionNameServer, dhcpv4.OptionDomainNameServer, dhcpv4.OptionLogServer, dhcpv4.OptionHostName,
	dhcpv4.OptionBootFileSize, dhcpv4.OptionDomainName, dhcpv4.OptionRootPath, dhcpv4.OptionExtensionsPath,
	dhcpv4.OptionInterfaceMTU, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionNTPServers,
	dhcpv4.OptionVendorSpecificInformation, dhcpv4.OptionServerIdentifier, dhcpv4.OptionClassIdentifier,
	dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName,
}

// New makes a DISCOVER with a transaction of its own.
func New(stage Stage, arch Arch, mac net.HardwareAddr) (*Ask, error) {
	uuid := append(make([]byte, 11), mac...) // type 0, and a UUID that ends in the MAC
	mods := []dhcpv4.Modifier{
		dhcpv4.WithBroadcast(true), // the answer must not go to the machine's switch port
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1472)),
		dhcpv4.WithRequestedOptions(options...),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(arch.class())),
		dhcpv4.WithOption(dhcpv4.OptClientArch(arch.Code)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 3, 1}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, uuid),
	}
	if class := stage.userClass(); class != "" {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.OptUserClass(class)),
			dhcpv4.WithRequestedOptions(dhcpv4.OptionClasslessStaticRoute)) // as iPXE 2.0 does
	}
	message, err := dhcpv4.NewDiscovery(mac, mods...)
	if err != nil {
		return nil, fmt.Errorf("failed to make DISCOVER: %w", err)
	}
	return &Ask{Stage: stage, Arch: arch, MAC: mac, message: message}, nil
}

// Frame is the DISCOVER as sent from a station some time after the first.
func (a *Ask) Frame(from frame.MAC, since time.Duration) []byte {
	a.message.NumSeconds = uint16(since / time.Second)
	payload := a.message.ToBytes()
	b := append(make([]byte, frame.HeaderLen, frame.HeaderLen+len(payload)), payload...)
	header := frame.Header{
		SrcMAC: from, DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255}, SrcPort: clientPort, DstPort: serverPort,
	}
	header.Put(b)
	return b
}

// Heard is an answer to an Ask, or what is wrong with it.
type Heard struct {
	Offer
	// Fault is why no client takes the answer; empty: it does.
	Fault string
}

// Hear looks whether a frame answers the DISCOVER. What it says of the sender holds for rubbish, too.
func (a *Ask) Hear(b []byte, sum frame.Checksum) (h Heard, ok bool) {
	d, bad := frame.Parse(b, sum)
	if bad == frame.BadChecksum { // whose it is stands in it all the same
		if d, bad = frame.Parse(b, frame.Trust); bad == frame.OK {
			bad = frame.BadChecksum
		}
	}
	if bad != frame.OK && bad != frame.BadChecksum || d.Dst.Port() != clientPort || len(d.Payload) < 44 {
		return h, false
	}
	xid := a.message.TransactionID
	if d.Payload[0] != byte(dhcpv4.OpcodeBootReply) || [4]byte(d.Payload[4:]) != xid ||
		[6]byte(d.Payload[28:]) != [6]byte(a.MAC) {
		return h, false // another client's, or a request
	}
	h.From, h.Source, h.Stage, h.Arch = d.SrcMAC, d.Src, a.Stage, a.Arch
	m, err := dhcpv4.FromBytes(d.Payload)
	switch {
	case err != nil:
		h.Fault = fmt.Sprintf("it cannot be read: %v", err)
		return h, true
	case bad == frame.BadChecksum:
		h.Fault = "its checksum is wrong"
	case m.MessageType() == dhcpv4.MessageTypeNak:
		h.Fault = "it is a NAK"
	case m.MessageType() != dhcpv4.MessageTypeOffer:
		h.Fault = fmt.Sprintf("it is no OFFER but %s", m.MessageType())
	}
	if !unpack(m, d.Payload) && h.Fault == "" {
		h.Fault = fmt.Sprintf("its option overload (52) is %v", m.Options.Get(dhcpv4.OptionOptionOverload))
	}
	h.read(m)
	if h.Fault == "" && h.Server == (netip.Addr{}) {
		h.Fault = "it names no server (option 54)"
	}
	return h, true
}
