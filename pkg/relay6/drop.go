package relay6

import (
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// Drop is the reason for which a packet was dropped. The policy returns it, tests compare it, it is a label of the
// drops metric, and it has a row in docs/dhcp-relay.md. A reason that pkg/relay has too has the same name there.
type Drop uint8

// The reasons. None means that the packet is forwarded.
const (
	None Drop = iota

	// Faults that frame.Parse6 finds.
	ShortFrame
	NotIPv6
	Fragment
	ExtensionHeader // of options, in front of the UDP header: no client sends one
	BadUDPLength
	BadUDPChecksum

	// Reasons that a socket tells.
	OtherHost // for another station or another VLAN, or sent by this host
	Truncated // longer than any message that could be relayed
	Overflow  // the listener's buffer was full: the kernel counts these
	Heard     // to a group, at the unicast socket: the listeners read those

	// Faults that dhcp6.Message.Check finds, in its order.
	ShortMessage
	BadType
	BadOptions
	BadRelayMessage
	TooDeep

	// Reasons for which the policy drops a request.
	BadSource         // from an address that cannot be answered
	ReplyFromClient   // a server's message on the machines' side: of a server there
	UnicastFromClient // a client's message at the unicast socket: only relay agents send there
	HopLimit          // has passed 8 relay agents
	UntrustedRelay    // a RELAY-FORW from outside the trusted prefixes
	UntrustedLink     // a RELAY-FORW whose link address is outside of them: it would choose the addresses to give
	Loop              // our own RELAY-FORW comes back
	NoServer          // no server has an address at the moment
	ClientLimit       // one client asks too often
	TotalLimit        // all clients together ask too often
	TransactionTaken  // a copy of a message of another MAC address that waits for its answer
	NewcomerLimit     // more machines that were never served ask than the servers answer
	NoRoom            // the options that are to be added do not fit

	// Reasons for which it drops a reply.
	UntrustedServer    // from outside the server prefixes
	NotAReply          // no RELAY-REPL with a server's message inside
	Unsolicited        // no pending message matches
	TokenMissing       // the server has not repeated the Interface-Id with the token
	BadToken           // the Interface-Id has another token
	ReplyLimit         // one more reply to a message than any server sends
	WrongLink          // the link address, or the Interface-Id, is not the request's
	ReconfigureRefused // a RECONFIGURE that no client may believe, or from a host that may not send one
	TooLong            // larger than the listener's MTU
	ListenerDown       // the listener that the client is on is gone

	SendFailed // the kernel would not send it

	numDrops
)

var dropNames = [numDrops]string{
	None:               "none",
	ShortFrame:         "short-frame",
	NotIPv6:            "not-ipv6",
	Fragment:           "fragment",
	ExtensionHeader:    "extension-header",
	BadUDPLength:       "bad-udp-length",
	BadUDPChecksum:     "bad-udp-checksum",
	OtherHost:          "other-host",
	Truncated:          "truncated",
	Overflow:           "overflow",
	Heard:              "heard-by-listener",
	ShortMessage:       "short-message",
	BadType:            "bad-type",
	BadOptions:         "bad-options",
	BadRelayMessage:    "bad-relay-message",
	TooDeep:            "too-deep",
	BadSource:          "bad-source",
	ReplyFromClient:    "reply-from-client",
	UnicastFromClient:  "unicast-from-client",
	HopLimit:           "hop-limit",
	UntrustedRelay:     "untrusted-relay",
	UntrustedLink:      "untrusted-link-address",
	Loop:               "loop",
	NoServer:           "no-server",
	ClientLimit:        "client-limit",
	TotalLimit:         "total-limit",
	TransactionTaken:   "transaction-taken",
	NewcomerLimit:      "newcomer-limit",
	NoRoom:             "no-room",
	UntrustedServer:    "untrusted-server",
	NotAReply:          "not-a-reply",
	Unsolicited:        "unsolicited",
	TokenMissing:       "token-missing",
	BadToken:           "bad-token",
	ReplyLimit:         "reply-limit",
	WrongLink:          "wrong-link",
	ReconfigureRefused: "reconfigure-refused",
	TooLong:            "too-long",
	ListenerDown:       "listener-down",
	SendFailed:         "send-failed",
}

func (d Drop) String() string { return dropNames[d] }

// ofFrame carries a fault of package frame over.
func ofFrame(f frame.Fault) Drop {
	switch f {
	case frame.OK:
		return None
	case frame.NotIPv6, frame.NotIPv4:
		return NotIPv6
	case frame.NotUDP: // the listener's filter lets nothing else through that is no UDP
		return ExtensionHeader
	case frame.Fragment:
		return Fragment
	case frame.BadLength:
		return BadUDPLength
	case frame.BadChecksum:
		return BadUDPChecksum
	default:
		return ShortFrame
	}
}

// ofMessage carries a fault of package dhcp6 over: the enums are in the same order.
func ofMessage(f dhcp6.Fault) Drop {
	if f == dhcp6.OK {
		return None
	}
	return ShortMessage + Drop(f-dhcp6.Short)
}
