package relay

import (
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
	AgentRefused     // a giaddr or option 82 is there, and the mode is discard
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

// Which families have a reason.
const (
	four = 1 << iota
	six
	both = four | six
)

var drops = [numDrops]struct {
	name     string
	families uint8
}{
	None:              {"none", 0},
	ShortFrame:        {"short-frame", both},
	NotIPv4:           {"not-ipv4", four},
	NotIPv6:           {"not-ipv6", six},
	BadIPHeader:       {"bad-ip-header", four},
	NotUDP:            {"not-udp", four},
	Fragment:          {"fragment", both},
	ExtensionHeader:   {"extension-header", six},
	BadUDPLength:      {"bad-udp-length", both},
	BadUDPChecksum:    {"bad-udp-checksum", both},
	ShortMessage:      {"short-message", both},
	BadOp:             {"bad-op", four},
	BadHlen:           {"bad-hlen", four},
	BadType:           {"bad-type", six},
	BadOptions:        {"bad-options", six},
	BadRelayMessage:   {"bad-relay-message", six},
	TooDeep:           {"too-deep", six},
	OtherHost:         {boot.ReasonOtherHost, both},
	Truncated:         {"truncated", both},
	Overflow:          {"overflow", both},
	HeardByListener:   {boot.ReasonHeardByListener, both},
	ReplyFromClient:   {boot.ReasonReplyFromClient, both},
	UnicastFromClient: {"unicast-from-client", six},
	BadSource:         {"bad-source", six},
	HopLimit:          {"hop-limit", both},
	Loop:              {"loop", both},
	BadGiaddr:         {"bad-giaddr", four},
	UntrustedRelay:    {"untrusted-relay", both},
	UntrustedLink:     {"untrusted-link-address", six},
	UntrustedAgent:    {"untrusted-option82", four},
	AgentRefused:      {"agent-refused", four},
	NoServer:          {"no-server", both},
	NoGiaddr:          {"no-giaddr", four},
	ClientLimit:       {"client-limit", both},
	TotalLimit:        {"total-limit", both},
	NewcomerLimit:     {"newcomer-limit", both},
	TransactionTaken:  {"transaction-taken", six},
	NoRoom:            {"no-room", six},
	NotAReply:         {"not-a-reply", six},
	Unsolicited:       {boot.ReasonUnsolicited, both},
	TokenMissing:      {"token-missing", both},
	BadToken:          {"bad-token", both},
	ReplyLimit:        {"reply-limit", both},
	WrongLink:         {"wrong-link", six},
	BadAddress:        {"bad-address", four},
	UntrustedServer:   {"untrusted-server", both},
	TooLong:           {"too-long", both},
	ListenerDown:      {"listener-down", both},
	SendFailed:        {"send-failed", both},
}

func (d Drop) String() string { return drops[d].name }

// of tells whether a family has a reason.
func (d Drop) of(ipv6 bool) bool {
	if ipv6 {
		return drops[d].families&six != 0
	}
	return drops[d].families&four != 0
}

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
