package observe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"
)

// Kind is what an event is about.
type Kind uint8

// The kinds of events.
const (
	// DHCP is a message, of DHCPv4 or DHCPv6; Name is its type in capitals.
	DHCP Kind = iota
	// TFTP is a file that the machine received and acknowledged to the end; Name is the file.
	TFTP
	// HTTP is a document that the machine received and acknowledged to the end; Name is the request's path.
	HTTP
	// Trouble is an answer that says no, or one that ends before all of it came; Name is the file or path.
	Trouble
	// Syslog is a line that the machine sent.
	Syslog
	// Stream is a connection to Tink Server's port that has ended.
	Stream
)

func (k Kind) String() string {
	return [...]string{"DHCP", "TFTP", "HTTP", "trouble", "syslog", "stream"}[k]
}

// Event is something that a machine did or got.
type Event struct {
	At      time.Time
	Machine string // its Ethernet address
	Kind    Kind
	Name    string
	Bytes   int64
	Took    time.Duration
	Server  netip.AddrPort // TFTP, HTTP, syslog and streams
	Detail  string
	// Of a machine's DHCP message: options 60 and 77, of DHCPv6 16 and 15.
	VendorClass, UserClass string
	IPv6                   bool // it is DHCPv6
}

// Tracker turns a LAN's packets into events. It holds little: a file counts as received when the machine has
// acknowledged its last byte.
type Tracker struct {
	emit    func(Event)
	tftp    map[flow]*tftpTransfer
	conns   map[flow]*exchange
	streams map[flow]time.Time // when it began

	mu      sync.Mutex
	reached map[[6]byte]reach // by machine
}

// flow is a machine's end of a conversation and the port it began with.
type flow struct {
	machine [6]byte
	port    uint16
	server  netip.AddrPort
}

const maxFlows = 4096

// Ports of the service IP that have no protocol which this package reads further.
const (
	syslogPort = 514
	agentPort  = 42113
)

// NewTracker makes a tracker that calls emit, from within Packet.
func NewTracker(emit func(Event)) *Tracker {
	return &Tracker{
		emit: emit, tftp: map[flow]*tftpTransfer{}, conns: map[flow]*exchange{}, streams: map[flow]time.Time{},
		reached: map[[6]byte]reach{},
	}
}

// Packet takes a packet.
func (t *Tracker) Packet(at time.Time, p Packet) {
	if p.Proto == unix.IPPROTO_TCP {
		if p.From.Port() == agentPort || p.To.Port() == agentPort {
			t.stream(at, p)
			return
		}
		t.tcp(at, p)
		return
	}
	switch {
	case p.From.Port() == 67 || p.To.Port() == 67:
		t.dhcp(at, p)
	case p.isDHCP():
		t.dhcp6(at, p)
	case p.To.Port() == 69:
		t.fromTFTPClient(at, p)
	case p.From.Port() == 69:
		t.fromTFTPServer(at, p)
	case p.To.Port() == syslogPort:
		t.emit(Event{At: at, Machine: p.Src.String(), Kind: Syslog, Server: p.To, Detail: string(p.Payload)})
	}
}

func (t *Tracker) dhcp(at time.Time, p Packet) {
	message, err := dhcpv4.FromBytes(p.Payload)
	if err != nil || len(message.ClientHWAddr) != 6 {
		return
	}
	event := Event{At: at, Machine: message.ClientHWAddr.String(), Kind: DHCP, Name: message.MessageType().String()}
	if message.OpCode == dhcpv4.OpcodeBootRequest {
		event.VendorClass, event.UserClass = message.ClassIdentifier(), userClass(message)
		event.Detail = clientOf(event)
		if !strings.HasPrefix(message.ClassIdentifier(), "PXEClient") {
			t.booted(at, p)
		}
		t.emit(event)
		return
	}
	way := "to chaddr"
	if bytes.Equal(p.Dst, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) {
		way = "broadcast"
	} else if !bytes.Equal(p.Dst, message.ClientHWAddr) {
		way = "to " + p.Dst.String()
	}
	event.Detail = fmt.Sprintf("%s from %s, %s", message.YourIPAddr, message.ServerIdentifier(), way)
	if file := bootFile(message); file != "" {
		event.Detail += ", boot file " + file
	}
	t.emit(event)
	if message.MessageType() == dhcpv4.MessageTypeNak {
		t.emit(Event{At: at, Machine: event.Machine, Kind: Trouble, Detail: "DHCP NAK: " + message.Message()})
	}
}

