package nameserver

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func TestServer(t *testing.T) {
	zone := Zone{
		Addresses: map[string][]netip.Addr{
			"smee.test": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, "empty.test": {},
		},
		Ports: map[string]map[string]uint16{"smee.test": {"_tftp._udp": 69}, "gone.test": {"_http._tcp": 80}},
		TTL:   7 * time.Second,
	}
	var broken error
	s, err := Serve("127.0.0.1:0", func() (Zone, error) { return zone, broken }, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(network, name string, kind uint16) string {
		client := dns.Client{Net: network, Timeout: 300 * time.Millisecond}
		reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, kind), s.Addr())
		if err != nil {
			return err.Error()
		}
		lines := []string{dns.RcodeToString[reply.Rcode]}
		for _, rr := range reply.Answer {
			lines = append(lines, strings.ReplaceAll(rr.String(), "\t", " "))
		}
		return strings.Join(lines, "\n")
	}
	for _, test := range []struct {
		name string
		kind uint16
		want string
	}{
		{"smee.test.", dns.TypeA, "NOERROR\nsmee.test. 7 IN A 192.0.2.1"},
		{"SMEE.Test.", dns.TypeAAAA, "NOERROR\nSMEE.Test. 7 IN AAAA 2001:db8::1"},
		{"smee.test.", dns.TypeTXT, "NOERROR"},
		{"empty.test.", dns.TypeA, "NOERROR"},
		{"_tftp._udp.smee.test.", dns.TypeSRV, "NOERROR\n_tftp._udp.smee.test. 7 IN SRV 0 100 69 smee.test."},
		{"_tftp._udp.smee.test.", dns.TypeA, "NOERROR"},
		{"_http._tcp.smee.test.", dns.TypeSRV, "NXDOMAIN"},
		{"_http._tcp.gone.test.", dns.TypeSRV, "NXDOMAIN"},
		{"nobody.test.", dns.TypeA, "NXDOMAIN"},
		{".", dns.TypeA, "NXDOMAIN"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			if diff := cmp.Diff(test.want, ask(network, test.name, test.kind)); diff != "" {
				t.Errorf("%s %s: %s", network, test.name, diff)
			}
		}
	}
	zone.Silent = true
	if got := ask("udp", "smee.test.", dns.TypeA); !strings.Contains(got, "i/o timeout") {
		t.Errorf("a silent server says %q", got)
	}
	zone.Silent, broken = false, errors.New("no zone")
	if got := ask("udp", "smee.test.", dns.TypeA); !strings.Contains(got, "i/o timeout") {
		t.Errorf("without a zone it says %q", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
