package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Comparison is what each candidate made of one case, in words that are equal where it did the same.
type Comparison struct {
	Name string
	// What tells what was sent: by a client on the LAN, or (Reply) by the server to a plain request of that client.
	What    string
	Reply   bool
	Results map[string]string
}

// Differs tells whether a candidate did something else than ours.
func (c Comparison) Differs() bool {
	for _, result := range c.Results {
		if result != c.Results[Ours] {
			return true
		}
	}
	return false
}

// probe is one case: how it changes a client's DISCOVER, or the server's answer to one.
type probe struct {
	name, what string
	request    func(m []byte) []byte
	source     [4]byte // of the request's IP header
	badSum     bool
	reply      func(m []byte) []byte
	port       int  // that the server answers from; 0 is 67
	unasked    bool // the server answers what was not asked
}

func field(at int, values ...byte) func([]byte) []byte {
	return func(m []byte) []byte {
		copy(m[at:], values)
		return m
	}
}

func options(values ...byte) func([]byte) []byte {
	return func(m []byte) []byte {
		m = append(append(m[:240:240], 53, 1, 1), values...)
		m = append(m, 255)
		return append(m, make([]byte, max(0, 300-len(m)))...)
	}
}

func asIs(m []byte) []byte { return m }

func both(f, g func([]byte) []byte) func([]byte) []byte {
	return func(m []byte) []byte { return g(f(m)) }
}

// clientIP is a client that has its address already: the machines' side of the LAN.
var clientIP = []byte{192, 0, 2, 200}

// probes are the cases. Their names are those of the differential table in PEERS.md.
var probes = []probe{
	{name: "plain", what: "a DISCOVER", request: asIs},
	{name: "hops-4", what: "hops is 4", request: field(3, 4)},
	{name: "hops-10", what: "hops is 10", request: field(3, 10)},
	{name: "hops-16", what: "hops is 16", request: field(3, 16)},
	{name: "foreign-giaddr", what: "giaddr is another relay's", request: field(24, 203, 0, 113, 1)},
	{name: "client-option82", what: "option 82 without giaddr", request: options(82, 3, 1, 1, 'x')},
	{name: "no-cookie", what: "BOOTP without a cookie", request: func(m []byte) []byte {
		return append(m[:236:236], make([]byte, 64)...)
	}},
	{name: "no-end", what: "options without an END", request: func(m []byte) []byte {
		return append(m[:240:240], bytes.Repeat([]byte{53, 1, 1, 12, 1, 'a'}, 10)...)
	}},
	{
		name: "long", what: "options past byte 576",
		request: options(bytes.Repeat(append([]byte{224, 100}, make([]byte, 100)...), 6)...),
	},
	{name: "short", what: "244 bytes", request: func(m []byte) []byte { return append(m[:240:240], 53, 1, 1, 255) }},
	{name: "split-option", what: "an option in two parts", request: options(12, 1, 'a', 12, 1, 'b')},
	{name: "pads", what: "pads between options", request: options(0, 0, 12, 1, 'a', 0, 60, 1, 'b')},
	{name: "infiniband", what: "htype 32, hlen 0", request: field(1, 32, 0)},
	{name: "hlen-17", what: "hlen is 17", request: field(2, 17)},
	{name: "op-3", what: "op is 3", request: field(0, 3)},
	{name: "wrong-magic", what: "another magic", request: field(236, 1, 2, 3, 4)},
	{name: "bad-checksum", what: "a wrong UDP checksum", request: asIs, badSum: true},
	{
		name: "rebind", what: "a REQUEST from the client's own address",
		request: both(field(12, 192, 0, 2, 200), field(242, 3)), source: [4]byte{192, 0, 2, 200},
	},
	{name: "rogue-on-lan", what: "a BOOTREPLY from the LAN", request: field(0, 2)},

	{name: "offer", what: "an OFFER", request: asIs, reply: asIs},
	{name: "offer-broadcast", what: "an OFFER, broadcast flag", request: field(10, 0x80), reply: asIs},
	{name: "proxy-offer", what: "a proxyDHCP OFFER, yiaddr 0", request: asIs, reply: field(16, 0, 0, 0, 0)},
	{
		name: "ack-ciaddr", what: "an ACK to an INFORM, ciaddr only",
		request: both(field(12, 192, 0, 2, 200), field(242, 8)), reply: both(field(16, 0, 0, 0, 0), field(242, 5)),
	},
	{name: "nak", what: "a NAK", request: field(242, 3), reply: both(field(16, 0, 0, 0, 0), field(242, 6))},
	{name: "offer-infiniband", what: "an OFFER, htype 32, hlen 0", request: field(1, 32, 0), reply: asIs},
	{name: "other-port", what: "an OFFER from port 387", request: asIs, reply: asIs, port: 387},
	{name: "unasked", what: "an OFFER that nobody asked for", request: asIs, reply: field(33, 0xfe), unasked: true},
	{name: "no-giaddr-in-reply", what: "an OFFER with giaddr 0", request: asIs, reply: field(24, 0, 0, 0, 0)},
}

