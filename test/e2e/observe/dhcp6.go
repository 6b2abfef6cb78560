package observe

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"golang.org/x/sys/unix"
)

// isDHCP tells whether a packet is DHCP of either family.
func (p Packet) isDHCP() bool {
	if p.Proto != unix.IPPROTO_UDP {
		return false
	}
	for _, port := range []uint16{p.From.Port(), p.To.Port()} {
		if port == 67 || port == dhcpv6.DefaultServerPort {
			return true
		}
	}
	return false
}

// dhcp6 takes a message between a machine and a relay or server on its link. Machines are known by the frame: DHCPv6
// has no place for a client's hardware address.
func (t *Tracker) dhcp6(at time.Time, p Packet) {
	message, err := dhcpv6.MessageFromBytes(p.Payload)
	if err != nil {
		return // between relays and servers
	}
	event := Event{At: at, Kind: DHCP, Name: message.Type().String(), IPv6: true}
	if p.To.Port() == dhcpv6.DefaultServerPort {
		event.Machine, event.Detail = p.Src.String(), clientOf6(message)
		if classes := message.Options.VendorClasses(); len(classes) > 0 && len(classes[0].Data) > 0 {
			event.VendorClass = string(classes[0].Data[0])
		}
		if users := message.Options.UserClasses(); len(users) > 0 {
			event.UserClass = string(users[0])
		}
		if len(message.Options.ArchTypes()) == 0 {
			t.booted(at, p)
		}
		t.emit(event)
		return
	}
	event.Machine = p.Dst.String()
	event.Detail = "no address"
	if ia := message.Options.OneIANA(); ia != nil {
		if addr := ia.Options.OneAddress(); addr != nil {
			event.Detail = addr.IPv6Addr.String()
		}
	}
	event.Detail += ", to " + addrOf(p.To)
	if file := message.Options.BootFileURL(); file != "" {
		event.Detail += ", boot file " + file
	}
	t.emit(event)
	if status := message.Options.Status(); status != nil && status.StatusCode != 0 {
		t.emit(Event{
			At: at, Machine: event.Machine, Kind: Trouble,
			Detail: fmt.Sprintf("DHCPv6 %s: %s", status.StatusCode, status.StatusMessage),
		})
	}
}

func addrOf(at netip.AddrPort) string {
	if at.Addr().IsLinkLocalUnicast() {
		return "its link-local address"
	}
	return at.Addr().String()
}

// clientOf6 says what a DHCPv6 client says of itself.
func clientOf6(m *dhcpv6.Message) string {
	who := "no vendor class"
	if classes := m.Options.VendorClasses(); len(classes) > 0 && len(classes[0].Data) > 0 {
		who = string(classes[0].Data[0])
	}
	if users := m.Options.UserClasses(); len(users) > 0 {
		names := make([]string, len(users))
		for i, user := range users {
			names[i] = fmt.Sprintf("%q", user)
		}
		who += ", user class " + strings.Join(names, " ")
	}
	return who
}
