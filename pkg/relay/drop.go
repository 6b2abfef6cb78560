package relay

import (
	"github.com/tinkerbell/stack/internal/metric"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// Drop is the reason for which a packet was dropped. The policy returns it, tests compare it, it is a label of the
// drops metric, and it has a row in docs/reference/dhcp-relay.md.
type Drop uint8

// The reasons. None means that the packet is forwarded.
const (
	None Drop = iota

	// Faults that frame.Parse and frame.Parse6 find.
	ShortFrame
	NotIPv4
	NotIPv6
	BadIPHeader
	NotUDP
	Fragment
	ExtensionHeader // of options, in front of the UDP header: no client sends one
	BadUDPLength
	BadUDPChecksum

	// Faults of a message.
	ShortMessage
	BadOp
	BadHlen
	BadType
	BadOptions
	BadRelayMessage
	TooDeep

	// Reasons that a socket tells.
	OtherHost       // for another station or another VLAN, or sent by this host
	Truncated       // longer than any message that could be relayed
	Overflow        // the listener's buffer was full: the kernel counts these
	HeardByListener // a broadcast, or to a group, at the unicast socket: the listeners read those

	// Reasons for which the policy drops a request.
	ReplyFromClient   // a server's message on the client's side: of a server there
	UnicastFromClient // a DHCPv6 client's message at the unicast socket: only relay agents send there
	BadSource         // from an address that cannot be answered
	HopLimit
	Loop             // our own giaddr, or RELAY-FORW, comes back
	BadGiaddr        // a giaddr that no host can have
	UntrustedRelay   // a giaddr, or a RELAY-FORW, from outside the trusted prefixes
	UntrustedLink    // a RELAY-FORW whose link address is outside of them: it would choose the addresses to give
	UntrustedAgent   // option 82 without a giaddr (RFC 3046 section 2.1)
	NoServer         // no server has an address at the moment
	NoGiaddr         // the relay has no address that a server could answer
	ClientLimit      // one client asks too often
	TotalLimit       // all clients together ask too often
	NewcomerLimit    // more machines that were never served ask than the servers answer
	TransactionTaken // a copy of a message of another MAC address that waits for its answer
	NoRoom           // the options that are to be added do not fit

	// Reasons for which it drops a reply.
	NotAReply       // no RELAY-REPL with a server's message inside
	Unsolicited     // no pending request matches
	TokenMissing    // the server has not repeated the token
	BadToken        // the token is not the request's
	ReplyLimit      // one more reply to a request than any server sends
	WrongLink       // the link address, or the Interface-Id, is not the request's
	BadAddress      // for an address that no host can have
	UntrustedServer // from outside the server prefixes
	TooLong         // larger than the listener's MTU
	ListenerDown    // the listener that the client is on is gone

	SendFailed // the kernel would not send it

	numDrops
)

var drops = metric.Enum[Drop]{
	None: metric.None, ShortFrame: "short-frame", NotIPv4: "not-ipv4", NotIPv6: "not-ipv6",
	BadIPHeader: "bad-ip-header", NotUDP: "not-udp", Fragment: "fragment", ExtensionHeader: "extension-header",
	BadUDPLength: "bad-udp-length", BadUDPChecksum: "bad-udp-checksum", ShortMessage: "short-message",
	BadOp: "bad-op", BadHlen: "bad-hlen", BadType: "bad-type", BadOptions: "bad-options",
	BadRelayMessage: "bad-relay-message", TooDeep: "too-deep", OtherHost: boot.ReasonOtherHost,
	Truncated: "truncated", Overflow: "overflow", HeardByListener: boot.ReasonHeardByListener,
	ReplyFromClient: boot.ReasonReplyFromClient, UnicastFromClient: "unicast-from-client", BadSource: "bad-source",
	HopLimit: "hop-limit", Loop: "loop", BadGiaddr: "bad-giaddr", UntrustedRelay: "untrusted-relay",
	UntrustedLink: "untrusted-link-address", UntrustedAgent: "untrusted-option82",
	NoServer: "no-server", NoGiaddr: "no-giaddr", ClientLimit: "client-limit", TotalLimit: "total-limit",
	NewcomerLimit: "newcomer-limit", TransactionTaken: "transaction-taken", NoRoom: "no-room",
	NotAReply: "not-a-reply", Unsolicited: boot.ReasonUnsolicited, TokenMissing: "token-missing",
	BadToken: "bad-token", ReplyLimit: "reply-limit", WrongLink: "wrong-link", BadAddress: "bad-address",
	UntrustedServer: "untrusted-server", TooLong: "too-long", ListenerDown: "listener-down",
	SendFailed: "send-failed",
}

func (d Drop) String() string { return drops.Name(d) }

// The faults of the packages below.
var (
	ofFrame4 = [...]Drop{
		frame.Short: ShortFrame, frame.NotIPv4: NotIPv4, frame.NotIPv6: NotIPv4, frame.BadHeader: BadIPHeader,
		frame.NotUDP: NotUDP, frame.Fragment: Fragment, frame.BadLength: BadUDPLength, frame.BadChecksum: BadUDPChecksum,
	}
	ofFrame6 = [...]Drop{
		frame.Short: ShortFrame, frame.NotIPv4: NotIPv6, frame.NotIPv6: NotIPv6, frame.BadHeader: ShortFrame,
		frame.NotUDP:   ExtensionHeader, // the listener's filter lets nothing else through that is no UDP
		frame.Fragment: Fragment, frame.BadLength: BadUDPLength, frame.BadChecksum: BadUDPChecksum,
	}
	ofMessage4 = [...]Drop{dhcp.Short: ShortMessage, dhcp.BadOp: BadOp, dhcp.BadHlen: BadHlen}
	ofMessage6 = [...]Drop{
		dhcp6.Short: ShortMessage, dhcp6.BadType: BadType, dhcp6.BadOptions: BadOptions,
		dhcp6.BadRelayMessage: BadRelayMessage, dhcp6.TooDeep: TooDeep,
	}
)
