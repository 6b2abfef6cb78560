package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// sending6 is what a client or a relay on the LAN sends in a case of DHCPv6.
type sending6 struct {
	source [16]byte
	port   uint16
	badSum bool
	data   []byte
}

// answer6 is the server's RELAY-REPL before it is encoded.
type answer6 struct {
	kind, hops  byte
	link, peer  [16]byte
	interfaceID []byte // nil: none
	message     []byte // nil: none
	port        int    // that the server answers from; 0 is 547
	bare        bool   // the message alone, in no RELAY-REPL
}

func (a answer6) encode() []byte {
	if a.bare {
		return a.message
	}
	m := slices.Concat([]byte{a.kind, a.hops}, a.link[:], a.peer[:])
	if a.interfaceID != nil {
		m = option6(m, optInterfaceID, a.interfaceID)
	}
	if a.message != nil {
		m = option6(m, optRelayMessage, a.message)
	}
	return m
}

// bystander6 is both ends of a site.
type bystander6 struct {
	lan    int
	mac    net.HardwareAddr
	server *net.UDPConn
	other  *net.UDPConn // from another port
}

// Differential6 sends the same DHCPv6 messages through every candidate that relays DHCPv6.
func Differential6(o Options) ([]Comparison, error) {
	found, missing := findPeers(o.Directory)
	for _, err := range missing {
		fmt.Fprintln(o.Log, err)
	}
	comparisons := make([]Comparison, len(probes6))
	for i, p := range probes6 {
		comparisons[i] = Comparison{Name: p.name, What: p.what, Reply: p.reply != nil, Results: map[string]string{}}
	}
	var (
		all    sync.WaitGroup // they mostly wait, each on a site of its own
		mu     sync.Mutex
		faults []error
	)
	for _, candidate := range available(Probed6, found) {
		for _, bare := range []bool{false, true} {
			all.Go(func() {
				results, err := probeAll6(command6(candidate, o, found), bare)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					faults = append(faults, fmt.Errorf("failed to probe %s: %w", candidate, err))
				}
				for i, result := range results {
					if result != "" {
						comparisons[i].Results[candidate] = result
					}
				}
			})
		}
	}
	all.Wait()
	return comparisons, errors.Join(faults...)
}

// probeAll6 runs the cases with a link address on the LAN, or the others, where the relay has none (bare).
func probeAll6(relay *exec.Cmd, bare bool) (results []string, err error) {
	s, err := newSite()
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }()
	if bare {
		if err := lower(s.relay, lanLink, relayLAN6+"/64"); err != nil {
			return nil, err
		}
	}
	running, err := process.Start(context.Background(), relay, process.Options{Enter: network.Into(s.relay)})
	if err != nil {
		return nil, err
	}
	defer running.Kill()
	b := &bystander6{}
	if err := b.open(s); err != nil {
		return nil, err
	}
	defer b.close()
	awake := b.awake()
	if awake != nil && !bare {
		return nil, fmt.Errorf("%w\n%s", awake, running.Said())
	}
	for i, p := range probes6 {
		if p.bare != bare {
			results = append(results, "")
			continue
		}
		result, err := b.probe(p, i)
		if err != nil {
			return nil, fmt.Errorf("failed at %s: %w\n%s", p.name, err, running.Said())
		}
		results = append(results, result)
	}
	return results, nil
}

func (b *bystander6) open(s *site) error {
	err := network.Do(s.machines, func() error {
		link, err := net.InterfaceByName(lanLink)
		if err != nil {
			return err
		}
		b.mac = link.HardwareAddr
		b.lan, err = packetSocket(link.Index, unix.ETH_P_IPV6)
		if err != nil {
			return err
		}
		return timeout(b.lan, patience)
	})
	if err != nil {
		return err
	}
	return network.Do(s.server, func() (err error) {
		if b.server, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP(serverIP6), Port: serverPort}); err != nil {
			return err
		}
		b.other, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP(serverIP6), Port: 10547})
		return err
	})
}

func (b *bystander6) close() {
	_ = unix.Close(b.lan)
	b.server.Close()
	b.other.Close()
}

// awake waits until the relay does its job.
func (b *bystander6) awake() error {
	for range 25 {
		source := linkLocal(machinesLinkLocal - 1)
		if err := b.transmit(sending6{source: source, port: clientPort, data: solicit(b.mac)}); err != nil {
			return err
		}
		if len(b.atServer(source)) > 0 {
			return nil
		}
	}
	return errors.New("failed to get a SOLICIT through within 5 s")
}

// probe runs one case and describes what came out.
func (b *bystander6) probe(p probe6, number int) (string, error) {
	m := solicit(slices.Concat([]byte{2, 0xd6, 0xff, 0, 0}, []byte{byte(number)}))
	m[1], m[2], m[3] = 0xd6, 0xff, byte(number)
	sent := sending6{source: linkLocal(number), port: clientPort, data: m}
	if p.request != nil {
		p.request(&sent)
	}
	if err := b.transmit(sent); err != nil {
		return "", err
	}
	requests := b.atServer(sent.source)
	if p.reply == nil {
		return describeRequests6(requests, sent), nil
	}
	if len(requests) == 0 {
		return "the request is not relayed", nil
	}
	got := requests[0].data
	a := answer6{kind: msgRelayRepl, hops: got[1], link: [16]byte(got[2:18]), peer: [16]byte(got[18:34])}
	inner := message6(sent.data)
	a.interfaceID, a.message = find6(got, optInterfaceID), advertise(inner)
	if sent.data[0] == msgRelayForw { // for a relay on the LAN
		outer := answer6{kind: msgRelayRepl, message: a.message}
		outer.link, outer.peer = [16]byte(sent.data[2:18]), [16]byte(sent.data[18:34])
		a.message = outer.encode()
	}
	p.reply(&a)
	from := b.server
	if a.port != 0 {
		from = b.other
	}
	if _, err := from.WriteToUDP(a.encode(), requests[0].from); err != nil {
		return "", err
	}
	return b.atClient(sent.source, a.message)
}

