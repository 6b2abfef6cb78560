package clients_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// relayEnv has the relay tell servers the link.
func relayEnv(more ...string) map[string][]string {
	return map[string][]string{lab.DHCPRelay: append([]string{
		"DHCP_RELAY_LISTENERS=macvlan0=" + lab.GatewayIP.String(),
		"DHCP_RELAY_AGENT_OPTIONS=circuit-id,remote-id,link-selection",
	}, more...)}
}

// poolLab is a lab in which a server with pools takes Smee's place.
func poolLab(t *testing.T, server lab.PoolServer, env map[string][]string) *lab.Lab {
	t.Helper()
	if _, err := exec.LookPath(server.Program); err != nil {
		t.Skipf("needs Debian's package %s: %v", server.Package, err)
	}
	return lab.ForTest(t, lab.Options{Without: []string{lab.Smee, lab.Hegel, lab.StackProxy}, Env: env})
}

// TestServersGiveLeases has each client bound and renewed by servers that choose the pool by link selection.
func TestServersGiveLeases(t *testing.T) {
	for _, server := range lab.PoolServers {
		t.Run(server.Name, func(t *testing.T) {
			t.Parallel() // labs do not see each other
			l := poolLab(t, server, relayEnv("DHCP_RELAY_TOKEN_KEY=0123456789abcdef"))
			if _, err := l.AddRouter("router"); err != nil { // so that clients reach a server that has its own address
				t.Fatal(err)
			}
			if _, err := l.StartPools(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			t.Run("clients", func(t *testing.T) { // waits for its parallel tests, before the lab goes
				for i, client := range clients.All {
					t.Run(client.Name, func(t *testing.T) {
						t.Parallel()
						host, err := l.AddHost(client.Name, mac(3, i))
						if err != nil {
							t.Fatal(err)
						}
						hold(t, l, client, host, mac(3, i), lab.LAN, lab.GatewayIP)
					})
				}
			})
		})
	}
}

// TestServersBehindSwitches has machines of a rack whose switch is a relay agent itself, and sends to the service IP.
// The switch adds no option 82, or its own; the server finds the rack's pool in either case, whatever this relay adds.
func TestServersBehindSwitches(t *testing.T) {
	agents := map[string]func(t *testing.T) lab.Process{
		"dnsmasq": func(*testing.T) lab.Process {
			return lab.Process{Path: "dnsmasq", Tmpfs: []string{"/run"}, Args: []string{
				"--keep-in-foreground", "--log-facility=-", "--log-dhcp", "--conf-file=/dev/null", "--user=root", "--port=0",
				fmt.Sprintf("--dhcp-relay=%s,%s", lab.RackGatewayIP, lab.ServiceIP),
			}}
		},
		"dhcrelay -a": func(*testing.T) lab.Process {
			return lab.Process{Path: "dhcrelay", Args: []string{
				"-4", "-d", "--no-pid", "-a", "-m", "append", "-id", lab.RouterLink, "-iu", "eth0", lab.ServiceIP.String(),
			}}
		},
		"dhcp-relay": func(t *testing.T) lab.Process {
			return lab.Process{Path: program.ForTest(t, "dhcp-relay"), Env: []string{
				"DHCP_RELAY_LISTENERS=" + lab.RouterLink, "DHCP_RELAY_AGENT_OPTIONS=circuit-id",
				"DHCP_RELAY_SERVERS=" + lab.ServiceIP.String(), "DHCP_RELAY_UPSTREAM=" + lab.RackGatewayIP.String(),
				"DHCP_RELAY_ADMIN_ADDRESS=127.0.0.1:9067",
			}}
		},
	}
	trusted := "DHCP_RELAY_TRUSTED_RELAYS=" + lab.Rack.String() + "," + lab.RouterIP.String() + "/32"
	for _, server := range lab.PoolServers {
		for agent, process := range agents {
			t.Run(server.Name+"/"+agent, func(t *testing.T) {
				t.Parallel() // labs do not see each other
				env := relayEnv(trusted)
				if agent != "dhcrelay -a" { // and with its own settings alone
					env = map[string][]string{lab.DHCPRelay: {trusted}}
				}
				l := poolLab(t, server, env)
				router, err := l.AddRouter("switch")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := l.StartPools(t.Context(), server); err != nil {
					t.Fatal(err)
				}
				p := process(t)
				p.Name, p.Role, p.Watch = "agent", router, true
				if _, err := exec.LookPath(p.Path); err != nil {
					t.Skipf("needs the relay agent: %v", err)
				}
				if _, err := l.Start(p); err != nil {
					t.Fatal(err)
				}
				host, err := l.AddHostBehind(router, "rack", mac(4, 0))
				if err != nil {
					t.Fatal(err)
				}
				hold(t, l, clients.Udhcpc, host, mac(4, 0), lab.Rack, lab.RackGatewayIP)
			})
		}
	}
}

func mac(kind, i int) net.HardwareAddr {
	return net.HardwareAddr{0x52, 0x54, 0, 0, byte(kind), byte(i + 1)}
}

// hold has a client bound to an address of a network, and renewed.
func hold(
	t *testing.T, l *lab.Lab, client clients.Client, host string, mac net.HardwareAddr, in netip.Prefix, gateway netip.Addr,
) {
	t.Helper()
	if err := client.Missing(); err != nil {
		t.Skip(err)
	}
	wire, running := follow(t, l, client, host)
	next := func(kind dhcpv4.MessageType, what string) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), 60*time.Second, clients.Of(kind, mac))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return seen
	}
	ack := next(dhcpv4.MessageTypeAck, "bound")
	address, _ := netip.AddrFromSlice(ack.Message.YourIPAddr.To4())
	if !in.Contains(address) {
		t.Fatalf("got %s, want an address of %s", ack, in)
	}
	if agent := ack.Message.RelayAgentInfo(); agent != nil {
		t.Errorf("%s: the client gets option 82: %s", ack, agent)
	}
	if !client.Configures {
		if err := l.Configure(host, netip.PrefixFrom(address, in.Bits()), gateway); err != nil {
			t.Fatal(err)
		}
	}
	if running.RenewsOnDemand() {
		time.Sleep(time.Second) // the client binds
		if err := running.Renew(); err != nil {
			t.Fatal(err)
		}
	}
	request := next(dhcpv4.MessageTypeRequest, "renewing")
	if !request.Unicast() {
		t.Errorf("renewing: got %s, want a unicast", request)
	}
	if ack := next(dhcpv4.MessageTypeAck, "renewed"); !ack.Message.YourIPAddr.Equal(address.AsSlice()) {
		t.Errorf("renewed: got %s, want %s", ack, address)
	}
}
