package web

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/tinkerbell/stack/pkg/edge/host"
)

// at is a connection to an address.
type at struct {
	net.Conn
	local string
}

func (a at) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(a.local), Port: 443} }

// The names that clients may send: in capitals, addresses though RFC 6066 forbids them, with the root's dot, and none.
func TestNamesThatClientsMayUseForServers(t *testing.T) {
	config := func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12} }
	first, second, addresses := config(), config(), config()
	r := start(t, Settings{Pool: pool(refused(t)), TLS: first, Hosts: host.Hosts{"a.example"}, Sites: []Site{
		{Route: "b", Settings: Settings{Pool: pool(refused(t)), TLS: second, Hosts: host.Hosts{"b.example", "*.b.example"}}},
		{Route: "c", Settings: Settings{
			Pool: pool(refused(t)), TLS: addresses, Hosts: host.Hosts{"192.0.2.2", "2001:db8::2"},
		}},
	}})
	for _, test := range []struct {
		name, local string
		want        *tls.Config
	}{
		{"a.example", "192.0.2.9", first}, {"A.EXAMPLE", "192.0.2.9", first}, {"a.example.", "192.0.2.9", first},
		{"B.Example", "192.0.2.9", second}, {"x.b.example.", "192.0.2.9", second}, {"x.y.b.example", "192.0.2.9", first},
		{"192.0.2.2", "192.0.2.9", addresses}, {"2001:DB8::2", "192.0.2.9", addresses}, {"192.0.2.3", "192.0.2.2", first},
		{"", "192.0.2.2", addresses}, {"", "2001:db8::2", addresses}, {"", "192.0.2.9", first}, {"c.example", "192.0.2.2", first},
	} {
		got, err := r.configFor(&tls.ClientHelloInfo{ServerName: test.name, Conn: at{local: test.local}})
		if err != nil || got != test.want {
			t.Errorf("%q to %s has another route's TLS, %v", test.name, test.local, err)
		}
	}
}