// patience is how long a candidate has to do something.
const patience = 200 * time.Millisecond

// Differential sends the same packets through every candidate.
func Differential(o Options) ([]Comparison, error) {
	found, missing := findPeers(o.Directory)
	for _, err := range missing {
		fmt.Fprintln(o.Log, err)
	}
	comparisons := make([]Comparison, len(probes))
	for i, p := range probes {
		comparisons[i] = Comparison{Name: p.name, What: p.what, Reply: p.reply != nil, Results: map[string]string{}}
	}
	for _, candidate := range available(Candidates, found) {
		results, err := probeAll(command(candidate, o, found))
		if err != nil {
			return nil, fmt.Errorf("failed to probe %s: %w", candidate, err)
		}
		for i, result := range results {
			comparisons[i].Results[candidate] = result
		}
	}
	return comparisons, nil
}

// bystander is both ends of a site.
type bystander struct {
	lan    int
	mac    net.HardwareAddr
	server *net.UDPConn
	other  *net.UDPConn // from another port
}

func probeAll(relay *exec.Cmd) (results []string, err error) {
	s, err := newSite()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }()
	running, err := process.Start(context.Background(), relay, process.Options{Enter: network.Into(s.relay)})
	if err != nil {
		return nil, err
	}
	defer running.Kill()
	b := &bystander{}
	if err := b.open(s); err != nil {
		return nil, err
	}
	defer b.close()
	if err := b.awake(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, running.Said())
	}
	for i, p := range probes {
		result, err := b.probe(p, byte(i+1))
		if err != nil {
			return nil, fmt.Errorf("failed at %s: %w\n%s", p.name, err, running.Said())
		}
		results = append(results, result)
	}
	return results, nil
}

func (b *bystander) open(s *site) error {
	err := network.Do(s.machines, func() error {
		link, err := net.InterfaceByName(lanLink)
		if err != nil {
			return err
		}
		b.mac = link.HardwareAddr
		b.lan, err = packetSocket(link.Index, unix.ETH_P_IP)
		if err != nil {
			return err
		}
		return timeout(b.lan, patience)
	})
	if err != nil {
		return err
	}
	return network.Do(s.server, func() (err error) {
		if b.server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(serverIP), Port: 67}); err != nil {
			return err
		}
		b.other, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(serverIP), Port: 387})
		return err
	})
}

func (b *bystander) close() {
	_ = unix.Close(b.lan)
	b.server.Close()
	b.other.Close()
}

// awake waits until the relay does its job.
func (b *bystander) awake() error {
	for range 25 {
		m := discover(b.mac)[dhcpAt:]
		if err := b.transmit(m, probe{}); err != nil {
			return err
		}
		if len(b.atServer()) > 0 {
			return nil
		}
	}
	return errors.New("failed to get a DISCOVER through within 5 s")
}

// probe runs one case and describes what came out.
func (b *bystander) probe(p probe, number byte) (string, error) {
	frame := discover(b.mac)
	m := bytes.Clone(frame[dhcpAt:])
	m[10] = 0 // no broadcast flag, unless the case sets it
	binary.BigEndian.PutUint32(m[4:], 0xd1ff0000|uint32(number))
	copy(m[28:], []byte{2, 0xd1, 0xff, 0, 0, number})
	m = p.request(m)
	if bytes.Equal(m[12:16], clientIP) {
		copy(m[28:], b.mac) // a client that has an address answers ARP for it
	}
	if err := b.transmit(m, p); err != nil {
		return "", err
	}
	requests := b.atServer()
	if p.reply == nil {
		return describeRequests(requests, m), nil
	}
	if len(requests) == 0 {
		return "the request is not relayed", nil
	}
	answer := bytes.Clone(requests[0].data)
	answer[0] = 2
	copy(answer[16:], []byte{192, 0, 2, number}) // nobody's so far, and in nobody's ARP table
	if len(answer) > 242 && answer[240] == 53 && answer[242] == 1 {
		answer[242] = 2
	}
	to := &net.UDPAddr{IP: net.IP(bytes.Clone(answer[24:28])), Port: 67}
	answer = p.reply(answer)
	from := b.server
	if p.port != 0 {
		from = b.other
	}
	if _, err := from.WriteToUDP(answer, to); err != nil {
		return "", err
	}
	return b.atClient(answer[28:34], []byte{192, 0, 2, number})
}

