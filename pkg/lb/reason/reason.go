// Package reason says why an address is not announced.
package reason

import "fmt"

// Reason is the reason of a condition and of an Event, and a label of the metrics.
type Reason uint8

// The reasons; docs/reference/stack-lb.md has them with what to do.
const (
	Announced Reason = iota // it is

	// What the Service asks for cannot be had.
	NoAddress
	BadAddress
	AddressesDisagree
	InterfacesDisagree
	FamilyMissing
	AddressNotAllowed
	AddressTaken
	PortTaken
	BadMode
	ProtocolUnsupported
	BadProxyProtocol
	BadSourceRange
	SourceHidden

	// This node cannot have the address.
	NoLink
	LinkMissing
	LinkDown
	NodeAddress
	FirstAddress
	NodeExcluded
	NoEndpoint
	PortInUse
	Starting

	// The address was tried.
	AddressInUse
	KernelRefused
	LeaseLost
	APIAway
	Unheard

	// Another node has it, or none.
	Standby
	NoNode
	Stopping

	// What is sent to the address is forwarded, or not.
	Forwarding
)

var names = [...]string{
	Announced: "Announced", NoAddress: "NoAddress", BadAddress: "BadAddress", AddressesDisagree: "AddressesDisagree",
	InterfacesDisagree: "InterfacesDisagree", FamilyMissing: "FamilyMissing", AddressNotAllowed: "AddressNotAllowed",
	AddressTaken: "AddressTaken", PortTaken: "PortTaken", NoLink: "NoLink", LinkMissing: "LinkMissing",
	LinkDown: "LinkDown", NodeAddress: "NodeAddress", FirstAddress: "FirstAddress", NodeExcluded: "NodeExcluded",
	NoEndpoint: "NoEndpoint", Starting: "Starting", AddressInUse: "AddressInUse", KernelRefused: "KernelRefused",
	LeaseLost: "LeaseLost", APIAway: "APIAway", Standby: "Standby", NoNode: "NoNode", Stopping: "Stopping",
	BadMode: "BadMode", ProtocolUnsupported: "ProtocolUnsupported", BadProxyProtocol: "BadProxyProtocol",
	BadSourceRange: "BadSourceRange", SourceHidden: "SourceHidden", PortInUse: "PortInUse", Forwarding: "Forwarding",
	Unheard: "Unheard",
}

// String is the reason as Kubernetes writes reasons.
func (r Reason) String() string { return names[r] }

// All are the reasons, for the tests of documents and metrics.
func All() []Reason {
	all := make([]Reason, len(names))
	for i := range all {
		all[i] = Reason(i)
	}
	return all
}

// Error is a reason with what to do about it.
type Error struct {
	Reason Reason
	Text   string
}

// Error implements error.
func (e *Error) Error() string { return e.Text }

// Errorf makes an error of a reason.
func Errorf(r Reason, format string, args ...any) *Error {
	return &Error{Reason: r, Text: fmt.Sprintf(format, args...)}
}
