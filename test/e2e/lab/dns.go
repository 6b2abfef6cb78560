package lab

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/miekg/dns"

	"github.com/tinkerbell/stack/test/e2e/nameserver"
)

// recordTTL is short, so that tests of a changed backend need not wait.
const recordTTL = 2 * time.Second

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
	data, err := json.Marshal(nameserver.Zone{Addresses: l.records, Ports: servicePorts, TTL: recordTTL})
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

// serveDNS is the dns helper. It reads the zone, a file, at each query, whichever process wrote it.
func serveDNS(args []string) error {
	path := args[0]
	server, err := nameserver.Serve(net.JoinHostPort(DNSIP.String(), "53"), func() (zone nameserver.Zone, err error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return zone, err
		}
		return zone, json.Unmarshal(text, &zone)
	}, os.Stdout)
	if err != nil {
		return err
	}
	return server.Wait()
}

// resolve asks the lab's DNS from the pod. Its error is that of the network; whether there is such a name is in the
// reply.
func (l *Lab) resolve(name string, kind uint16, timeout time.Duration) (*dns.Msg, error) {
	var conn net.Conn
	if err := l.Do(RolePod, func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(DNSIP.String(), "53"))
		return err
	}); err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	client := &dns.Client{Timeout: timeout}
	reply, _, err := client.ExchangeWithConn(new(dns.Msg).SetQuestion(dns.Fqdn(name), kind), &dns.Conn{Conn: conn})
	return reply, err
}
