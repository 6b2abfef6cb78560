package boot

// Reasons that the journal knows, of those that programs give: an event's [Reason] is one of these, or another word
// that people read. Most are labels of metrics as well.
const (
	// dhcp-relay dropped a message.
	ReasonHeardByListener = "heard-by-listener" // another socket of the relay had it as well
	ReasonOtherHost       = "other-host"        // it was for another station
	ReasonReplyFromClient = "reply-from-client" // a server on the machine's side of the relay sent it
	ReasonUnsolicited     = "unsolicited"       // no request of the machine waits for it

	// stack-proxy refused a connection.
	ReasonHandshake  = "tls-handshake" // the TLS handshake failed; the event's message says why
	ReasonTLSOnPlain = "tls-on-plain"  // it begins with TLS, where the route has none

	// A timer of stack-proxy ended an exchange.
	ReasonOurTimeout    = "our-timeout"    // the client took nothing of an answer for long
	ReasonClientStalled = "client_stalled" // the client sent nothing of its request's body for long
	ReasonTimeout       = "timeout"        // the other side did not answer, or both sides became silent
	ReasonIdle          = "idle"           // nothing went over a connection for long

	// The machine ended an exchange.
	ReasonClientGone  = "client_gone"  // it closed or reset the connection
	ReasonClientBody  = "client_body"  // its request's body is malformed or short
	ReasonClientError = "client_error" // it sent an ERROR by TFTP
	ReasonReplaced    = "replaced"     // it began another transfer from the same port

	// stack-proxy ended an exchange without a timer.
	ReasonDrained = "drained" // it is about to end itself
	ReasonEvicted = "evicted" // others needed the room
)