// message6 is the client's own message in what was sent.
func message6(m []byte) []byte {
	for len(m) > relayHead && m[0] == msgRelayForw {
		m = find6(m, optRelayMessage)
	}
	return m
}

// advertise is the server's answer to a client's message: with the client's identifier and a server's.
func advertise(request []byte) []byte {
	m := slices.Concat([]byte{msgAdvertise}, request[1:4])
	if id := find6(slices.Concat(make([]byte, relayHead), request[4:]), 1); id != nil {
		m = option6(m, 1, id)
	}
	return option6(m, 2, []byte{0, 3, 0, 1, 2, 0, 0, 0, 0, 1})
}

// find6 finds an option of a relay's message; nil where it has none.
func find6(m []byte, code uint16) []byte {
	for at := relayHead; at+4 <= len(m); {
		length := int(binary.BigEndian.Uint16(m[at+2:]))
		if at+4+length > len(m) {
			return nil
		}
		if binary.BigEndian.Uint16(m[at:]) == code {
			return m[at+4 : at+4+length]
		}
		at += 4 + length
	}
	return nil
}

// codes6 lists the options of a relay's message.
func codes6(m []byte) (codes []int) {
	for at := relayHead; at+4 <= len(m); at += 4 + int(binary.BigEndian.Uint16(m[at+2:])) {
		codes = append(codes, int(binary.BigEndian.Uint16(m[at:])))
	}
	slices.Sort(codes)
	return codes
}

func (b *bystander6) transmit(s sending6) error {
	frame := frame6From(b.mac, s.source, s.port, s.data)
	if s.badSum {
		frame[dhcp6At-1] ^= 0x55
	}
	_, err := unix.Write(b.lan, frame)
	return err
}

// atServer collects what reaches the server from a peer. dnsmasq asks for a peer's Ethernet address first, which takes
// its time where there is none, so that what another one sent may come late.
func (b *bystander6) atServer(peer [16]byte) (requests []seen) {
	buffer := make([]byte, 1<<16)
	_ = b.server.SetReadDeadline(time.Now().Add(patience))
	for {
		n, from, err := b.server.ReadFromUDP(buffer)
		if err != nil {
			return requests
		}
		if n < relayHead || [16]byte(buffer[18:34]) == peer {
			requests = append(requests, seen{bytes.Clone(buffer[:n]), from})
		}
	}
}

// describeRequests6 says what became of a request.
func describeRequests6(requests []seen, sent sending6) string {
	if len(requests) == 0 {
		return "dropped"
	}
	got := requests[0].data
	if len(got) < relayHead || got[0] != msgRelayForw {
		return fmt.Sprintf("%d bytes that are no RELAY-FORW", len(got))
	}
	var words []string
	if len(requests) > 1 {
		words = append(words, fmt.Sprintf("%d copies", len(requests)))
	}
	words = append(words, fmt.Sprintf("hop-count %d", got[1]))
	switch link := netip.AddrFrom16([16]byte(got[2:18])); link.String() {
	case relayLAN6:
		words = append(words, "link-address its own")
	case relayIP6:
		words = append(words, "link-address the pod's")
	case "::":
		words = append(words, "link-address zero")
	default:
		if link.IsLinkLocalUnicast() {
			words = append(words, "link-address link-local")
		} else {
			words = append(words, "link-address "+link.String())
		}
	}
	var codes []string
	for _, code := range codes6(got) {
		if code != optRelayMessage {
			codes = append(codes, fmt.Sprint(code))
		}
	}
	if len(codes) > 0 {
		words = append(words, "options "+strings.Join(codes, " "))
	}
	if !bytes.Equal(find6(got, optRelayMessage), sent.data) {
		words = append(words, "message changed")
	}
	return strings.Join(words, ", ")
}

// atClient describes what reaches the LAN for a client or a relay on it.
func (b *bystander6) atClient(peer [16]byte, message []byte) (string, error) {
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
		if n < dhcp6At || f[ethernetLen+6] != unix.IPPROTO_UDP {
			continue
		}
		words := []string{"to " + netip.AddrFrom16([16]byte(f[ethernetLen+24:])).String()}
		if [16]byte(f[ethernetLen+24:]) == peer {
			words[0] = "to the peer"
		}
		words = append(words, fmt.Sprintf("port %d", binary.BigEndian.Uint16(f[dhcp6At-6:])))
		if !bytes.Equal(f[:6], b.mac) {
			words = append(words, "another Ethernet address")
		}
		if !bytes.Equal(f[dhcp6At:], message) {
			words = append(words, "message changed")
		}
		heard = append(heard, strings.Join(words, ", "))
	}
	if len(heard) == 0 {
		return "dropped", nil
	}
	slices.Sort(heard)
	return strings.Join(slices.Compact(heard), "; "), nil
}
