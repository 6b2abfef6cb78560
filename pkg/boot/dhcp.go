package boot

// The names of DHCP's message types, by number.
var (
	names4 = [...]string{
		1: "DISCOVER", 2: "OFFER", 3: "REQUEST", 4: "DECLINE", 5: "ACK", 6: "NAK", 7: "RELEASE", 8: "INFORM",
	}
	names6 = [...]string{
		1: "SOLICIT", 2: "ADVERTISE", 3: "REQUEST", 4: "CONFIRM", 5: "RENEW", 6: "REBIND", 7: "REPLY", 8: "RELEASE",
		9: "DECLINE", 10: "RECONFIGURE", 11: "INFORMATION-REQUEST",
	}
)

// TypeName is the name of an event's DHCP message type. BOOTP has no types.
func (e *Event) TypeName() string {
	names := names4[:]
	if e.V6 {
		names = names6[:]
	}
	switch t := int(e.DHCP); {
	case t > 0 && t < len(names):
		return names[t]
	case t > 0 || e.V6:
		return "DHCP"
	case e.Kind == DHCPRequest:
		return "BOOTREQUEST"
	default:
		return "BOOTREPLY"
	}
}