// booted takes note that a machine's operating system asks for an address. iPXE starts a kernel as soon as it has the
// last byte of what it loads, and never acknowledges that byte. A system that runs has proven that it came.
func (t *Tracker) booted(at time.Time, p Packet) {
	for key, e := range t.conns {
		if key.machine == [6]byte(p.Src) && e.endSeen && !e.done && int32(e.sent-e.end) >= 0 {
			e.done = true
			t.finish(e.sentAt, key, e, fmt.Sprintf("the system that it holds spoke %.1f s later", at.Sub(e.sentAt).Seconds()))
		}
	}
}

// clientOf says what a DHCP client says of itself.
func clientOf(e Event) string {
	who := e.VendorClass
	if who == "" {
		who = "no vendor class"
	}
	if e.UserClass != "" {
		who += fmt.Sprintf(", user class %q", e.UserClass)
	}
	return who
}

// userClass is not message.UserClass: that takes the option for RFC 3004's list, which most firmware does not send.
func userClass(m *dhcpv4.DHCPv4) string {
	class := m.Options.Get(dhcpv4.OptionUserClassInformation)
	return string(bytes.TrimFunc(class, func(r rune) bool { return r < ' ' }))
}

func bootFile(m *dhcpv4.DHCPv4) string {
	if name := m.BootFileNameOption(); name != "" {
		return name
	}
	return m.BootFileName
}

// tftpTransfer is a file on its way.
type tftpTransfer struct {
	file    string
	start   time.Time
	size    int   // of a block
	total   int64 // of the file as the server announced it; 0: not known
	last    uint16
	bytes   int64
	whole   bool // the last block was sent
	refused bool
}

func (t *Tracker) fromTFTPClient(at time.Time, p Packet) {
	key := flow{machine: [6]byte(p.Src), port: p.From.Port(), server: p.To}
	if len(p.Payload) < 4 {
		return
	}
	switch p.Payload[1] {
	case 1:
		name, _, ok := bytes.Cut(p.Payload[2:], []byte{0})
		if old := t.tftp[key]; !ok || old != nil && old.file == string(name) && old.bytes == 0 {
			return // none, or sent again
		}
		if len(t.tftp) >= maxFlows {
			clear(t.tftp)
		}
		t.tftp[key] = &tftpTransfer{file: string(name), start: at, size: 512}
	case 4:
		transfer := t.tftp[key]
		if transfer == nil || !transfer.whole || binary.BigEndian.Uint16(p.Payload[2:]) != transfer.last {
			return
		}
		delete(t.tftp, key)
		t.emit(Event{
			At: at, Machine: p.Src.String(), Kind: TFTP, Name: transfer.file, Bytes: transfer.bytes,
			Took: at.Sub(transfer.start), Server: p.To,
		})
	}
}

func (t *Tracker) fromTFTPServer(at time.Time, p Packet) {
	transfer := t.tftp[flow{machine: [6]byte(p.Dst), port: p.To.Port(), server: p.From}]
	if transfer == nil || len(p.Payload) < 4 {
		return
	}
	number := binary.BigEndian.Uint16(p.Payload[2:])
	switch p.Payload[1] {
	case 3:
		if number != transfer.last+1 {
			return
		}
		transfer.last = number
		transfer.bytes += int64(len(p.Payload) - 4)
		transfer.whole = len(p.Payload)-4 < transfer.size
		t.came([6]byte(p.Dst), reach{kind: TFTP, name: transfer.file, bytes: transfer.bytes, total: transfer.total})
	case 5:
		if transfer.refused {
			return
		}
		transfer.refused = true
		text, _, _ := bytes.Cut(p.Payload[4:], []byte{0})
		t.emit(Event{
			At: at, Machine: p.Dst.String(), Kind: Trouble, Name: transfer.file, Took: at.Sub(transfer.start), Server: p.From,
			Detail: fmt.Sprintf("TFTP error %d for %s: %s", number, transfer.file, text),
		})
	case 6:
		words := strings.Split(string(p.Payload[2:]), "\x00")
		for i := 0; i+1 < len(words); i += 2 {
			if size, err := strconv.Atoi(words[i+1]); err == nil && strings.EqualFold(words[i], "blksize") && size > 0 {
				transfer.size = size
			} else if err == nil && strings.EqualFold(words[i], "tsize") && size > 0 {
				transfer.total = int64(size)
			}
		}
	}
}

