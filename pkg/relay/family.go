package relay

import (
	"net"
	"net/netip"

	"golang.org/x/net/bpf"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/listener"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// family is what DHCPv4 and DHCPv6 do differently; everything else is one relay. A worker that is passed is that of the
// calling goroutine, and has the memory for what is made.
type family interface {
	// traits are what is fixed. They are never changed.
	traits() *traits
	// control prepares the upstream socket.
	control(fd int) error
	// describe looks at the interface of a listener.
	describe(config *Config, l *Listener, at *net.Interface) link
	// view finds the message in a listener's frame, and puts it and its sender into a; drop says why there is none.
	view(v *vlan, i int, b []byte, sum frame.Checksum, a *arrival, now int64) Drop
	// request decides about the message a.b[a.at:], and edits it or wraps it in place for the servers.
	request(w *worker, a *arrival, targets *server.Targets, now int64) ([]byte, Drop)
	// answerExpected reports whether every server answers a request as the servers get it, and by way of this relay.
	answerExpected(w *worker, b []byte, targets *server.Targets) bool
	// reply decides about a server's message m, which begins at headroom in its slot, and puts what to send into out.
	reply(w *worker, m []byte, from netip.Addr, targets *server.Targets, now int64, out *back) Drop
	// put writes the headers in front of a reply for a client on a listener.
	put(r *Relay, whole []byte, open *listener.Opened[link], out *back, targets *server.Targets)

	// spoken finds the speech in a message from a machine's side, replied that in a server's. ok is false where it is no
	// message.
	spoken(m []byte, a *arrival) (s speech, ok bool)
	replied(m []byte, o *origin) (s speech, ok bool)
	// describeEvent puts a message's options about its machine into an event.
	describeEvent(e *boot.Event, m []byte) texts
	// blank takes the code out of a token: a reader of a trace must not be able to answer.
	blank(b []byte)
}

// traits are a family's numbers and words.
type traits struct {
	task, title, prefix string // of the task, of metrics' help, and of metrics
	serverPort          uint16
	domain              int // AF_INET or AF_INET6
	etherType           uint16
	filter              func(port uint16) ([]bpf.RawInstruction, error)
	unicastFilter       func() ([]bpf.RawInstruction, error)
	groups              []frame.MAC
	// listenerHeadroom is the number of bytes left free in front of a frame, headroom of a datagram.
	listenerHeadroom, headroom int
	// headers is the length of the headers of a frame, ipAndUDP that of those without Ethernet's.
	headers, ipAndUDP int
	replyByte         byte // begins a server's message
	noSource          Drop // the relay has no address to which servers answer
	kinds             []string
}

// peer is an address and port, without the pointer that a netip.Addr holds: the pending table is large, and the garbage
// collector need not look into it. IPv4 addresses are as in IPv6 (::ffff:0:0/96).
type peer struct {
	ip   [16]byte
	port uint16
}

func peerOf(a netip.AddrPort) peer { return peer{ip: a.Addr().As16(), port: a.Port()} }

func (e peer) addr() netip.Addr { return netip.AddrFrom16(e.ip).Unmap() }

func (e peer) addrPort() netip.AddrPort { return netip.AddrPortFrom(e.addr(), e.port) }

func (e peer) String() string { return e.addrPort().String() }

// key identifies a transaction by values that a client chooses and a server must repeat.
type key struct {
	// sender is the chaddr of DHCPv4, and the sender of the message to this relay of DHCPv6.
	sender [16]byte
	// id is the length of chaddr of DHCPv4, and the hash of the client identifier of DHCPv6, 0 where there is none.
	id  uint64
	xid uint32
}

// unicast takes the place of a listener's index where a packet was sent to an address of this host, and unicastLabel
// that of its name.
const (
	unicast      = -1
	unicastLabel = "unicast"
)

// origin is where a request came from, and so where its replies go.
type origin struct {
	// listener is the index of the listener that received it, or unicast.
	listener int16
	// unanswered tells that no server answers such a request.
	unanswered bool
	// local is the address of this host that a unicast was sent to, and ifindex the link that it came by (DHCPv6).
	ifindex int32
	local   [16]byte
	// client is the hash that stands for the client, zero if it is not known here.
	client uint64
	origin4
	origin6
}

// arrival is how a message reached the relay.
type arrival struct {
	// listener is the index of the listener, or unicast.
	listener int16
	// source is the sender by its IP header, and mac by its frame.
	source peer
	mac    frame.MAC
	// local and ifindex are of this host, for a unicast.
	local   [16]byte
	ifindex int32
	// link is the listener's interface, nil for a unicast.
	link *link
	// trusted tells that the listener may bring option 82 of its own.
	trusted bool
	// b[at:] is the message.
	b  []byte
	at int

	// The method request sets these.
	kind    int     // the type of the client's message, by its place among the kinds
	giaddr  [4]byte // of a DHCPv4 message, as it arrived
	client  uint64  // the client's tag
	relayed bool    // another relay agent sent it
}

// back is a server's message on its way to a client or a relay agent: slot[start:end] is to be sent.
type back struct {
	origin
	start, end int
	to         netip.AddrPort
	kind       int
	message    []byte // for log and events
	waited     int64  // nanoseconds since its request, 0 unknown
	found      bool   // the origin is that of its request
}

// link describes a listener's interface.
type link struct {
	// address is the interface's own, or the link address that servers are told; zero where there is none.
	address [16]byte
	// local is the address that replies come from, of DHCPv6.
	local [16]byte
	// options are the option 82 that requests from here get.
	options []byte
}
