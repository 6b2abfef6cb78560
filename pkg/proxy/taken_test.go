package proxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/pkg/proxy"
	"github.com/tinkerbell/stack/pkg/route"
)

// A connection that was opened from one of our ports is waited for at the start; a program that listens there is not.
func TestPortOfAConnectionIsWaitedFor(t *testing.T) {
	ns := nstest.New(t)
	table := route.Table{Routes: []route.Route{{
		Name: "tink", Protocol: route.TCP, Listen: []route.Listen{route.Listen(netip.MustParseAddrPort("127.0.0.1:42113"))},
		Backends: []route.Backend{{Host: "127.0.0.1", Port: 1}},
	}}}
	ns.Do(t, func() error {
		server, err := net.Listen("tcp", "127.0.0.1:1")
		if err != nil {
			return err
		}
		defer server.Close()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 42113}}
		connection, err := dialer.Dial("tcp", server.Addr().String())
		if err != nil {
			return err
		}
		_ = connection.(*net.TCPConn).SetLinger(0)
		time.AfterFunc(500*time.Millisecond, func() { _ = connection.Close() })
		if _, err := proxy.New(proxy.Options{Table: table}); err != nil {
			t.Errorf("a connection from the port stops the start: %v", err)
		}
		return nil
	})
	ns.Do(t, func() error {
		if _, err := proxy.New(proxy.Options{Table: table}); err == nil || !strings.Contains(err.Error(), "taken") {
			return fmt.Errorf("a port on which another listens: %w", err)
		}
		return nil
	})
}