// exchange is an HTTP request and its answer on a connection.
type exchange struct {
	path    string
	start   time.Time
	first   uint32 // sequence number with which the answer begins
	header  []byte // of the answer, until it is whole
	status  int
	length  int64  // of the body, -1: not said
	body    uint32 // sequence number with which the body begins
	end     uint32 // sequence number after the answer
	endSeen bool   // end is known
	sent    uint32 // sequence number after the last byte that the server sent
	sentAt  time.Time
	done    bool
}

const maxHeader = 16 << 10

func (t *Tracker) tcp(at time.Time, p Packet) {
	up := flow{machine: [6]byte(p.Src), port: p.From.Port(), server: p.To}
	down := flow{machine: [6]byte(p.Dst), port: p.To.Port(), server: p.From}
	if path, ok := requestPath(p.Payload); ok {
		if old := t.conns[up]; old != nil && old.first == p.Ack {
			return // sent again
		}
		if len(t.conns) >= maxFlows {
			clear(t.conns)
		}
		t.conns[up] = &exchange{path: path, start: at, first: p.Ack, length: -1, sent: p.Ack}
		return
	}
	if e := t.conns[up]; e != nil {
		if p.Flags&flagACK != 0 && e.endSeen && !e.done && int32(p.Ack-e.end) >= 0 {
			e.done = true
			t.finish(at, up, e, "")
		}
		return
	}
	if e := t.conns[down]; e != nil {
		e.answer(p)
		t.torn(at, down, e, p)
		if next := p.Seq + uint32(len(p.Payload)); len(p.Payload) > 0 && int32(next-e.sent) > 0 {
			e.sent, e.sentAt = next, at
			t.came(down.machine, e.reach())
		}
	}
}

func (t *Tracker) finish(at time.Time, key flow, e *exchange, detail string) {
	event := Event{
		At: at, Machine: net.HardwareAddr(key.machine[:]).String(), Kind: HTTP, Name: e.path,
		Bytes: int64(e.end - e.body), Took: at.Sub(e.start), Server: key.server, Detail: detail,
	}
	if e.status/100 != 2 {
		event.Kind = Trouble
		event.Detail = fmt.Sprintf("HTTP status %d for %s", e.status, e.path)
	}
	t.emit(event)
}

// reach is how far the answer has come, its header not counted once that is whole.
func (e *exchange) reach() reach {
	if e.status == 0 {
		return reach{kind: HTTP, name: e.path, bytes: int64(e.sent - e.first)}
	}
	return reach{kind: HTTP, name: e.path, bytes: int64(int32(e.sent - e.body)), total: max(0, e.length)}
}

// answer takes a segment from the server.
func (e *exchange) answer(p Packet) {
	if e.endSeen {
		return
	}
	next := p.Seq + uint32(len(p.Payload))
	if e.status == 0 {
		if p.Seq != e.first+uint32(len(e.header)) || len(e.header)+len(p.Payload) > maxHeader+64<<10 {
			return // not in order: what is missing comes again
		}
		e.header = append(e.header, p.Payload...)
		if !e.parse() {
			return
		}
	}
	switch {
	case e.length >= 0:
		e.end, e.endSeen = e.body+uint32(e.length), true
	case bytes.HasSuffix(p.Payload, []byte("\r\n0\r\n\r\n")), p.Flags&flagFIN != 0:
		e.end, e.endSeen = next, true
	}
}

// parse reads the answer's header once it is whole.
func (e *exchange) parse() bool {
	head, _, ok := bytes.Cut(e.header, []byte("\r\n\r\n"))
	if !ok {
		return false
	}
	lines := strings.Split(string(head), "\r\n")
	fields := strings.Fields(lines[0])
	if len(fields) < 2 || !strings.HasPrefix(fields[0], "HTTP/1.") {
		return false
	}
	status, err := strconv.Atoi(fields[1])
	if err != nil || status < 200 {
		return false
	}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "Content-Length") {
			if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil && n >= 0 {
				e.length = n
			}
		}
	}
	e.status = status
	e.body = e.first + uint32(len(head)+len("\r\n\r\n"))
	e.header = nil
	return true
}

// requestPath finds the path in a segment that begins with a request.
func requestPath(b []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(b, []byte("GET "))
	if !ok {
		return "", false
	}
	line, _, ok := bytes.Cut(rest, []byte("\r\n"))
	path, version, found := bytes.Cut(line, []byte(" "))
	if !ok || !found || !bytes.HasPrefix(version, []byte("HTTP/1.")) {
		return "", false
	}
	return string(path), true
}
