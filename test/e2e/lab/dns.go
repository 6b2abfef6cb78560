package lab

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// recordTTL is short, so that tests of a changed backend need not wait.
const recordTTL = 2 * time.Second

// zone is what the lab's DNS serves: addresses by name, without the last dot. It is a file that the server reads
// at each query, so that a change counts from the next query on, whoever made it.
type zone struct {
	Names map[string][]netip.Addr
	Ports map[string]map[string]uint16 // SRV: of a name, by "_port._protocol"
	TTL   time.Duration
}

func (l *Lab) zonePath() string   { return filepath.Join(l.dir, "zone.json") }
func (l *Lab) resolvPath() string { return filepath.Join(l.dir, "resolv.conf") }

// servicePorts are the SRV records of a service.
var servicePorts = map[string]map[string]uint16{
	serviceName("smee"): {
		"_http._tcp": 7171, "_tftp._udp": 69, "_syslog._udp": 514, "_dhcp._udp": 67,
	},
	serviceName("hegel"):       {"_http._tcp": 50061},
	serviceName("tink-server"): {"_grpc._tcp": 42113},
}

// SetRecord changes what the pod's DNS answers for a service ("smee", "hegel", "tink-server") or a full name; no
// addresses means that there is no such name. Answers given before live for two seconds.
func (l *Lab) SetRecord(service string, addrs ...netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(addrs) == 0 {
		delete(l.records, serviceName(service))
	} else {
		l.records[serviceName(service)] = addrs
	}
	return l.writeZone()
}

func (l *Lab) writeZone() error {
	data, err := json.Marshal(zone{Names: l.records, Ports: servicePorts, TTL: recordTTL})
	if err != nil {
		return err
	}
	// Renamed into place: the server never reads half of it.
	next := l.zonePath() + ".next"
	if err := os.WriteFile(next, data, 0o644); err != nil {
		return fmt.Errorf("failed to write zone: %w", err)
	}
	return os.Rename(next, l.zonePath())
}

// writeResolvConf writes what a kubelet writes for a pod of [Namespace].
func (l *Lab) writeResolvConf() error {
	text := fmt.Sprintf("search %s svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", Domain, DNSIP)
	if err := os.WriteFile(l.resolvPath(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("failed to write resolv.conf: %w", err)
	}
	return nil
}

// serveDNS is the dns helper: UDP and TCP on [DNSIP].
func serveDNS(args []string) error {
	path := args[0]
	addr := net.JoinHostPort(DNSIP.String(), "53")
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- serveDNSDatagrams(udp, path) }()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				ended <- err
				return
			}
			go serveDNSConn(conn, path)
		}
	}()
	return <-ended
}

func serveDNSDatagrams(conn net.PacketConn, path string) error {
	buffer := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		reply, err := answer(buffer[:n], path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "query from %s: %v\n", from, err)
			continue
		}
		if _, err := conn.WriteTo(reply, from); err != nil {
			fmt.Fprintf(os.Stderr, "reply to %s: %v\n", from, err)
		}
	}
}

func serveDNSConn(conn net.Conn, path string) {
	defer func() { _ = conn.Close() }()
	for {
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, err := answer(query, path)
		if err != nil {
			return
		}
		reply = append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// answer answers one query.
func answer(query []byte, path string) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var zone zone
	if err := json.Unmarshal(text, &zone); err != nil {
		return nil, err
	}
	name := strings.ToLower(strings.TrimSuffix(question.Name.String(), "."))
	bodies, known := zone.lookup(name, question.Type)
	reply := dnsmessage.Header{
		ID: header.ID, Response: true, Authoritative: true,
		RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
	}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	fmt.Printf("%s %s %s %d answers\n", time.Now().Format(time.RFC3339Nano), name, question.Type, len(bodies))
	message := dnsmessage.Message{Header: reply, Questions: []dnsmessage.Question{question}}
	for _, body := range bodies {
		message.Answers = append(message.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{
				Name: question.Name, Class: dnsmessage.ClassINET, TTL: uint32(zone.TTL / time.Second),
			},
			Body: body,
		})
	}
	return message.Pack()
}

// lookup returns the answers, and whether there is such a name at all.
func (z *zone) lookup(name string, kind dnsmessage.Type) (bodies []dnsmessage.ResourceBody, known bool) {
	if addrs, ok := z.Names[name]; ok {
		for _, addr := range addrs {
			switch {
			case addr.Is4() && kind == dnsmessage.TypeA:
				bodies = append(bodies, &dnsmessage.AResource{A: addr.As4()})
			case addr.Is6() && kind == dnsmessage.TypeAAAA:
				bodies = append(bodies, &dnsmessage.AAAAResource{AAAA: addr.As16()})
			}
		}
		return bodies, true
	}
	// "_http._tcp.smee.tink-system.svc.cluster.local"
	port, rest, ok := strings.Cut(name, ".")
	protocol, service, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 {
		return nil, false
	}
	number, ok := z.Ports[service][port+"."+protocol]
	if _, exists := z.Names[service]; !ok || !exists {
		return nil, false
	}
	if kind != dnsmessage.TypeSRV {
		return nil, true
	}
	target, err := dnsmessage.NewName(service + ".")
	if err != nil {
		return nil, true
	}
	return []dnsmessage.ResourceBody{&dnsmessage.SRVResource{Weight: 100, Port: number, Target: target}}, true
}

// resolve asks the lab's DNS from the pod.
func (l *Lab) resolve(name string, kind dnsmessage.Type, timeout time.Duration) (*dnsmessage.Message, error) {
	full, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, err
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: full, Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := query.Pack()
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	if err := l.Do(RolePod, func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(DNSIP.String(), "53"))
		return err
	}); err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil {
		return nil, err
	}
	var reply dnsmessage.Message
	if err := reply.Unpack(buffer[:n]); err != nil {
		return nil, err
	}
	if reply.RCode != dnsmessage.RCodeSuccess {
		return &reply, errors.New(reply.RCode.String())
	}
	return &reply, nil
}
