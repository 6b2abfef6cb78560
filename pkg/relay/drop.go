package relay

import (
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// Drop is the reason for which a packet was dropped. The policy returns it, tests compare it, it is a label of the
// drops metric, and it has a row in docs/dhcp-relay.md.
type Drop uint8

// The reasons. None means that the packet is forwarded.
const (
	None Drop = iota

	// Faults that frame.Parse finds, in its order.
	ShortFrame
	NotIPv4
	BadIPHeader
	NotUDP
	Fragment
	BadUDPLength
	BadUDPChecksum

	// Faults that dhcp.Message.Check finds, in its order.
	ShortMessage
	BadOp
	BadHlen

	// Reasons that a socket tells.
	OtherHost // for another station or another VLAN, or sent by this host
	Truncated // longer than any DHCP message that could be relayed
	Overflow  // the listener's buffer was full: the kernel counts these
	Heard     // a broadcast at the unicast socket: the listeners read those

	// Reasons for which the policy drops a request.
	ReplyFromClient // a BOOTREPLY on the client's side: of a server there
	HopLimit
	Loop           // our own giaddr comes back
	BadGiaddr      // a giaddr that no host can have
	UntrustedRelay // a giaddr from outside the trusted prefixes
	UntrustedAgent // option 82 without a giaddr (RFC 3046 section 2.1)
	AgentRefused   // a giaddr or option 82 is there, and the mode is discard
	NoServer       // no server has an address at the moment
	NoGiaddr       // the relay has no address that a server could answer
	ClientLimit    // one client asks too often
	TotalLimit     // all clients together ask too often
	NewcomerLimit  // more machines that were never served ask than the servers answer

	// Reasons for which it drops a reply.
	Unsolicited     // no pending request has this xid and chaddr
	TokenMissing    // the server has not echoed the option 82 with the token
	BadToken        // the token is not the request's
	ReplyLimit      // one more reply to a request than any server sends
	BadAddress      // for an address that no host can have
	UntrustedServer // from outside the server prefixes
	TooLong         // larger than the listener's MTU
	ListenerDown    // the listener that the client is on is gone

	SendFailed // the kernel would not send it

	numDrops
)

var dropNames = [numDrops]string{
	None:            "none",
	ShortFrame:      "short-frame",
	NotIPv4:         "not-ipv4",
	BadIPHeader:     "bad-ip-header",
	NotUDP:          "not-udp",
	Fragment:        "fragment",
	BadUDPLength:    "bad-udp-length",
	BadUDPChecksum:  "bad-udp-checksum",
	ShortMessage:    "short-message",
	BadOp:           "bad-op",
	BadHlen:         "bad-hlen",
	OtherHost:       "other-host",
	Truncated:       "truncated",
	Overflow:        "overflow",
	Heard:           "heard-by-listener",
	ReplyFromClient: "reply-from-client",
	HopLimit:        "hop-limit",
	Loop:            "loop",
	BadGiaddr:       "bad-giaddr",
	UntrustedRelay:  "untrusted-relay",
	UntrustedAgent:  "untrusted-option82",
	AgentRefused:    "agent-refused",
	NoServer:        "no-server",
	NoGiaddr:        "no-giaddr",
	ClientLimit:     "client-limit",
	TotalLimit:      "total-limit",
	NewcomerLimit:   "newcomer-limit",
	Unsolicited:     "unsolicited",
	TokenMissing:    "token-missing",
	BadToken:        "bad-token",
	ReplyLimit:      "reply-limit",
	BadAddress:      "bad-address",
	UntrustedServer: "untrusted-server",
	TooLong:         "too-long",
	ListenerDown:    "listener-down",
	SendFailed:      "send-failed",
}

func (d Drop) String() string { return dropNames[d] }

// ofFrame and ofMessage carry the faults of the packages below over: the enums are in the same order.
func ofFrame(f frame.Fault) Drop {
	if f == frame.OK {
		return None
	}
	return ShortFrame + Drop(f-frame.Short)
}

func ofMessage(f dhcp.Fault) Drop {
	if f == dhcp.OK {
		return None
	}
	return ShortMessage + Drop(f-dhcp.Short)
}