func (b *bystander) transmit(m []byte, p probe) error {
	frame := slices.Concat(discover(b.mac)[:dhcpAt], m)
	ip := frame[ethernetLen:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], p.source[:])
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^fold(ip[:20], 0))
	udp := ip[20:]
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	sum := ^fold(udp, uint32(fold(ip[12:20], 17))+uint32(len(udp)))
	if p.badSum {
		sum ^= 0x5555
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	_, err := unix.Write(b.lan, frame)
	return err
}

// fold is the ones' complement sum.
func fold(b []byte, sum uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

type seen struct {
	data []byte
	from *net.UDPAddr
}

// atServer collects what reaches the server.
func (b *bystander) atServer() (requests []seen) {
	buffer := make([]byte, 4096)
	_ = b.server.SetReadDeadline(time.Now().Add(patience))
	for {
		n, from, err := b.server.ReadFromUDP(buffer)
		if err != nil {
			return requests
		}
		requests = append(requests, seen{bytes.Clone(buffer[:n]), from})
	}
}

// describeRequests says what became of a request.
func describeRequests(requests []seen, sent []byte) string {
	if len(requests) == 0 {
		return "dropped"
	}
	got := requests[0].data
	var words []string
	if len(requests) > 1 {
		words = append(words, fmt.Sprintf("%d copies", len(requests)))
	}
	words = append(words, fmt.Sprintf("hops %d", got[3]))
	switch giaddr := net.IP(got[24:28]); {
	case bytes.Equal(giaddr, sent[24:28]):
		words = append(words, "giaddr kept")
	case giaddr.String() == relayLAN || giaddr.String() == relayIP:
		words = append(words, "giaddr set")
	default:
		words = append(words, "giaddr "+giaddr.String())
	}
	if changes := changedBytes(sent, got); changes != "" {
		words = append(words, changes)
	}
	return strings.Join(words, ", ")
}

// changedBytes says what else of a request changed.
func changedBytes(sent, got []byte) string {
	n := min(len(sent), len(got))
	for i := range n {
		if sent[i] != got[i] && i != 3 && (i < 24 || i >= 28) {
			if i >= 240 {
				if at := bytes.IndexByte(got[240:], 82); at >= 0 && bytes.Index(sent[240:], []byte{82}) != at {
					return "option 82 added"
				}
			}
			return fmt.Sprintf("byte %d changed", i)
		}
	}
	switch {
	case len(got) < len(sent):
		return fmt.Sprintf("cut to %d bytes", len(got))
	case len(got) > len(sent) && len(got) == 300:
		return "padded to 300"
	case len(got) > len(sent):
		return fmt.Sprintf("lengthened to %d", len(got))
	}
	return ""
}

// atClient describes what reaches the LAN for a client.
func (b *bystander) atClient(chaddr, yiaddr []byte) (string, error) {
	buffer := make([]byte, 4096)
	var heard []string
	for {
		n, err := unix.Read(b.lan, buffer)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue // the runtime's own signals
		}
		if err != nil {
			return "", err
		}
		f := buffer[:n]
		if n < dhcpAt || f[23] != 17 || binary.BigEndian.Uint16(f[36:]) != 68 {
			continue
		}
		mac := net.HardwareAddr(f[:6]).String()
		switch {
		case bytes.Equal(f[:6], chaddr):
			mac = "chaddr"
		case mac == "ff:ff:ff:ff:ff:ff":
			mac = "broadcast"
		}
		ip := net.IP(f[30:34]).String()
		switch {
		case bytes.Equal(f[30:34], yiaddr):
			ip = "yiaddr"
		case bytes.Equal(f[30:34], clientIP):
			ip = "ciaddr"
		}
		heard = append(heard, fmt.Sprintf("to %s, %s", mac, ip))
	}
	if len(heard) == 0 {
		return "dropped", nil
	}
	slices.Sort(heard)
	return strings.Join(slices.Compact(heard), "; "), nil
}
